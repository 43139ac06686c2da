"""Accounts of `ls --cloud`, `gc` and `gpus --cloud`: which, and as text and JSON what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cloudtrain.checks.node_notes import overdue
from cloudtrain.cli.nodes import billing_lines, error_json, node_json
from cloudtrain.cli.target import config_of
from cloudtrain.console.lines import quoted
from cloudtrain.console.times import clock
from cloudtrain.core import moments
from cloudtrain.core.cloud import cloud_of, clouds, providers
from cloudtrain.core.codec import encode, pick
from cloudtrain.core.errors import UsageError

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

project_option = click.option("--project", metavar="P", help=f"{PROJECTS}.")


def provider_options(command: Decorated) -> Decorated:
    """Options --provider and --project, for accounts that no local file names."""
    provider = click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        help="Query this provider instead of the local records.",
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


def holdings_text(answers: Sequence[AccountInventory]) -> str:
    return "\n".join(line for answer in answers for line in _account_lines(answer))


def _account_lines(answer: AccountInventory) -> Iterator[str]:
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
    return {"accounts": [_account_json(answer) for answer in answers]}


def _account_json(answer: AccountInventory) -> dict[str, Any]:
    return {
        **pick(answer, "provider=account.config.provider project=account.config.project"),
        "clusters": [_cluster_json(held) for held in answer.held],
        "not_asked": encode(answer.not_asked),
        "error": error_json(answer.error, answer.exit_code),
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
