"""`cloudtrain down`"""

from __future__ import annotations

import click

from cloudtrain.cli.accounts import provider_options
from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.confirm import confirm, on_terminal
from cloudtrain.cli.options import (
    adopt_option,
    debug_option,
    json_option,
    name_argument,
    print_json,
    shown,
    yes_option,
)
from cloudtrain.cli.target import ClusterTarget, is_file, target_of
from cloudtrain.cloud import facts_of
from cloudtrain.console.lines import printable
from cloudtrain.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.state import Records


@click.command(short_help=COMMANDS["down"], epilog="\b\nExample:\n  cloudtrain down mnist --yes")
@name_argument()
@click.option("--discard", is_flag=True, help="Lose what only the nodes hold.")
@yes_option
@adopt_option
@click.option("--owner", metavar="WHO", help="End a cluster of WHO (the name shown, or its id).")
@provider_options
@json_option
@debug_option
def command(
    name: str | None,
    discard: bool,
    yes: bool,
    adopt: bool,
    owner: str | None,
    provider: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Land the artifacts, delete everything, and report what the provider still lists. Refuses
    (exit code 5, nodes kept) while something that only a node holds cannot be landed, unless
    --discard. Leftovers are named (exit code 6). With --provider, a cluster that no record here
    knows is found by its labels.
    """
    target = resolve_target(name, provider, project)
    show_whose(target, owner)
    provider = provider_of(target)
    free = facts_of(provider).free
    if discard and (not free or on_terminal()):
        confirm(f"Destroy {target.name} and lose what only its nodes hold?", yes=yes)
    elif not free:
        confirm(f"Land what {target.name} made, and destroy it on {provider}?", yes=yes)
    from cloudtrain.commands.down import down

    with shown(as_json=as_json) as screen:
        down(target.name, target.config, discard=discard, adopt=adopt, owner=owner, console=screen)
    if as_json:
        print_json({"name": target.name, "left": []})


def show_whose(target: ClusterTarget, owner: str | None) -> None:
    """Show owner, age, runs and end of a cluster whose keys nobody here has."""
    if facts_of(provider_of(target)).on_this_machine or Records(target.name).has_keys():
        return
    from cloudtrain.commands.cluster_owner import whose

    try:
        lines = whose(target.name, target.config, owner=owner)
    except UsageError:
        raise
    except CloudtrainError:
        return  # `down` itself meets it again, and tells it with what it means there
    if lines:
        click.echo(printable("\n  ".join([target.name, *lines])), err=True)


def resolve_target(name: str | None, provider: str | None, project: str | None) -> ClusterTarget:
    """The cluster on record here, which has the keys; else NAME at that provider."""
    from cloudtrain.commands.inventory import account_of, is_known

    if provider is None or (name is not None and is_file(name)):
        if provider or project:
            raise UsageError("a FILE says its provider itself", hint="leave --provider out")
        return target_of(name)
    if name is None:
        raise UsageError("--provider needs the cluster's NAME", hint="`cloudtrain ls --cloud`")
    told = account_of(name, provider, project)
    if is_known(name, told):
        return target_of(name)
    from cloudtrain.config import with_environment_defaults

    return ClusterTarget(name, with_environment_defaults(told))


def provider_of(target: ClusterTarget) -> str:
    """Provider of a cluster. If its record cannot be read, one that bills is assumed."""
    if target.config is not None:
        return target.config.provider
    try:
        return str(Records(target.name).config()["provider"])
    except (ConfigError, KeyError):
        return "its provider"
