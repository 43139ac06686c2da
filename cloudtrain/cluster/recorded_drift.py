"""Changes that `up` would make, from the record alone, without a query."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from cloudtrain.cloud import cloud_of
from cloudtrain.cluster.drift import Change, Drift, creation_facts_of, drift_by_record
from cloudtrain.cluster.lifetime import words
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import recorded_config
from cloudtrain.config import load_again
from cloudtrain.config.location import place_in_file
from cloudtrain.errors import CloudtrainError, ConfigError
from cloudtrain.events import Made, known_end, nodes_standing
from cloudtrain.model import ClusterConfig, Node, Plan
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
    """Note on a changed lifetime that `up` would apply, from the record."""
    config = plan.config
    known = known_end(Records(config.name).events())
    wanted = config.limits.max_lifetime
    if fixed_end(config) or known is None or known.lifetime == wanted:
        return ()
    place = place_in_file(config, "limits.max_lifetime")
    return (
        f"{config.name} was created with max_lifetime {words(known.lifetime)}, {place} says "
        f"{words(wanted)}: `up` moves the end of its nodes",
    )


def fixed_ends(plan: Plan, nodes: Iterable[Node | str]) -> tuple[Change, ...]:
    """Return the drift of the lifetime on clouds that cannot move the end of a running node."""
    config = plan.config
    known = known_end(Records(config.name).events())
    wanted = config.limits.max_lifetime
    why = fixed_end(config)
    if not why or known is None or known.lifetime == wanted:
        return ()
    planned = [node.name for node in plan.nodes]
    names = [node if isinstance(node, str) else node.name for node in nodes]
    return (
        Change(
            nodes=tuple(name for name in names if name in planned),
            field="limits.max_lifetime",
            there=f"created with max_lifetime {words(known.lifetime)} ({why})",
            wanted=words(wanted),
        ),
    )
