"""Compares the existing nodes with the current config.

The cloud's facts about a node count first; for the rest, the journal's `create` events say how it
was requested. Records of earlier versions lack these: such fields are not compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cloudtrain.cluster.lifetime import SAME, moment, words
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import recorded_config
from cloudtrain.config import load_again
from cloudtrain.config.location import place_in_file
from cloudtrain.core import moments
from cloudtrain.core.cloud import cloud_of, facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.core.events import Line, Made, known_end, nodes_requested, nodes_standing
from cloudtrain.core.model import ON_DEMAND, SPOT, ClusterConfig, Node, NodePlan, Plan
from cloudtrain.core.paths import some
from cloudtrain.core.task_id import TaskId
from cloudtrain.money.budget import latest_end
from cloudtrain.money.node_hours import charged_hours
from cloudtrain.state import Records

if TYPE_CHECKING:
    from cloudtrain.config.section import Fact


@dataclass(frozen=True, kw_only=True)
class Change:
    """Field that differs: `there` is the nodes' value, `wanted` the config's."""

    nodes: tuple[str, ...]
    field: str
    there: str
    wanted: str
    replaces: bool = True
    """True if recreated nodes would match."""

    def text(self, config: ClusterConfig) -> str:
        return f"{some(self.nodes)}: {self.there}, {self.says(config)}"

    def says(self, config: ClusterConfig) -> str:
        return f"{place_in_file(config, self.field)} says {self.wanted}"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Differences that `up` must not ignore silently."""

    extra: tuple[str, ...] = ()
    """Nodes that the config does not name."""
    changes: tuple[Change, ...] = ()

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of the nodes that would have to be replaced."""
        return tuple(dict.fromkeys(name for each in self.changes for name in each.nodes))

    def lines(self, config: ClusterConfig) -> list[str]:
        lines = [change.text(config) for change in self.changes]
        for name in self.extra:
            task = TaskId.of_node(name, config.name)
            role = task.role if task else name
            group = config.nodes.get(role)
            wanted = f"{group.count} of {role}" if group else f"no {role}"
            place = place_in_file(config, f"nodes.{role}.count")
            lines.append(f"{name} exists, {place} says {wanted}")
        return lines


@cache
def compared() -> dict[str, Fact]:
    """The compared fields, except placement and lifetime, which belong to the whole cluster."""
    from cloudtrain.config.section import rows
    from cloudtrain.config.sections import ConfigFile

    return {row.name: row.fact for row in rows(ConfigFile) if row.fact is not None}


def _key(name: str, fact: Fact) -> str:
    return fact.key or name.rpartition(".")[2]


def creation_facts_of(config: ClusterConfig, node: NodePlan) -> dict[str, Any]:
    """Creation facts of this node, as the journal keeps them with its `create`."""
    if facts_of(config.provider).takes_hosts:
        hosts = [host for host in config.hosts if host.role == node.role]
        host = hosts[node.index] if node.index < len(hosts) else None
        return {"host": f"{host.user or ''}@{host.address}:{host.port}"} if host else {}
    if not is_cloud(config.provider):
        return {}
    found = {
        _key(name, fact): fact.recorded(_value(config, node, name))
        for name, fact in compared().items()
    }
    found["lifetime"] = config.limits.max_lifetime
    return found if config.limits.budget is None else {**found, "budget": config.limits.budget}


def _value(config: ClusterConfig, node: NodePlan, name: str) -> Any:
    """The value of `network.subnet` in the config; of `nodes.ROLE.machine`, that of the plan."""
    if name.startswith("nodes."):
        return getattr(node, name.rpartition(".")[2])
    return attrgetter(name)(config)


def drift(plan: Plan, nodes: Sequence[Node], events: Iterable[Line]) -> Drift:
    """Drift between the plan and these existing nodes."""
    planned = {node.name: node for node in plan.nodes}
    recorded = nodes_requested(events)
    there = {
        node.name: _facts(node, planned[node.name], recorded.get(node.name, {}), plan.config)
        for node in nodes
        if node.name in planned
    }
    return Drift(
        extra=tuple(node.name for node in nodes if node.name not in planned),
        changes=tuple(_merged(_changes(plan, there))),
    )


def drift_by_record(plan: Plan, recorded: Mapping[str, Made]) -> Drift:
    """Return the drift of the recorded nodes, from the record alone."""
    planned = {node.name for node in plan.nodes}
    there = {name: _as_now(facts) for name, facts in recorded.items() if name in planned}
    return Drift(
        extra=tuple(name for name in recorded if name not in planned),
        changes=tuple(_merged(_changes(plan, there))),
    )


def refuse_drift(found: Drift, config: ClusterConfig) -> None:
    """Raise UsageError for any difference, with what to do about it."""
    lines = found.lines(config)
    if not lines:
        return
    cures = []
    if any(change.replaces for change in found.changes):
        cures.append("`cloudtrain up --replace` replaces the nodes that differ")
    if found.extra:
        cures.append("`cloudtrain up --shrink` deletes the extra nodes")
    lands = ", after landing what they hold; or " if cures else ""
    hint = " and ".join(cures) + f"{lands}run `cloudtrain down {config.name}` first"
    raise UsageError("\n".join(lines), hint=hint)


def _facts(node: Node, planned: NodePlan, recorded: Made, config: ClusterConfig) -> dict[str, Any]:
    """Return the facts of one node: those recorded, overridden by what the cloud reports now."""
    facts = _as_now(recorded)
    if not is_cloud(config.provider):
        return facts
    if node.machine:
        same = node.machine.lower() == (planned.machine or "").lower()
        facts["machine"] = planned.machine if same else node.machine
    cloud, bought = cloud_of(config.provider), node.provisioning
    same = cloud is not None and cloud.same_purchase(bought, planned.provisioning)
    facts["provisioning"] = str(planned.provisioning if same else bought)
    if node.placement:
        facts["placement"] = node.placement
    if node.disk_gb and planned.disk_gb and node.disk_gb < planned.disk_gb:
        facts["disk_gb"] = node.disk_gb
    # One that somebody else attached (a policy of the account) is no drift of ours.
    if node.identities is not None and config.identity is not None:
        own = [each for each in node.identities if _same_identity(config, each, config.identity)]
        facts["identity"] = config.identity if own else ", ".join(node.identities) or None
    return facts


def _as_now(recorded: Made) -> dict[str, Any]:
    """Facts as they are recorded today: earlier versions recorded `spot` as true or false."""
    facts = dict(recorded)
    if "spot" in facts:
        facts["provisioning"] = str(SPOT if facts.pop("spot") else ON_DEMAND)
    return facts


def _changes(plan: Plan, there: Mapping[str, Made]) -> Iterator[Change]:
    """One change for each node and field."""
    config = plan.config
    for node in plan.nodes:
        facts = there.get(node.name)
        if facts is None:
            continue
        wanted = creation_facts_of(config, node)
        if facts.get("host", wanted.get("host")) != wanted.get("host"):
            numbers = [n for n, host in enumerate(config.hosts) if host.role == node.role]
            number = numbers[node.index] if node.index < len(numbers) else 0
            yield Change(
                nodes=(node.name,),
                field=f"hosts[{number}].address",
                there=f"on {facts['host'].strip('@')}",
                wanted=str(wanted.get("host")).strip("@"),
                replaces=False,
            )
        for name, fact in compared().items():
            key = _key(name, fact)
            if key not in facts or key not in wanted:
                continue
            if facts[key] != wanted[key] and not _chosen(key, config, node, facts):
                yield Change(
                    nodes=(node.name,),
                    field=name.replace("ROLE", node.role),
                    there=fact.worded(facts[key]),
                    wanted=fact.worded(wanted[key]),
                )
        place = facts.get("placement")
        is_chosen = is_cloud(config.provider)  # elsewhere it is the machine's own address
        if place and is_chosen and not any(serves(wish, place) for wish in config.placement):
            yield Change(
                nodes=(node.name,),
                field="placement",
                there=f"in {place}",
                wanted=", ".join(config.placement),
            )


def _chosen(key: str, config: ClusterConfig, node: NodePlan, facts: Made) -> bool:
    """True if the difference comes from a default or a fallback of the file, which does not count
    as a change of the file, or from another spelling."""
    group = config.nodes[node.role]
    if key == "identity":
        return _same_identity(config, facts[key], config.identity)
    if key == "provisioning":  # `up --wait` or a restart may have fallen back to on demand
        fallen_back = node.spot and facts[key] == str(ON_DEMAND)
        return fallen_back and config.train.spot_retries is not None
    if key == "machine":
        same = facts.get("accelerator", node.accelerator and str(node.accelerator))
        return group.machine is None and same == (node.accelerator and str(node.accelerator))
    if key == "accelerator":  # determined by the machine that it comes with
        return group.accelerator is None and facts.get("machine") == node.machine
    return False


def _same_identity(config: ClusterConfig, one: str | None, other: str | None) -> bool:
    cloud = cloud_of(config.provider)
    return cloud is not None and cloud.identity is not None and cloud.identity.same(one, other)


def serves(wish: str, place: str) -> bool:
    """True if `wish`, a zone or region of `placement`, includes the zone `place`."""
    wish, place = (text.replace(" ", "").lower() for text in (wish, place))
    return re.fullmatch(rf"{re.escape(wish)}(-.*|[a-z])?", place) is not None


def _merged(changes: Iterator[Change]) -> Iterator[Change]:
    """Merge changes of nodes that differ in the same way."""
    found: dict[Change, list[str]] = {}
    for change in changes:
        found.setdefault(replace(change, nodes=()), []).extend(change.nodes)
    for change, nodes in found.items():
        yield replace(change, nodes=tuple(nodes))


# ── by the record alone ────────────────────────────────────────────────────────


def recorded_drift(plan: Plan) -> Drift:
    """Drift against the recorded nodes, without a query."""
    nodes = on_record(plan)
    if not nodes:
        return Drift()
    found = drift_by_record(plan, nodes)
    return replace(found, changes=(*found.changes, *fixed_ends(plan, nodes)))


def on_record(plan: Plan) -> dict[str, Made]:
    """Nodes that exist according to the record, each with its creation facts. Facts that a record
    of an earlier version lacks are taken from the recorded config."""
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
    The record keeps them as part of the file, so without them the file says something else."""
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
        return replace(load_again(config, override), overrides=config.overrides) != config
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
    cannot be moved: by the cloud, or as an earlier version did not record when it began."""
    config = plan.config
    events = Records(config.name).events()
    known = known_end(events)
    wanted = config.limits.max_lifetime
    why = fixed_end(config)
    there = [node if isinstance(node, str) else node.name for node in nodes]
    names = tuple(name for name in there if name in plan.names)
    if known is None:
        return _unrecorded_lifetime(config, names)
    if not why:
        return ()
    if known.lifetime == wanted:
        return _exceeded_budget(config, events, names)
    return (
        Change(
            nodes=names,
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
