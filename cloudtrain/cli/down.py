"""`cloudtrain down`"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cloudtrain.cli import options
from cloudtrain.cli.accounts import provider_options
from cloudtrain.cli.printing import confirm, on_terminal, print_json, print_lines, shown
from cloudtrain.cli.target import ClusterTarget, is_file, target_to_end
from cloudtrain.console.lines import printable, quoted
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import CloudtrainError, ConfigError, LeasedError, UsageError
from cloudtrain.state import Records


@options.command("down", "cloudtrain down mnist --yes")
@options.name(known="up")
@options.option("--discard", "Also destroy data that only the nodes hold.")
@options.yes
@options.adopt
@options.option("--owner WHO", "Destroy a cluster of WHO (displayed name or id).")
@options.option(
    "--break-lease ID",
    "Go on although another machine's command holds this lease (`any`: whichever).",
)
@options.order_key
@provider_options
@options.events
@options.shows("progress")
@options.as_json
@options.record
def down_command(
    name: str | None,
    discard: bool,
    yes: bool,
    adopt: bool,
    owner: str | None,
    break_lease: str | None,
    order_key: Path | None,
    provider: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Land the artifacts, delete everything, and report what the provider still lists. Keeps the
    nodes (exit code 5) if something that only a node holds cannot be landed, unless --discard is
    given. Leftovers are named (exit code 6). With --provider, a cluster without a local record is
    found by its labels. One that is away is ended by its controller."""
    target = resolve_target(name, provider, project, adopt=adopt)
    show_owner(target, owner)
    provider = provider_of(target)
    free = facts_of(provider).free
    if discard and (not free or on_terminal()):
        confirm(f"Destroy {target.name} and lose what only its nodes hold?", yes=yes)
    elif not free:
        confirm(f"Land the artifacts of {target.name} and destroy it on {provider}?", yes=yes)
    from cloudtrain.commands.down import down

    end = partial(down, *target, discard=discard, adopt=adopt, owner=owner, order_key=order_key)

    def run(broken: str) -> None:
        with shown() as screen:
            end(break_lease=broken, console=screen)

    try:
        run(break_lease or "")
    except LeasedError as error:
        if not error.lease or break_lease or not on_terminal():
            raise
        question = f"{error.message}. Go on without it? What it is at work on is lost"
        confirm(printable(quoted(question)), yes=False)
        run(error.lease)
    if as_json:
        print_json({"name": target.name, "left": []})


def show_owner(target: ClusterTarget, owner: str | None) -> None:
    """Show owner, age, runs and expiry of a cluster whose keys are not on this machine."""
    if facts_of(provider_of(target)).on_this_machine or Records(target.name).has_keys():
        return
    from cloudtrain.cluster.lease import describe_owner

    try:
        lines = describe_owner(target.name, target.config, owner=owner)
    except UsageError:
        raise
    except CloudtrainError:
        return  # `down` meets the same error, and reports it in context
    if lines:
        print_lines([target.name, *(f"  {line}" for line in lines)], err=True)


def resolve_target(
    name: str | None, provider: str | None, project: str | None, *, adopt: bool
) -> ClusterTarget:
    """The cluster on record here, which has the keys; else NAME at that provider."""
    from cloudtrain.commands.accounts import account_of, is_known

    if provider is None or (name is not None and is_file(name)):
        if provider or project:
            raise UsageError("a FILE names its own provider", hint="omit --provider and --project")
        return target_to_end(name, adopt=adopt)
    if name is None:
        raise UsageError(
            "--provider requires the cluster's NAME", hint="`cloudtrain ls --cloud` lists names"
        )
    account = account_of(name, provider, project)
    if is_known(name, account):
        return target_to_end(name, adopt=adopt)
    from cloudtrain.config import with_environment_defaults

    return ClusterTarget(name, with_environment_defaults(account))


def provider_of(target: ClusterTarget) -> str:
    """Provider of a cluster. If its record cannot be read, one that bills is assumed."""
    if target.config is not None:
        return target.config.provider
    try:
        return str(Records(target.name).config()["provider"])
    except (ConfigError, KeyError):
        return "its provider"
