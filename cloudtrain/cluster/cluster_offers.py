"""Offers of a cluster with candidates (`any_of`, `ordered`): possible places, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from cloudtrain.cluster.plan import make_plan, plan_errors
from cloudtrain.cluster.session import account, recorded_config
from cloudtrain.config import with_candidate
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import Candidate, ClusterConfig, Plan
from cloudtrain.money.estimate import Estimate, estimate
from cloudtrain.state import Records, known_clusters


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
    """All offers in the order in which `up` tries them.

    `ordered`: as written. `any_of`: by price, then as written; those with a price that is known
    only as an upper bound after those with a price, those without any last.
    """
    found = [
        _offer(config, candidate, place)
        for candidate in config.candidates
        for place in candidate.placement
    ]
    return tuple(found if config.candidate_order == "ordered" else sorted(found, key=_rank))


def choices(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The configs that `up` tries, in their order: consecutive offers of one candidate are one,
    with their places as its placement. The config itself if it has no candidates.
    """
    if not config.candidates:
        return (config,)
    return tuple(
        replace(
            with_candidate(config, candidate), placement=tuple(offer.place for offer in together)
        )
        for candidate, together in _runs(cluster_offers(config))
    )


def settle(config: ClusterConfig) -> ClusterConfig:
    """The config as the candidate reads it in which the cluster is by the record here; if it is
    nowhere, as the first offer's does that the tables do not refuse.
    """
    if not config.candidates:
        return config
    there = standing(config)
    if there is not None:
        return with_candidate(config, there)
    found = cluster_offers(config)
    best = next((offer for offer in found if not offer.not_sold), found[0])
    return best.plan.config


def standing(config: ClusterConfig) -> Candidate | None:
    """The candidate in which the cluster is by the record here; None if it is in none of them."""
    records = Records(config.name)
    if config.name not in known_clusters() or not records.is_open():
        return None
    try:
        recorded = recorded_config(records)
    except ConfigError:
        return None
    same = [
        each
        for each in config.candidates
        if account(with_candidate(config, each)) == account(recorded)
    ]
    return max(same, key=lambda each: _likeness(each, recorded), default=None)


def each_candidate(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """The config as each candidate reads it, as written; of a cluster on record here, as the one
    does in which it is.
    """
    if not config.candidates or standing(config) is not None:
        return (config,)
    return tuple(with_candidate(config, each) for each in config.candidates)


def each_account(config: ClusterConfig) -> tuple[ClusterConfig, ...]:
    """One config for each account in which the cluster may be."""
    found: dict[object, ClusterConfig] = {}
    for each in each_candidate(config):
        found.setdefault(account(each), each)
    return tuple(found.values())


def _likeness(candidate: Candidate, recorded: ClusterConfig) -> tuple[bool, bool]:
    """Likeness of a candidate in the recorded account to the record: by machines, then places."""
    places = set(recorded.placement) <= set(candidate.placement)
    return (candidate.nodes == recorded.nodes, places)


def _offer(config: ClusterConfig, candidate: Candidate, place: str) -> ClusterOffer:
    plan = make_plan(replace(with_candidate(config, candidate), placement=(place,)))
    return ClusterOffer(
        candidate=candidate,
        plan=plan,
        price=estimate(plan),
        not_sold="; ".join(plan_errors(plan)),
    )


def _rank(offer: ClusterOffer) -> tuple[int, float]:
    price = offer.price
    if price is None or price.most is None:
        return (2, 0.0)
    return (0, price.per_hour) if price.per_hour is not None else (1, price.most)


def _runs(found: tuple[ClusterOffer, ...]) -> Iterator[tuple[Candidate, list[ClusterOffer]]]:
    """Consecutive offers of one candidate."""
    for _, together in groupby(found, key=lambda offer: id(offer.candidate)):
        listed = list(together)
        yield listed[0].candidate, listed
