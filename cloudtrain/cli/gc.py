"""`cloudtrain gc`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli import options
from cloudtrain.cli.accounts import (
    accounts_of,
    holdings_document,
    holdings_text,
    kept_lines,
    provider_options,
)
from cloudtrain.cli.nodes import alarmed
from cloudtrain.cli.printing import confirm, print_json, print_lines, shown
from cloudtrain.cli.target import is_file
from cloudtrain.core.errors import CloudtrainError, NodesError
from cloudtrain.state import Records

if TYPE_CHECKING:
    from cloudtrain.commands.accounts import AccountRef


@options.command("gc", "cloudtrain gc --provider gcp")
@options.name()
@provider_options
@click.option("--owner", metavar="WHO", help="Owner, by displayed name or id (default: you).")
@click.option(
    "--unused-for",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Also delete environments in stores that no cluster has used for DAYS days.",
)
@click.option("--running", is_flag=True, help="Also delete clusters with time left.")
@options.yes
@options.events
@options.as_json
@options.record
def gc_command(
    name: str | None,
    provider: str | None,
    project: str | None,
    owner: str | None,
    running: bool,
    unused_for: int,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete clusters in your accounts whose keys are not on this machine and that are expired,
    have no node, or are named. Data that only their nodes hold is lost, so it asks first.
    Running and stopped clusters with time left are listed and kept, unless NAME or --running is
    given; what another machine may be creating is kept, unless NAME and --owner are. Other
    users' clusters are left alone, and so are clusters whose keys are here: `cloudtrain down`
    destroys those and lands their artifacts. Archives of environments that later clusters could
    use (setup.cache) are listed with what they cost, and deleted once unused for long."""
    from cloudtrain.commands.accounts import DeletionScope, delete_leftovers, list_accounts

    wanted = DeletionScope(name=cluster_of(name), owner=owner, running=running)
    answers = list_accounts(accounts_holding(name, provider, project))
    failed = {str(a.account): a.error for a in answers if a.error is not None and a.exit_code}
    found = [held for answer in answers for held in answer.held if wanted.takes(held)]
    if not as_json:
        lines = (holdings_text(answers), *kept_lines(answers, wanted))
        print_lines(lines, err=True, painted=alarmed)
    collected: tuple[str, ...] = ()
    if found:
        names = ", ".join(held.holding.cluster for held in found)
        confirm(f"Destroy {names} and lose what only their nodes hold?", yes=yes)
        with shown(as_json=as_json) as screen:
            collected = delete_leftovers(answers, wanted, screen)
            answers = list_accounts([answer.account for answer in answers])
            for one in collected:
                screen.say(f"{one}: deleted; its account lists nothing of it any more")
    elif not as_json and not failed and not any(answer.exit_code for answer in answers):
        click.echo("nothing to collect")
    environments: list[dict[str, Any]] = []
    if name is None and provider is None:
        environments, faults = collect_environments(unused_for, yes=yes, as_json=as_json)
        failed.update(faults)
    if as_json:
        print_json(
            {
                "collected": list(collected),
                "environments": environments,
                **holdings_document(answers),
            }
        )
    if failed and not as_json:
        raise NodesError(failed)
    return max((answer.exit_code for answer in answers), default=0)


def collect_environments(
    unused_for: int, *, yes: bool, as_json: bool
) -> tuple[list[dict[str, Any]], dict[str, CloudtrainError]]:
    """List environments in stores, and delete the unused ones; returns what is left, as JSON, and
    what failed, by its place."""
    from cloudtrain.commands.environments import Environments, delete_environments

    kept = Environments()
    if not as_json:
        print_lines(kept.lines(unused_for), err=True)
    failed: dict[str, CloudtrainError] = {}
    if unused := kept.unused(unused_for):
        confirm(f"Delete {len(unused)} unused environments in stores?", yes=yes)
        with shown(as_json=as_json) as screen:
            failed = delete_environments(unused, screen)
    return Environments().document(), failed


def cluster_of(name: str | None) -> str | None:
    """The named cluster; a FILE only chooses the account."""
    if name is None or is_file(name):
        return None
    return Records(name).name


def accounts_holding(
    name: str | None, provider: str | None, project: str | None
) -> tuple[AccountRef, ...]:
    """Accounts that may hold the cluster; all of them for a NAME without a local record."""
    from cloudtrain.state import known_clusters

    if (
        name is not None
        and not is_file(name)
        and (provider is not None or name not in known_clusters())
    ):
        return accounts_of(None, provider, project)
    return accounts_of(name, provider, project)
