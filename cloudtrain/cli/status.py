"""`cloudtrain status`"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.flag_variables import typed
from cloudtrain.cli.nodes import billing_lines, node_json, node_lines
from cloudtrain.cli.options import (
    debug_option,
    json_option,
    name_argument,
    print_json,
    store_option,
)
from cloudtrain.cli.proof_lines import proof_lines
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.commands.node_notes import overdue
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.console.lines import printable
from cloudtrain.console.times import clock, duration
from cloudtrain.errors import UsageError
from cloudtrain.retry import Retry, poll_until
from cloudtrain.run_record import Run, resumed, run_to_json

if TYPE_CHECKING:
    from cloudtrain.commands.run_progress import RunProgress
    from cloudtrain.commands.utilization import Utilization
    from cloudtrain.model import ClusterConfig

EVERY = 2.0
"""Seconds between two refreshes of --watch."""

CLEAR = "\x1b[H\x1b[J"

LATEST = 5
"""Runs shown of each cluster; the JSON has all."""


@click.command(
    short_help=COMMANDS["status"], epilog="\b\nExample:\n  cloudtrain status mnist --watch"
)
@name_argument()
@click.option("--watch", is_flag=True, help="Refresh every 2 seconds until Ctrl-C.")
@click.option("--offline", is_flag=True, help="Show local records only; query no provider.")
@store_option
@json_option
@debug_option
def command(name: str | None, watch: bool, offline: bool, store: str | None, as_json: bool) -> int:
    """Show clusters: their nodes as the provider lists them now, their runs, cost so far and
    expiry. Without NAME, all known clusters. With --store, or a FILE without a local record, shows
    the landed runs.
    """
    if offline and store is not None and not typed("store"):
        store = None
    if offline and store is not None:
        raise UsageError("--store and --offline exclude each other", hint="omit --offline")
    chosen: str | None = None
    config: ClusterConfig | None = None
    if name is not None:
        chosen, config = (name_of(name), None) if offline else landed_target(name, store)

    def look() -> StatusReport:
        return status(chosen, config=config, store=store, offline=offline)

    if watch:
        if as_json and typed("as_json"):
            raise UsageError("--watch and --json exclude each other", hint="omit --watch")
        return watched(look)
    report = look()
    if as_json:
        print_json(report_json(report, time.time()))
    else:
        click.echo(printable(report_text(report, time.time())))
    return report.exit_code(time.time())


def watched(look: Callable[[], StatusReport]) -> int:
    """Refresh until Ctrl-C, which is its normal end."""
    draws = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")

    def draw() -> None:
        text = printable(report_text(look(), time.time()))
        sys.stdout.write((CLEAR if draws else "") + text + "\n")
        sys.stdout.flush()

    try:
        poll_until(draw, Retry(pause=EVERY))
        return 0
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 0)


# ── as text ──────────────────────────────────────────────────────────────────


def report_text(report: StatusReport, now: float) -> str:
    if not report.clusters:
        if report.store is not None:
            return f"no run has landed in {report.store}"
        return "no known clusters: `cloudtrain up FILE` creates one"
    return "\n\n".join("\n".join(_cluster(cluster, now)) for cluster in report.clusters)


def _cluster(cluster: ClusterStatus, now: float) -> Iterator[str]:
    yield "  ".join(
        filter(None, [cluster.name, cluster.provider, cluster.strategy, _state(cluster)])
    )
    if cluster.holder is not None:
        yield f"  at work: {cluster.holder}"
    yield from node_lines(cluster.nodes or ())
    yield from _cost(cluster, now)
    if cluster.error is not None:
        yield f"  nodes unknown: {cluster.error.message}".replace("\n", "\n    ")
        if cluster.error.hint:
            yield f"    hint: {cluster.error.hint}"
    if len(cluster.runs) > LATEST:
        yield f"  {len(cluster.runs) - LATEST} earlier runs"
    for run in cluster.runs[-LATEST:]:
        yield from _run(run, now, cluster.as_of.get(run.id))
    if cluster.progress is not None:
        yield f"    {progress_line(cluster.progress)}"
    if cluster.utilization is not None:
        yield from (f"    {line}" for line in utilization_lines(cluster.utilization))
    if cluster.runs:
        yield from (f"    {line}" for line in proof_lines(cluster.runs[-1]))
    if cluster.store is not None:
        yield f"  no local record: these runs landed in {cluster.store}"
    for fault in cluster.faults:
        yield f"  unreadable: {fault}"


def progress_line(progress: RunProgress) -> str:
    """`epoch 3 of 10, loss 0.42, about 4 min left`."""
    of = "" if progress.of is None else f" of {progress.of}"
    loss = "" if progress.loss is None else f", loss {progress.loss:g}"
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{progress.unit} {progress.at}{of}{loss}{left}"


def utilization_lines(utilization: Utilization) -> Iterator[str]:
    """A line for each role, `worker: GPU 91 % (worker33 12 %), GPU memory 71 %, CPU 34 %`, and one
    for each note.
    """
    for role in utilization.roles:
        least = f" ({role.least} {role.least_busy:.0f} %)" if role.tasks > 1 else ""
        cpu, memory = f"CPU {role.cpu:.0f} %", f"memory {role.memory:.0f} %"
        gpu_memory = "" if role.gpu_memory is None else f"its memory {role.gpu_memory:.0f} %, "
        if role.gpu is None:
            yield f"{role.role}: {cpu}{least}, {memory}"
        else:
            yield f"{role.role}: GPU {role.gpu:.0f} %{least}, {gpu_memory}{cpu}, {memory}"
    yield from utilization.notes


def _cost(cluster: ClusterStatus, now: float) -> Iterator[str]:
    """Cost so far and expiry; nothing if nothing is billed."""
    if cluster.nodes:
        from cloudtrain.cloud import is_cloud

        so_far = str(cluster.cost(now))
        without = "" if so_far == "not known" else ", without disks"
        if is_cloud(cluster.provider):
            yield f"  cost so far  {so_far}{without}"
    yield from (f"  {line}" for line in billing_lines(cluster.nodes or (), cluster.provider, now))
    if cluster.still_billed is not None:
        yield f"  still billed  {cluster.still_billed}, until `cloudtrain down {cluster.name}`"
    if cluster.ends is not None and cluster.ends >= now:
        yield f"  expires  {clock(cluster.ends)}, {_when(cluster.ends - now)}"
    if cluster.idle is not None and cluster.idle.due is not None:
        yield f"  idle: goes down at  {clock(cluster.idle.due)}, {_when(cluster.idle.due - now)}"
    if cluster.idle is not None and cluster.idle.fault is not None:
        yield f"  idle: not down yet: {cluster.idle.fault}".replace("\n", "\n    ")


def _when(left: float) -> str:
    return f"in {duration(left)}" if left > 0 else "now"


def _state(cluster: ClusterStatus) -> str:
    since = f", since {clock(cluster.since)}" if cluster.since is not None else ""
    if cluster.open is False and not cluster.nodes:
        return "down"
    if cluster.nodes is None:
        return f"nodes not queried{since}"
    running = sum(node.state == "running" for node in cluster.nodes)
    all_of = len(cluster.nodes) + len(cluster.missing)
    if not cluster.missing:
        return f"{running} of {all_of} nodes running{since}"
    gone = [name for name in cluster.missing if name in cluster.made]
    never = [name for name in cluster.missing if name not in cluster.made]
    if not cluster.nodes and not never:
        return f"{_count(len(gone))} gone{since}"
    words = [f"gone: {_tasks(cluster, gone)}"] if gone else []
    words += [f"not created: {_tasks(cluster, never)}"] if never else []
    return f"{running} of {all_of} nodes running, {', '.join(words)}{since}"


def _count(nodes: int) -> str:
    return f"{nodes} created nodes are" if nodes != 1 else "1 created node is"


def _tasks(cluster: ClusterStatus, names: list[str]) -> str:
    return ", ".join(name.removeprefix(f"{cluster.name}-") for name in names)


def _run(run: Run, now: float, as_of: float | None) -> Iterator[str]:
    attempts = f"attempt {run.attempts[-1].number}" if run.attempts else "not started"
    took = duration((run.ended or as_of or now) - run.created)
    begun = f"{clock(run.created)}, {took}"
    state = run.state if as_of is None else f"{run.state}, as of {clock(as_of)}"
    yield "  ".join(["  run", run.id, state, attempts, begun, run.store or ""]).rstrip()
    if run.resumed_from is not None:
        yield f"    resumed from {resumed(run.resumed_from)}"
    last = run.attempts[-1] if run.attempts else None
    if last is not None and last.formed_after is not None and last.ended is None:
        yield f"    cluster formed after {last.formed_after:g} s"
    if last is not None and last.collectives == "grpc":
        yield "    gradients are reduced over gRPC, not NCCL"
    if last is None:
        return
    for task in run.tasks:
        if any(failure.task == task.name for failure in last.restarted):
            yield f"    {task.name} restarted (attempt {task.attempt} of its own)"
    cause = last.cause if run.state != "succeeded" else None
    for failure in (*([cause] if cause else []), *last.tolerated):
        from cloudtrain.runs.root_cause import sentence

        words = sentence(failure) if failure is cause else f"without {sentence(failure)}"
        yield f"    {words}".replace("\n", "\n      ")
        if failure.hint:
            yield f"    hint: {failure.hint}"


# ── as JSON ──────────────────────────────────────────────────────────────────


def report_json(report: StatusReport, now: float) -> dict[str, Any]:
    return {"clusters": [_cluster_json(cluster, now) for cluster in report.clusters]}


def _cluster_json(cluster: ClusterStatus, now: float) -> dict[str, Any]:
    nodes, holder, error = cluster.nodes, cluster.holder, cluster.error
    cost = cluster.cost(now)
    return {
        "name": cluster.name,
        "provider": cluster.provider,
        "strategy": cluster.strategy,
        "open": cluster.open,
        "since": cluster.since,
        "at_work": None if holder is None else vars(holder),
        "nodes": None
        if nodes is None
        else [{**node_json(n, now), "price_per_hour": cluster.prices.get(n.name)} for n in nodes],
        "planned": None if cluster.planned is None else len(cluster.planned),
        "missing": list(cluster.missing),
        "overdue": [node.name for node in overdue(nodes or (), now)],
        "cost": cost.exact if cost else None,
        "cost_at_least": cost.least if cost else None,
        "cost_at_most": cost.most if cost else None,
        "ends": cluster.ends,
        "still_billed": cluster.still_billed,
        "idle": None if cluster.idle is None else vars(cluster.idle),
        "runs": [_run_json(run, cluster) for run in cluster.runs],
        "progress": None if cluster.progress is None else vars(cluster.progress),
        "utilization": None if cluster.utilization is None else asdict(cluster.utilization),
        "store": cluster.store,
        "unreadable": list(cluster.faults),
        "error": None
        if error is None
        else {"message": error.message, "hint": error.hint, "exit_code": cluster.exit_code(now)},
    }


def _run_json(run: Run, cluster: ClusterStatus) -> dict[str, Any]:
    as_of = cluster.as_of.get(run.id)
    return run_to_json(run) if as_of is None else {**run_to_json(run), "as_of": as_of}
