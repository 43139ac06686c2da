"""`cloudtrain ls` and `gc`: which accounts, what they hold as text and JSON, and its deletion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cloudtrain.checks.node_notes import overdue
from cloudtrain.cli import options
from cloudtrain.cli.nodes import alarmed, billing_lines, error_json, node_json
from cloudtrain.cli.printing import confirm, print_json, print_lines, shown
from cloudtrain.cli.target import config_of, is_file
from cloudtrain.console.lines import printable, quoted
from cloudtrain.console.times import clock
from cloudtrain.core import moments
from cloudtrain.core.cloud import cloud_of, clouds, providers
from cloudtrain.core.codec import encode, pick
from cloudtrain.core.errors import CloudtrainError, NodesError, UsageError
from cloudtrain.state import Records, known_clusters

if TYPE_CHECKING:
    from cloudtrain.commands.accounts import (
        AccountInventory,
        AccountRef,
        DeletionScope,
        HeldCluster,
    )
    from cloudtrain.core.model import ClusterConfig, Node


Decorated = TypeVar("Decorated", bound=Callable[..., Any])

PROVIDERS = tuple(facts.name for facts in providers() if not facts.takes_hosts)
CLOUDS = tuple(cloud.name for cloud in clouds())
PROJECTS = "; ".join(f"{cloud.name}: {cloud.project_word}" for cloud in clouds())

project_option = options.option("--project P", f"{PROJECTS}.")


def provider_options(command: Decorated) -> Decorated:
    """Options --provider and --project, for accounts that no local file names."""
    provider = options.option(
        "--provider",
        "Query this provider instead of the local records.",
        type=click.Choice(PROVIDERS),
    )
    return provider(project_option(command))


def accounts_of(
    name: str | None, provider: str | None, project: str | None
) -> tuple[AccountRef, ...]:
    from cloudtrain.commands.accounts import AccountRef, account_of, accounts

    if name is not None and provider is not None:
        raise UsageError("use either --provider or a FILE/NAME, not both")
    if project is not None and provider is None:
        names = ", ".join(cloud.name for cloud in clouds())
        raise UsageError("--project requires --provider", hint=f"add --provider: one of {names}")
    if provider is not None:
        return (AccountRef(config=account_of("any", provider, project), named=True),)
    if name is not None:
        return (AccountRef(config=config_of(name), named=True),)
    return accounts()


def account_lines(answer: AccountInventory) -> Iterator[str]:
    if answer.error is not None:
        message = f"{answer.account}: not checked: {answer.error.message}"
        yield quoted(message).replace("\n", "\n  ")
        if answer.error.hint and answer.exit_code:
            yield f"  hint: {quoted(answer.error.hint)}"
    elif not answer.held:
        missed = any(not each.foreign for each in answer.not_asked)
        where = " in the places that were queried" if missed else ""
        yield f"{answer.account}: holds nothing of cloudtrain's{where}"
    cloud = cloud_of(answer.account.config.provider)
    for held in answer.held:
        holding = held.holding
        owner = f"of {', '.join(map(str, holding.owners))}" if holding.owners else ""
        state = "known here" if held.known else "no local record"
        yield "  ".join(filter(None, [f"{answer.account}: {holding.cluster}", owner, state]))
        if holding.nodes:
            yield f"  {shown_facts(holding.nodes, answer.account.config)}"
        for node in holding.nodes:
            state = node.state
            if state == "stopped" and cloud is not None and cloud.stopped_keeps_address:
                state += " (disk and address still billed)"
            yield f"  {node.name}  {state}  {node.machine}  {node.placement}".rstrip()
        yield from (
            f"  {line}" for line in billing_lines(holding.nodes, holding.provider, moments.now())
        )
        yield from (f"  {resource}" for resource in holding.resources)
        if held.lease:
            yield f"  {held.lease}"
    yield from (f"{answer.account}: {each}" for each in answer.not_asked if each.foreign)
    for each in answer.not_asked:
        if each.silent:
            yield quoted(f"{answer.account}: not checked: {each}").replace("\n", "\n  ")
    if denied := [each.place for each in answer.not_asked if each.denied]:
        yield f"{answer.account}: not checked, access denied: {', '.join(denied)}"


def shown_facts(nodes: Sequence[Node], config: ClusterConfig) -> str:
    """Facts to know before a cluster is deleted: age, what runs, expiry, price."""
    from cloudtrain.cluster.ownership import facts
    from cloudtrain.money.estimate import price_of

    prices = [price_of(config, node).per_hour for node in nodes if node.state != "stopped"]
    known = sum(price for price in prices if price)
    price = [f"at least {known:.2f} $/hour"] if known else []
    return ", ".join([*facts(nodes), *price])


def kept_lines(answers: Sequence[AccountInventory], wanted: DeletionScope) -> list[str]:
    """Lines on clusters with time left: those that `gc` keeps, with the commands that delete them,
    and those that it takes although somebody may be at work on them."""
    from cloudtrain.cluster.ownership import described

    lines = []
    for answer in answers:
        config = answer.account.config
        where = f" --provider {config.provider}"
        where += f" --project {config.project}" if config.project else ""
        for held in answer.held:
            name = held.holding.cluster
            if not wanted.covers(held):
                continue
            made = ", ".join(map(described, held.holding.owners)) or "an unknown owner"
            if held.being_created and not wanted.takes(held):
                until = clock(held.holding.creating_until or 0.0)
                who = next((owner.name for owner in held.holding.owners), "") or "WHO"
                lines.append(
                    f"{name} is being created until {until} at the latest by a command of {made}, "
                    f"and is kept: if nobody creates it any more, `cloudtrain gc {name}{where} "
                    f"--owner {who}` deletes it now"
                )
            elif not wanted.takes(held):
                state = "running" if held.runs else "stopped, may hold what has not landed,"
                lines.append(
                    f"{name} is {state} and is kept: `cloudtrain gc {name}{where}` deletes it"
                )
            elif held.lasts:
                lines.append(f"{name} has time left: a command of {made} may be at work on it")
    return lines


def holdings_document(answers: Sequence[AccountInventory]) -> dict[str, Any]:
    return {
        "accounts": [
            {
                **pick(answer, "provider=account.config.provider project=account.config.project"),
                "clusters": [_cluster_json(held) for held in answer.held],
                "not_asked": encode(answer.not_asked),
                "error": error_json(answer.error, answer.exit_code),
            }
            for answer in answers
        ]
    }


def _cluster_json(held: HeldCluster) -> dict[str, Any]:
    owners, nodes = held.holding.owners, held.holding.nodes
    return {
        **pick(held, "name=holding.cluster known mine"),
        "owners": sorted({owner.name for owner in owners}),
        "owner_ids": sorted({owner.id for owner in owners}),
        "machines": sorted({owner.machine for owner in owners} - {""}),
        "nodes": [node_json(node) for node in nodes],
        "overdue": [node.name for node in overdue(nodes, moments.now())],
        "resources": list(held.holding.resources),
        "lease": held.lease or None,
    }


@options.command("gc", "cloudtrain gc --provider gcp")
@options.name()
@provider_options
@options.option("--owner WHO", "Owner, by displayed name or id (default: you).")
@options.option(
    "--unused-for DAYS",
    "Also delete environments in stores that no cluster has used for DAYS days.",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
)
@options.option("--running", "Also delete clusters with time left.")
@options.yes
@options.events
@options.shows("progress")
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
    from cloudtrain.commands.accounts import DeletionScope, list_accounts

    named = None if name is None or is_file(name) else Records(name).name
    wanted = DeletionScope(name=named, owner=owner, running=running)
    answers = list_accounts(accounts_holding(name, provider, project))
    failed = {str(a.account): a.error for a in answers if a.error is not None and a.exit_code}
    if not as_json:
        lines = [line for answer in answers for line in account_lines(answer)]
        print_lines([*lines, *kept_lines(answers, wanted)], err=True, painted=alarmed)
    collected, answers = collect_clusters(answers, wanted, yes=yes, as_json=as_json)
    environments: list[dict[str, Any]] = []
    if name is None and provider is None:
        environments, faults = collect_environments(unused_for, yes=yes, as_json=as_json)
        failed.update(faults)
    if as_json:
        done = {"collected": list(collected), "environments": environments}
        print_json({**done, **holdings_document(answers)})
    if failed and not as_json:
        raise NodesError(failed)
    return max((answer.exit_code for answer in answers), default=0)


def collect_clusters(
    answers: tuple[AccountInventory, ...], wanted: DeletionScope, *, yes: bool, as_json: bool
) -> tuple[tuple[str, ...], tuple[AccountInventory, ...]]:
    """Delete the clusters that are wanted; returns their names, and what the accounts hold then."""
    from cloudtrain.commands.accounts import delete_leftovers, list_accounts

    names = [h.holding.cluster for answer in answers for h in answer.held if wanted.takes(h)]
    if not names:
        if not as_json and not any(a.exit_code for a in answers):
            click.echo("nothing to collect")
        return (), answers
    confirm(f"Destroy {', '.join(names)} and lose what only their nodes hold?", yes=yes)
    with shown() as screen:
        collected = delete_leftovers(answers, wanted, screen)
        answers = list_accounts([answer.account for answer in answers])
        for one in collected:
            screen.say(f"{one}: deleted; its account lists nothing of it any more")
    return collected, answers


def collect_environments(
    unused_for: int, *, yes: bool, as_json: bool
) -> tuple[list[dict[str, Any]], dict[str, CloudtrainError]]:
    """List environments in stores, and delete the unused ones; returns what is left, as JSON, and
    what failed, by its place."""
    from cloudtrain.commands.cache import Environments, delete_environments

    kept = Environments()
    if not as_json:
        print_lines(kept.lines(unused_for), err=True)
    failed: dict[str, CloudtrainError] = {}
    if unused := kept.unused(unused_for):
        confirm(f"Delete {len(unused)} unused environments in stores?", yes=yes)
        with shown() as screen:
            failed = delete_environments(unused, screen)
    return Environments().document(), failed


def accounts_holding(
    name: str | None, provider: str | None, project: str | None
) -> tuple[AccountRef, ...]:
    """Accounts that may hold the cluster; all of them for a NAME without a local record."""
    is_name = name is not None and not is_file(name)
    if is_name and (provider is not None or name not in known_clusters()):
        return accounts_of(None, provider, project)
    return accounts_of(name, provider, project)


@options.command("ls", "cloudtrain ls --cloud")
@options.name()
@options.option("--cloud", "Query the accounts instead of the local records.")
@provider_options
@options.as_json
@options.record
def ls_command(
    name: str | None, cloud: bool, provider: str | None, project: str | None, as_json: bool
) -> int:
    """List the clusters known on this machine; with --cloud, everything in the accounts that has
    cloudtrain's labels, in all regions, with or without a local record. The accounts are those of
    NAME or FILE, of --provider, or all with credentials here."""
    if not cloud:
        if name or provider or project:
            raise UsageError("NAME, --provider and --project require --cloud", hint="add --cloud")
        return listed(as_json)
    from cloudtrain.commands.accounts import list_accounts

    answers = list_accounts(accounts_of(name, provider, project))
    if as_json:
        print_json(holdings_document(answers))
    else:
        lines = (line for answer in answers for line in account_lines(answer))
        print_lines(lines, painted=alarmed)
    return max((answer.exit_code for answer in answers), default=0)


def listed(as_json: bool) -> int:
    """Clusters on record here, one line each."""
    from cloudtrain.cli.status import report_json
    from cloudtrain.commands.status import status

    report = status(None, offline=True)
    if as_json:
        print_json(report_json(report, moments.now()))
        return 0
    for cluster in sorted(report.clusters, key=lambda each: not each.open):
        is_open = "away" if cluster.is_away else "up"
        state = f"{is_open} (by the local record)" if cluster.open else "down"
        click.echo(printable(f"{cluster.name}  {cluster.provider or 'unknown'}  {state}"))
    if not report.clusters:
        click.echo("no known clusters; `cloudtrain ls --cloud` queries the accounts")
    return 0
