"""Changes that `up` would make, from the record alone, without a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from cloudtrain.cluster.drift import Change, Drift, creation_facts_of, drift_by_record
from cloudtrain.cluster.lifetime import SAME, moment, words
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import recorded_config
from cloudtrain.config import load_again
from cloudtrain.config.location import place_in_file
from cloudtrain.core import moments
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudtrainError, ConfigError
from cloudtrain.core.events import Line, Made, known_end, nodes_standing
from cloudtrain.core.model import ClusterConfig, Node, Plan
from cloudtrain.money.budget import latest_end
from cloudtrain.money.node_hours import charged_hours
from cloudtrain.state import Records


def recorded_drift(plan: Plan) -> Drift:
    """Drift against the recorded nodes, without a query."""
    nodes = on_record(plan)
    if not nodes:
        return Drift()
    found = drift_by_record(plan, nodes)
    return replace(found, changes=(*found.changes, *fixed_ends(plan, nodes)))


def on_record(plan: Plan) -> dict[str, Made]:
    """Nodes that exist according to the record, each with its creation facts.

    Facts that a record of an earlier version lacks are taken from the recorded config.
    """
    records = Records(plan.config.name)
    if not records.is_open():
        return {}
    found = nodes_standing(records.events())
    if any(not facts for facts in found.values()):
        with suppress(CloudtrainError):
            before = make_plan(recorded_config(records))
            known = {node.name: creation_facts_of(before.config, node) for node in before.nodes}
            return {name: facts or known.get(name, {}) for name, facts in found.items()}
    return found


def override_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on `--set` values of the last call that this one does not give, and the file has not.

    The record keeps them as part of the file, so without them the file says something else.
    """
    records = Records(config.name)
    if config.source == "" or not records.is_open():
        return ()
    try:
        recorded = recorded_config(records).overrides
    except ConfigError:
        return ()
    given = {_field(text) for text in config.overrides}
    last = {_field(text): text for text in recorded if _field(text) not in given}
    return tuple(
        f"{config.name} was last used with --set {text}, which this call does not give: "
        f"{place_in_file(config, field)} counts"
        for field, text in last.items()
        if _matters(config, text)
    )


def _field(override: str) -> str:
    return override.partition("=")[0].strip()


def _matters(config: ClusterConfig, override: str) -> bool:
    """True if the config would be another one with this `--set`."""
    try:
        with_it = load_again(config, override)
        return replace(with_it, overrides=config.overrides) != config
    except (CloudtrainError, OSError):
        return True


def fixed_end(config: ClusterConfig) -> str:
    """Return why the end of a running node cannot be moved; "" if it can."""
    cloud = cloud_of(config.provider)
    return cloud.fixed_end if cloud else ""


def lifetime_note(plan: Plan) -> tuple[str, ...]:
    """Notes on a changed lifetime or budget that `up` would apply, from the record."""
    config = plan.config
    known = known_end(Records(config.name).events())
    if fixed_end(config) or known is None:
        return ()
    limits = config.limits
    changes = (
        ("max_lifetime", words(known.lifetime), words(limits.max_lifetime)),
        ("budget", dollars(known.budget), dollars(limits.budget)),
    )
    return tuple(
        f"{config.name} was created with {field} {before}, "
        f"{place_in_file(config, f'limits.{field}')} says {wanted}: `up` moves the end of its nodes"
        for field, before, wanted in changes
        if before != wanted
    )


def dollars(amount: float | None) -> str:
    return "off" if amount is None else f"{amount:g} $"


def fixed_ends(plan: Plan, nodes: Iterable[Node | str]) -> tuple[Change, ...]:
    """Return the drift of the lifetime, and of a lower budget, where the end of a running node
    cannot be moved: by the cloud, or as an earlier version did not record when it began.
    """
    config = plan.config
    events = Records(config.name).events()
    known = known_end(events)
    wanted = config.limits.max_lifetime
    why = fixed_end(config)
    planned = [node.name for node in plan.nodes]
    names = [node if isinstance(node, str) else node.name for node in nodes]
    if known is None:
        return _unrecorded_lifetime(config, tuple(name for name in names if name in planned))
    if not why:
        return ()
    if known.lifetime == wanted:
        return _exceeded_budget(config, events, tuple(n for n in names if n in planned))
    return (
        Change(
            nodes=tuple(name for name in names if name in planned),
            field="limits.max_lifetime",
            there=f"created with max_lifetime {words(known.lifetime)} ({why})",
            wanted=words(wanted),
        ),
    )


def _unrecorded_lifetime(config: ClusterConfig, names: tuple[str, ...]) -> tuple[Change, ...]:
    """Drift of the lifetime of nodes whose own an earlier version did not record."""
    wanted = config.limits.max_lifetime
    if cloud_of(config.provider) is None or not names:
        return ()
    try:
        before = recorded_config(Records(config.name)).limits.max_lifetime
    except CloudtrainError:
        return ()
    if before == wanted:
        return ()
    return (
        Change(
            nodes=names,
            field="limits.max_lifetime",
            there=f"created with max_lifetime {words(before)} by an earlier version of cloudtrain, "
            "which did not record since when it counts",
            wanted=words(wanted),
        ),
    )


def _exceeded_budget(
    config: ClusterConfig, events: Sequence[Line], names: tuple[str, ...]
) -> tuple[Change, ...]:
    """Drift of nodes whose end, which stays as it is, a lower budget does not pay for."""
    known, limit, cloud = known_end(events), config.limits.budget, cloud_of(config.provider)
    if known is None or limit is None or limit == known.budget or cloud is None:
        return ()
    spans, now = charged_hours(events), moments.now()
    end = latest_end(limit, cloud, spans, now)
    ends = [span.expires for span in spans if span.end is None and span.expires is not None]
    if end is not None and max(ends, default=0.0) <= end + SAME:
        return ()
    there = f"created with a budget of {dollars(known.budget)}"
    last = f", and end at {moment(max(ends))}" if ends else ""
    return (
        Change(
            nodes=names,
            field="limits.budget",
            there=f"{there}{last} ({cloud.fixed_end})",
            wanted=dollars(limit),
        ),
    )
