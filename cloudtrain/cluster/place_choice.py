"""Lists the offers of a cluster with candidates, and tries them until one has room."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from cloudtrain.cluster.lifetime import least_seconds
from cloudtrain.cluster.plan import SpotFallback, make_plan, plan_errors
from cloudtrain.cluster.session import Handle, account, recorded_config
from cloudtrain.config import with_candidate
from cloudtrain.console.forwarding import WaitingConsole
from cloudtrain.console.times import duration
from cloudtrain.core import errors, moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.events import (
    BudgetContinued,
    ClusterGone,
    made_here,
    nodes_standing,
    not_given_back,
    pending_nodes,
    to_line,
    was_ready,
)
from cloudtrain.core.model import Candidate, ClusterConfig, Plan
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock, Retry
from cloudtrain.money.estimate import Estimate, budget_seconds, estimate
from cloudtrain.money.node_hours import charged_hours
from cloudtrain.money.prices import per_hour
from cloudtrain.state import Records, known_clusters

T = TypeVar("T")

NO_ROOM = (errors.CapacityError, errors.QuotaError)
NOT_HERE = (*NO_ROOM, errors.CredentialsError, errors.PermissionsError)
"""Errors after which another choice may have room; nothing may stay behind."""

ROUNDS = Retry(pause=15.0, backoff=2.0, longest=300.0, at_least=1)
"""Pauses between the rounds of `--wait`, in each of which every choice is tried."""


def in_first_with_room(
    handle: Handle,
    accept: Callable[[Handle, Console], None],
    attempt: Callable[[Handle, Console], T],
    console: Console,
    *,
    wait: float | None = None,
    clock: Clock = CLOCK,
) -> T:
    """Attempt in each choice until one has room for all nodes; the holder of the lock calls it.

    `accept` raises what rules a choice out before anything is created there, `attempt` may create
    something: before the next choice in another account all of it is deleted. An existing cluster
    stays where it is. `wait`: seconds in which all choices are tried again; if there is only one,
    its missing spot nodes on demand after `train.spot_retries` rounds. Raises the one error of all
    choices, or one with the text of each and the exit code for capacity if it is among them."""
    since, fallback = budget_since(handle.records), SpotFallback(console, _over_budget)
    if wait is None:
        return _one_round(handle, accept, attempt, console, since, fallback)
    heard, until = console, clock.now() + wait

    def refused(error: errors.CloudError, pause: float, _: float) -> None:
        nonlocal heard
        heard = WaitingConsole(console)
        only = _to_try(handle.config)
        if len(only) == 1:
            here = Handle(only[0])
            fallback.refused(here.plan, lambda: _missing(here))
        last = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
        billed = ", ".join(nodes_standing(handle.records.events()))
        cost = f"billed meanwhile: {billed}" if billed else "nothing is billed meanwhile"
        console.warn(
            f"no room: {error.brief}; trying again in {pause:.0f} s, "
            f"until {last}; {cost}; Ctrl-C ends the wait"
        )

    rounds = replace(ROUNDS, within=wait)
    return rounds.call(
        lambda: _one_round(handle, accept, attempt, heard, since, fallback),
        on=NO_ROOM,
        before_pause=refused,
        clock=clock,
    )


def _over_budget(plan: Plan) -> str | None:
    bill, limits = estimate(plan), plan.config.limits
    seconds = budget_seconds(bill, plan.config) if bill is not None else None
    if seconds is None or seconds >= least_seconds(limits):
        return None
    return f"limits.budget of {limits.budget:g} $ would pay for {duration(seconds)} of it"


def _missing(handle: Handle) -> list[str]:
    """The plan's nodes that do not exist; none if the cloud does not answer."""

    def ask() -> list[str]:
        there = {node.name for node in handle.provider.nodes(handle.config.name)}
        return [name for name in handle.plan.names if name not in there]

    return errors.if_told(ask, [])


