"""`cloudtrain ls --cloud` and `gc`: what accounts hold under our labels, asked of them alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import (
    CloudtrainError,
    ConfigError,
    CredentialsError,
    NodesError,
    NotAskedError,
)
from cloudtrain.fan_out import fan_out
from cloudtrain.listing import NotAsked
from cloudtrain.model import CLOUDS, ClusterConfig, Holding, Node, ProviderName
from cloudtrain.protocols import Console
from cloudtrain.records import Records, known
from cloudtrain.session import missing_extra, open_provider, recorded_config
from cloudtrain.verbs.standing import overdue, told_of
from cloudtrain.verbs.status import node_json


@dataclass(frozen=True, kw_only=True)
class Account:
    """Whose holdings are asked for: of the config only provider, project, endpoints count."""

    config: ClusterConfig
    named: bool
    """Somebody asked for this very account, so that it must answer."""

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return (self.config.provider, self.config.project, self.config.endpoints.compute)

    def __str__(self) -> str:
        return " ".join(filter(None, [self.config.provider, self.config.project]))


@dataclass(frozen=True, kw_only=True)
class Held:
    """`known`: a record here has this cluster as existing, so that `down NAME` lands its work."""

    holding: Holding
    known: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    account: Account
    held: tuple[Held, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()
    error: CloudtrainError | None = None

    @property
    def overdue(self) -> tuple[Node, ...]:
        return tuple(
            node for held in self.held for node in overdue(held.holding.nodes, time.time())
        )

    @property
    def exit_code(self) -> int:
        """6 for nodes that exist after their end, and for places that did not answer. An account
        that nobody named need not have credentials; regions that it may not use are no fault."""
        if self.overdue or any(not each.denied for each in self.not_asked):
            return NotAskedError.exit_code
        if self.error is None or (
            isinstance(self.error, CredentialsError) and not self.account.named
        ):
            return 0
        return self.error.exit_code


def account_of(name: str, provider: ProviderName, project: str | None) -> ClusterConfig:
    """Enough of a config to find and destroy a cluster that no file here knows."""
    return ClusterConfig(name=name, provider=provider, project=project, strategy="custom", nodes={})


def accounts() -> tuple[Account, ...]:
    """Those of the clusters known here, then each cloud whose extra is installed, and `local`."""
    found: dict[tuple[str, str | None, str | None], Account] = {}
    for name in known():
        try:
            config = recorded_config(Records(name))
        except ConfigError:
            continue
        if config.provider != "hosts":
            account = Account(config=config, named=Records(name).is_open())
            found.setdefault(account.key, account)
    providers = {account.config.provider for account in found.values()}
    everywhere: tuple[ProviderName, ...] = ("local", *CLOUDS)
    for provider in everywhere:
        if provider not in providers and missing_extra(provider) is None:
            config = account_of("any", provider, None)
            found[(provider, None, None)] = Account(config=config, named=False)
    return tuple(found.values())


def ask(accounts: Sequence[Account]) -> tuple[Answer, ...]:
    """All of them side by side; an account that does not answer says why."""

    def one(account: Account) -> Answer:
        try:
            holdings = open_provider(account.config).sweep()
        except (CloudtrainError, NodesError) as error:
            return Answer(account=account, error=error)
        held = tuple(
            Held(holding=holding, known=is_known(holding.cluster, account.config))
            for holding in holdings
        )
        return Answer(account=account, held=held, not_asked=holdings.not_asked)

    return tuple(fan_out(accounts, one, name=str))


def is_known(cluster: str, account: ClusterConfig) -> bool:
    """Whether a record here says that this cluster may exist in that account.

    Where one of the two names no project, both may mean the same one.
    """
    try:
        records = Records(cluster)
        recorded = recorded_config(records)
    except CloudtrainError:
        return False
    projects = {recorded.project, account.project} - {None}
    return records.is_open() and recorded.provider == account.provider and len(projects) < 2


def orphans(answer: Answer, user: str) -> tuple[Holding, ...]:
    """What no record here knows, made by this user: others' may well be known elsewhere."""
    return tuple(
        held.holding
        for held in answer.held
        if not held.known and set(held.holding.owners) <= {user}
    )


def collect(answers: Sequence[Answer], user: str, console: Console) -> tuple[str, ...]:
    """Destroys all orphans; their names. What became known since they were listed is left alone.

    Raises LeftoverError, or NodesError with every failure.
    """
    work = [(answer.account, orphan) for answer in answers for orphan in orphans(answer, user)]

    def one(item: tuple[Account, Holding]) -> str | None:
        account, orphan = item
        with Records(orphan.cluster).lock("gc"):
            if is_known(orphan.cluster, account.config):
                return None
            with suppress(NotAskedError):  # the next look names those places
                open_provider(account.config).destroy(orphan.cluster, no_record)
        stage.done(orphan.cluster, "gone")
        return orphan.cluster

    with console.stage("orphans", len(work)) as stage:
        done = fan_out(work, one, name=lambda item: item[1].cluster, workers=8)
    return tuple(name for name in done if name is not None)


def this_user() -> str:
    """As labels have it."""
    from cloudtrain.providers._cloud.labels import owner

    return owner()


def no_record(event: str, **facts: Any) -> None:
    """Labels alone tell what is left of an orphan; a record would make it a known cluster."""


# ── as text and JSON ─────────────────────────────────────────────────────────


def text(answers: Sequence[Answer]) -> str:
    return "\n".join(line for answer in answers for line in _lines(answer))


def _lines(answer: Answer) -> Iterator[str]:
    if answer.error is not None:
        yield f"{answer.account}: not asked: {answer.error.message}".replace("\n", "\n  ")
        if answer.error.hint and answer.exit_code:
            yield f"  hint: {answer.error.hint}"
    elif not answer.held:
        where = " where it was asked" if answer.not_asked else ""
        yield f"{answer.account}: holds nothing of ours{where}"
    for held in answer.held:
        holding = held.holding
        owner = f"of {', '.join(holding.owners)}" if holding.owners else ""
        state = "known here" if held.known else "known to no record here"
        yield "  ".join(filter(None, [f"{answer.account}: {holding.cluster}", owner, state]))
        for node in holding.nodes:
            state = node.state
            if state == "stopped" and holding.provider == "azure":
                state += " (disk and address still billed)"
            yield f"  {node.name}  {state}  {node.machine}  {node.placement}".rstrip()
        yield from (f"  {line}" for line in told_of(holding.nodes, holding.provider, time.time()))
        yield from (f"  {resource}" for resource in holding.resources)
    for each in answer.not_asked:
        if not each.denied:
            yield f"{answer.account}: not asked: {each}".replace("\n", "\n  ")
    if denied := [each.place for each in answer.not_asked if each.denied]:
        yield f"{answer.account}: not asked, as it may not use them: {', '.join(denied)}"


def document(answers: Sequence[Answer]) -> dict[str, Any]:
    return {"accounts": [_account_json(answer) for answer in answers]}


def _account_json(answer: Answer) -> dict[str, Any]:
    error = answer.error
    return {
        "provider": answer.account.config.provider,
        "project": answer.account.config.project,
        "clusters": [
            {
                "name": held.holding.cluster,
                "known": held.known,
                "owners": list(held.holding.owners),
                "nodes": [node_json(node) for node in held.holding.nodes],
                "overdue": [node.name for node in overdue(held.holding.nodes, time.time())],
                "resources": list(held.holding.resources),
            }
            for held in answer.held
        ],
        "not_asked": [vars(each) for each in answer.not_asked],
        "error": None
        if error is None
        else {"message": error.message, "hint": error.hint, "exit_code": answer.exit_code},
    }
