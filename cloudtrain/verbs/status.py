"""`cloudtrain status`: clusters, their nodes as their provider lists them now, and their runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import CloudtrainError
from cloudtrain.model import Node, Run
from cloudtrain.records import Holder, Records, known
from cloudtrain.records.run_json import run_to_json

LATEST = 5
"""So many runs are shown of each cluster; the JSON has all."""


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    name: str
    provider: str | None
    """As the record has it; None where that cannot be read."""
    strategy: str | None
    open: bool
    """False once `down` has seen that nothing is left."""
    since: float | None
    """The first event on record, Unix time."""
    holder: Holder | None
    """Who works on it now."""
    nodes: tuple[Node, ...] | None
    """As the provider lists them; None where it was not asked or did not answer."""
    runs: tuple[Run, ...]
    """From the oldest on."""
    faults: tuple[str, ...]
    """Records that cannot be read."""
    error: CloudtrainError | None = None
    """Why the provider did not answer."""


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    clusters: tuple[ClusterStatus, ...]

    @property
    def exit_code(self) -> int:
        errors = [cluster.error for cluster in self.clusters if cluster.error is not None]
        return max((error.exit_code for error in errors), default=0)


def status(name: str | None, *, offline: bool) -> StatusReport:
    """Of one cluster, or all that are known here. Those taken down are asked for by name only.

    `offline` reads records alone and loads nothing that it can do without.
    """
    names = known() if name is None else (name,)
    recorded = [on_record(name) for name in names]
    if offline:
        return StatusReport(clusters=tuple(recorded))
    return StatusReport(
        clusters=tuple(asked(one) if one.open or name is not None else one for one in recorded)
    )


def on_record(name: str) -> ClusterStatus:
    records = Records(name)
    runs, faults = records.runs_and_faults()
    config: dict[str, Any] = {}
    try:
        config = records.config()
    except CloudtrainError as error:
        faults = (error.message, *faults)
    return ClusterStatus(
        name=name,
        provider=config.get("provider"),
        strategy=config.get("strategy"),
        open=records.is_open(),
        since=records.since(),
        holder=records.holder(),
        nodes=None,
        runs=runs,
        faults=faults,
    )


def asked(cluster: ClusterStatus) -> ClusterStatus:
    """The same with its nodes, or with the reason why they are not known."""
    from dataclasses import replace

    from cloudtrain.session import open_provider, recorded_config

    try:
        provider = open_provider(recorded_config(Records(cluster.name)))
        nodes = provider.nodes(cluster.name)
    except CloudtrainError as error:
        return replace(cluster, error=error)
    return replace(cluster, nodes=tuple(sorted(nodes, key=lambda node: node.rank)))


# ── as text ──────────────────────────────────────────────────────────────────


def report_text(report: StatusReport, now: float) -> str:
    if not report.clusters:
        return "no cluster is known here: `cloudtrain up FILE` makes one"
    return "\n\n".join("\n".join(_cluster(cluster, now)) for cluster in report.clusters)


def _cluster(cluster: ClusterStatus, now: float) -> Iterator[str]:
    yield "  ".join(
        filter(None, [cluster.name, cluster.provider, cluster.strategy, _state(cluster)])
    )
    if cluster.holder is not None:
        yield f"  at work: {cluster.holder}"
    width = max((len(node.task) for node in cluster.nodes or ()), default=0)
    for node in cluster.nodes or ():
        place = f"  {node.placement}" if node.placement else ""
        yield f"  {node.task:{width}}  {node.state:8}  {node.address}:{node.ssh_port}{place}"
    if cluster.error is not None:
        yield f"  nodes: not known: {cluster.error.message}".replace("\n", "\n    ")
        if cluster.error.hint:
            yield f"    hint: {cluster.error.hint}"
    if len(cluster.runs) > LATEST:
        yield f"  {len(cluster.runs) - LATEST} earlier runs"
    for run in cluster.runs[-LATEST:]:
        yield from _run(run, now)
    for fault in cluster.faults:
        yield f"  unreadable: {fault}"


def _state(cluster: ClusterStatus) -> str:
    since = f", since {_clock(cluster.since)}" if cluster.since is not None else ""
    if not cluster.open and not cluster.nodes:
        return "down"
    if cluster.nodes is None:
        return f"nodes not asked for{since}"
    running = sum(node.state == "running" for node in cluster.nodes)
    return f"{running} of {len(cluster.nodes)} nodes running{since}"


def _run(run: Run, now: float) -> Iterator[str]:
    attempts = f"attempt {run.attempts[-1].number}" if run.attempts else "not started"
    took = _duration((run.ended or now) - run.created)
    begun = f"{_clock(run.created)}, {took}"
    yield "  ".join(["  run", run.id, run.state, attempts, begun, run.store or ""]).rstrip()
    cause = run.attempts[-1].cause if run.attempts else None
    if cause is not None and run.state != "succeeded":
        yield f"    {cause.task} on {cause.node}: {cause.text}".replace("\n", "\n      ")
        if cause.hint:
            yield f"    hint: {cause.hint}"


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


# ── as JSON ──────────────────────────────────────────────────────────────────


def report_json(report: StatusReport) -> dict[str, Any]:
    return {"clusters": [_cluster_json(cluster) for cluster in report.clusters]}


def _cluster_json(cluster: ClusterStatus) -> dict[str, Any]:
    nodes, holder, error = cluster.nodes, cluster.holder, cluster.error
    return {
        "name": cluster.name,
        "provider": cluster.provider,
        "strategy": cluster.strategy,
        "open": cluster.open,
        "since": cluster.since,
        "at_work": None if holder is None else vars(holder),
        "nodes": None if nodes is None else [node_json(node) for node in nodes],
        "runs": [run_to_json(run) for run in cluster.runs],
        "unreadable": list(cluster.faults),
        "error": None
        if error is None
        else {"message": error.message, "hint": error.hint, "exit_code": error.exit_code},
    }


def node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "role": node.role,
        "index": node.index,
        "state": node.state,
        "address": node.address,
        "internal": node.internal,
        "ssh_port": node.ssh_port,
        "user": node.user,
        "placement": node.placement,
    }