def _one_round(
    handle: Handle,
    accept: Callable[[Handle, Console], None],
    attempt: Callable[[Handle, Console], T],
    console: Console,
    since: float,
    fallback: SpotFallback,
) -> T:
    to_try = _to_try(handle.config)
    if len(to_try) == 1:
        here = handle if to_try[0] == handle.config else Handle(to_try[0])
        here.on_demand = fallback.names
        accept(here, console)
        return attempt(here, console)
    refusals: list[errors.PlaceRefusal] = []
    for number, config in enumerate(to_try):
        here, place = Handle(config), f"{config.provider} {', '.join(config.placement)}"
        price = per_hour(estimate(here.plan))
        console.say(f"trying {place}, {price}: {number + 1} of {len(to_try)}")
        try:
            accept(here, console)
        except errors.CloudtrainError as error:
            refusals.append(errors.PlaceRefusal(place=place, error=error))
            console.warn(f"not in {_shown(refusals[-1])}")
            continue
        _leave_other_account(here.records, config, console)
        continue_budget(here, since)
        try:
            return attempt(here, console)
        except NOT_HERE as error:
            refusals.append(errors.PlaceRefusal(place=place, error=error))
            console.warn(f"not in {_shown(refusals[-1])}")
            _clear(here, error, console)
    _leave_other_account(handle.records, None, console)
    raise _no_choice(refusals)


def budget_since(records: Records) -> float:
    """Unix time from which the cluster's budget counts: its first node, or now."""
    spans = charged_hours(records.events()) if records.is_open() else ()
    return min((span.begin for span in spans), default=moments.now())


def continue_budget(here: Handle, since: float) -> None:
    """Count what earlier candidates, now given up, have cost since then against the same budget."""
    records, continued = here.records, BudgetContinued(since=since)
    if here.config.limits.budget is None or records.is_open():
        return
    after = [to_line(event, time=moments.now(), pid=0) for event in (ClusterGone(), continued)]
    if charged_hours((*records.events(), *after)):
        records.create()
        records.journal(continued)


def _to_try(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The choices in their order. What an interrupted `up` began comes first, and is the only one
    if its nodes were ready once."""
    found = choices(config)
    there = standing(config)
    events = Handle(config).records.events() if there is not None else ()
    if there is None or not made_here(events):
        return found
    begun = with_candidate(config, there)
    if was_ready(events):
        return (begun,)
    return (begun, *(each for each in found if not _is_part(each, begun)))


def _is_part(choice: ClusterConfig, whole: ClusterConfig) -> bool:
    """True for a choice of the candidate that `whole` has with all places."""
    same_nodes = account(choice) == account(whole) and choice.nodes == whole.nodes
    return same_nodes and set(choice.placement) <= set(whole.placement)


def _clear(here: Handle, error: errors.CloudtrainError, console: Console) -> None:
    """Delete nodes that a refused attempt may have left: its rollback failed, or nobody knows."""
    events = here.records.events()
    if pending_nodes(events) or not_given_back(events):
        try:
            _leave(here, console)
        except errors.CloudtrainError as second:
            raise errors.NodesError({"up": error, "roll back": second}) from error


def _leave_other_account(records: Records, config: ClusterConfig | None, console: Console) -> None:
    """Delete all that the record knows in another account than the config's (None: in any), before
    the record may name that one."""
    if not records.is_open() or not made_here(records.events()):
        return
    recorded = recorded_config(records)
    if config is None or account(recorded) != account(config):
        _leave(Handle(recorded), console)


def _leave(handle: Handle, console: Console) -> None:
    """Delete everything of the cluster in this account; the cloud is asked what is left."""
    records, provider = handle.records, handle.provider
    with console.stage(f"roll back on {provider.name}", 1):
        provider.destroy(handle.config.name, records.journal, pending_nodes(records.events()))
    records.close()


def _shown(refusal: errors.PlaceRefusal) -> str:
    """For want of room its last zone is enough: each was reported when it was tried."""
    return refusal.brief if isinstance(refusal.error, NO_ROOM) else str(refusal)


def _no_choice(refusals: Sequence[errors.PlaceRefusal]) -> errors.CloudtrainError:
    """One error for all choices; one for capacity if waiting may help in any of them."""
    refused = [refusal.error for refusal in refusals]
    if len({error.message for error in refused}) == 1:
        return refused[0]
    for_room = [error for error in refused if isinstance(error, NO_ROOM)]
    worst = max(map(type, for_room or refused), key=errors.exit_code)
    text = "\n".join(["no candidate can provide the nodes:", *map(_shown, refusals)])
    hint = next((error.hint for error in refused if error.hint and error not in for_room), None)
    if for_room:
        hint = "`--wait 6h` tries all of them again until one has room; or add candidates"
    error = errors.of_kind(worst, text, hint)
    return (
        error.copy_with(refusals=tuple(refusals)) if isinstance(error, errors.CloudError) else error
    )


# ── offers ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class ClusterOffer:
    """One place for all nodes."""

    candidate: Candidate
    plan: Plan
    """Its config has the candidate's values; its placement is this place alone."""
    price: Estimate | None
    not_sold: str = ""
    """Why the tables of machines refuse it; "" if they do not."""

    @property
    def place(self) -> str:
        return self.plan.config.placement[0]


def cluster_offers(config: ClusterConfig) -> tuple[ClusterOffer, ...]:
    """All offers in the order in which `up` tries them. `ordered`: as written. `any_of`: by price,
    then as written; those with a price that is known only as an upper bound after those with a
    price, those without any last."""
    found = []
    for candidate in config.candidates:
        for place in candidate.placement:
            plan = make_plan(replace(with_candidate(config, candidate), placement=(place,)))
            unsold, price = "; ".join(plan_errors(plan)), estimate(plan)
            found.append(ClusterOffer(candidate=candidate, plan=plan, price=price, not_sold=unsold))
    return tuple(found if config.candidate_order == "ordered" else sorted(found, key=_rank))


def choices(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The configs that `up` tries, in their order: consecutive offers of one candidate are one,
    with their places as its placement. The config itself if it has no candidates."""
    if not config.candidates:
        return (config,)
    found = []
    for _, together in groupby(cluster_offers(config), key=lambda offer: id(offer.candidate)):
        offers = list(together)
        places = tuple(offer.place for offer in offers)
        found.append(replace(with_candidate(config, offers[0].candidate), placement=places))
    return tuple(found)


def settle(config: ClusterConfig) -> ClusterConfig:
    """The config as the candidate reads it in which the cluster is by the record here; if it is
    nowhere, as the first offer's does that the tables do not refuse."""
    if not config.candidates:
        return config
    there = standing(config)
    if there is not None:
        return with_candidate(config, there)
    found = cluster_offers(config)
    return next((offer for offer in found if not offer.not_sold), found[0]).plan.config


def standing(config: ClusterConfig) -> Candidate | None:
    """The candidate in which the cluster is by the record here; None if it is in none of them."""
    records = Records(config.name)
    if config.name not in known_clusters() or not records.is_open():
        return None
    try:
        recorded = recorded_config(records)
    except errors.ConfigError:
        return None
    same = [
        each
        for each in config.candidates
        if account(with_candidate(config, each)) == account(recorded)
    ]

    def likeness(each: Candidate) -> tuple[bool, bool]:
        """By machines, then by places."""
        return each.nodes == recorded.nodes, set(recorded.placement) <= set(each.placement)

    return max(same, key=likeness, default=None)


def each_candidate(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The config as each candidate reads it; of a recorded cluster, as the one does where it is."""
    if not config.candidates or standing(config) is not None:
        return (config,)
    return tuple(with_candidate(config, each) for each in config.candidates)


def each_account(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """One config for each account in which the cluster may be."""
    found: dict[object, ClusterConfig] = {}
    for each in each_candidate(config):
        found.setdefault(account(each), each)
    return tuple(found.values())


def _rank(offer: ClusterOffer) -> tuple[int, float]:
    price = offer.price
    if price is None or price.most is None:
        return (2, 0.0)
    return (0, price.per_hour) if price.per_hour is not None else (1, price.most)
