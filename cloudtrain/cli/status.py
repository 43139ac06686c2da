"""`cloudtrain status`"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from cloudtrain.checks.node_notes import overdue
from cloudtrain.cli import options
from cloudtrain.cli.flag_variables import typed
from cloudtrain.cli.nodes import alarmed, billing_lines, error_json, node_json, node_lines
from cloudtrain.cli.printing import print_json, print_lines
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.console.lines import quoted
from cloudtrain.console.times import clock, duration
from cloudtrain.core import moments
from cloudtrain.core.codec import encode, pick
from cloudtrain.core.errors import UsageError
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import NodeProof, Run, figure, published, resumed, run_to_json

if TYPE_CHECKING:
    from cloudtrain.away.published import AwayState
    from cloudtrain.core.events import NothingMoves
    from cloudtrain.core.model import ClusterConfig
    from cloudtrain.money.budget import BudgetState
    from cloudtrain.runs.run_progress import RoleUse, RunProgress, Utilization


@options.command("status", "cloudtrain status mnist --watch")
@options.name()
@options.option("--watch", "Refresh every 2 seconds until Ctrl-C.")
@options.option("--offline", "Show local records only; query no provider.")
@options.store
@options.as_json
@options.record
def status_command(
    name: str | None, watch: bool, offline: bool, store: str | None, as_json: bool
) -> int:
    """Show clusters: their nodes as the provider lists them now, their runs, cost so far and
    expiry. Without NAME, all known clusters. With --store, or a FILE without a local record, shows
    the landed runs."""
    if offline and store is not None and not typed("store"):
        store = None
    if offline and store is not None:
        raise UsageError("--store and --offline exclude each other", hint="omit --offline")
    chosen: str | None = None
    config: ClusterConfig | None = None
    if name is not None:
        chosen, config = (name_of(name), None) if offline else landed_target(name, store)

    look = partial(status, chosen, config=config, store=store, offline=offline)
    if watch:
        if as_json and typed("as_json"):
            raise UsageError("--watch and --json exclude each other", hint="omit --watch")
        from cloudtrain.cli.live_view import watch_status

        return watch_status(look)
    report = look()
    if as_json:
        print_json(report_json(report, moments.now()))
    else:
        print_lines([report_text(report, moments.now())], painted=alarmed)
    return report.exit_code(moments.now())


# ── as JSON ──────────────────────────────────────────────────────────────────


def report_json(report: StatusReport, now: float) -> dict[str, Any]:
    return {"clusters": [_cluster_json(cluster, now) for cluster in report.clusters]}


def _cluster_json(cluster: ClusterStatus, now: float) -> dict[str, Any]:
    nodes = [
        {**node_json(node, now), "price_per_hour": cluster.prices.get(node.name)}
        for node in cluster.nodes or ()
    ]
    cost = cluster.cost(now)
    away, still = cluster.away, cluster.still
    return {
        **pick(cluster, "name provider strategy open since at_work=holder"),
        "nodes": None if cluster.nodes is None else nodes,
        "planned": None if cluster.planned is None else len(cluster.planned),
        **pick(cluster, "missing foreign", {"NotAsked": str}),
        "lease": cluster.lease or None,
        "overdue": [node.name for node in overdue(cluster.nodes or (), now)],
        "cost": cost.exact if cost else None,
        "cost_at_least": cost.least if cost else None,
        "cost_at_most": cost.most if cost else None,
        **pick(cluster, "ends deadline still_billed budget idle", {"BudgetState": BUDGET}),
        "away": None if away is None else {**encode(away), "silent": away.is_silent(now)},
        "runs": [
            {
                **run_to_json(published(run)),
                **({"as_of": cluster.as_of[run.id]} if run.id in cluster.as_of else {}),
            }
            for run in cluster.runs
        ],
        "progress": encode(cluster.progress),
        "still": None if still is None else pick(still, "since text"),
        **pick(cluster, "utilization store unreadable=faults"),
        "error": error_json(cluster.error, cluster.exit_code(now)),
    }


BUDGET = (
    "limit spent=spent.exact spent_at_least=spent.least spent_at_most=spent.most goes_down=stop end"
)
"""In $ and Unix time; `spent` is null if a price is not known."""


# ── as text ──────────────────────────────────────────────────────────────────


DOWN = "down"
LATEST = 5
"""Runs shown of each cluster; the JSON has all."""

NOTABLE = 5.0
"""Percentage points below the mean of a role from which its least busy task is named."""

NAMED = 8
"""Missing nodes that are named; the others are counted."""


def report_text(report: StatusReport, now: float) -> str:
    if not report.clusters:
        if report.store is not None:
            return f"no run has landed in {report.store}"
        return "no known clusters: `cloudtrain up FILE` creates one"
    return "\n\n".join("\n".join(_cluster(cluster, now)) for cluster in open_first(report))


def open_first(report: StatusReport) -> list[ClusterStatus]:
    """The clusters in their order, those that are down at the end."""
    return sorted(report.clusters, key=lambda cluster: cluster_state(cluster) == DOWN)


def _cluster(cluster: ClusterStatus, now: float) -> Iterator[str]:
    yield "  ".join(
        filter(None, [cluster.name, cluster.provider, cluster.strategy, cluster_state(cluster)])
    )
    if cluster.holder is not None:
        yield f"  at work: {cluster.holder}"
    if cluster.away is not None:
        yield from (f"  {line}" for line in desk_lines(cluster.away, now))
    elif cluster.is_away:
        yield "  away: no report of its controller"
    yield from node_lines(cluster.nodes or ())
    yield from (f"  {each}" for each in cluster.foreign)
    if cluster.lease:
        yield f"  {cluster.lease}"
    yield from _cost(cluster, now)
    if cluster.error is not None:
        yield quoted(f"  nodes unknown: {cluster.error.message}").replace("\n", "\n    ")
        if cluster.error.hint:
            yield f"    hint: {quoted(cluster.error.hint)}"
    if len(cluster.runs) > LATEST:
        yield f"  {len(cluster.runs) - LATEST} earlier runs"
    for run in cluster.runs[-LATEST:]:
        yield from _run(run, now, cluster.as_of.get(run.id))
    if cluster.deadline is not None:
        yield f"    deadline  {clock(cluster.deadline)}, {_when(cluster.deadline - now)}"
    if cluster.progress is not None:
        yield f"    {progress_line(cluster.progress)}"
    if cluster.still is not None:
        yield f"    {still_line(cluster.still, now)}"
    if cluster.utilization is not None:
        yield from (f"    {line}" for line in utilization_lines(cluster.utilization))
    if cluster.runs:
        yield from (f"    {line}" for line in proof_lines(cluster.runs[-1]))
    if cluster.store is not None:
        yield f"  no local record: these runs landed in {cluster.store}"
    for fault in cluster.faults:
        yield quoted(f"  unreadable: {fault}")


def desk_lines(state: AwayState, now: float) -> Iterator[str]:
    """Lines on the last report of the desk of a cluster that is away; fewer if it has ended."""
    from cloudtrain.commands.logs import silence

    ended = state.phase == "ended"
    doing = ": ".join(filter(None, [state.phase, state.text]))
    if ended:
        doing = f"ended, exit code {state.exit_code or 0}"
    age = clock(state.as_of) if ended else f"{duration(max(0.0, now - state.as_of))} ago"
    yield "  ".join(filter(None, ["away", doing, state.run, f"as of {age}", state.unsigned]))
    if state.error:
        yield quoted(f"  {state.error}").replace("\n", "\n  ")
    if ended:
        return
    price = None if state.price_per_hour is None else f"{state.price_per_hour:.3g} $/hour"
    expires = None if state.expires is None else f"expires {clock(state.expires)}"
    since = f"since {clock(state.began)}"
    yield "  ".join(filter(None, ["controller", state.node, state.place, price, since, expires]))
    if state.is_silent(now):
        yield from silence(state, now).split("\n")


def progress_line(progress: RunProgress) -> str:
    """`epoch 3 of 10, loss 0.42, 85.1 examples/s, about 4m left`."""
    of = "" if progress.of is None else f" of {progress.of}"
    loss = "" if progress.loss is None else f", loss {progress.loss:g}"
    rate = "" if progress.rate is None else f", {progress.rate}"
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{progress.unit} {progress.at}{of}{loss}{rate}{left}"


def still_line(still: NothingMoves, now: float) -> str:
    """`nothing has moved for 12m: worker0 waits in fit (train.py:16)`."""
    return f"nothing has moved for {duration(max(0.0, now - still.since))}: {still.text}"


def utilization_lines(utilization: Utilization) -> Iterator[str]:
    """A line for each role and for each note."""
    yield from (f"{role.role}: {role_figures(role)}" for role in utilization.roles)
    yield from utilization.notes


def role_figures(role: RoleUse) -> str:
    """`GPU 91 % (worker33 12 %), its memory 71 %, CPU 34 %`, or `CPU 34 %, memory 20 %`."""
    busy = role.cpu if role.gpu is None else role.gpu
    differs = role.least_busy < busy - NOTABLE
    least = f" ({role.least} {role.least_busy:.0f} %)" if differs else ""
    if role.gpu is None:
        return f"CPU {role.cpu:.0f} %{least}, memory {role.memory:.0f} %"
    gpu_memory = "" if role.gpu_memory is None else f"its memory {role.gpu_memory:.0f} %, "
    return f"GPU {role.gpu:.0f} %{least}, {gpu_memory}CPU {role.cpu:.0f} %"


def _cost(cluster: ClusterStatus, now: float) -> Iterator[str]:
    """Cost so far and expiry; nothing if nothing is billed."""
    so_far = cost_so_far(cluster, now)
    if so_far is not None:
        yield f"  cost so far  {so_far}"
    yield from (f"  {line}" for line in billing_lines(cluster.nodes or (), cluster.provider, now))
    if cluster.still_billed is not None:
        yield f"  still billed  {cluster.still_billed}, until `cloudtrain down {cluster.name}`"
    if cluster.budget is not None:
        yield f"  budget  {budget_words(cluster.budget, cluster.ends, now)}"
    if cluster.ends is not None and cluster.ends >= now:
        yield f"  expires  {clock(cluster.ends)}, {_when(cluster.ends - now)}"
    if cluster.idle is not None and cluster.idle.due is not None:
        yield f"  idle: goes down at  {clock(cluster.idle.due)}, {_when(cluster.idle.due - now)}"
    if cluster.idle is not None and cluster.idle.fault is not None:
        yield f"  not down yet: {cluster.idle.fault}".replace("\n", "\n    ")
        if cluster.idle.again is not None and cluster.idle.again >= now:
            again = cluster.idle.again
            yield f"    tried again at {clock(again)}, {_when(again - now)}"


def budget_words(budget: BudgetState, ends: float | None, now: float) -> str:
    """`12.30 $ of 50 $ (25 %), goes down at 2026-11-24 18:40, in 3h 10m`."""
    words = [str(budget)]
    if budget.stop is not None and (ends is None or budget.stop < ends):
        words.append(f"goes down at {clock(budget.stop)}, {_when(budget.stop - now)}")
    elif ends is not None:
        words.append("the nodes expire before it is spent")
    return ", ".join(words)


def cost_so_far(cluster: ClusterStatus, now: float) -> str | None:
    """None if nothing is billed."""
    from cloudtrain.core.cloud import is_cloud

    return str(cluster.cost(now)) if cluster.nodes and is_cloud(cluster.provider) else None


def _when(left: float) -> str:
    return f"in {duration(left)}" if left > 0 else "now"


def cluster_state(cluster: ClusterStatus) -> str:
    since = f", since {clock(cluster.since)}" if cluster.since is not None else ""
    if cluster.open is False and not cluster.nodes:
        return DOWN
    if cluster.nodes is None:
        return f"nodes not queried{since}"
    running = sum(node.state == "running" for node in cluster.nodes)
    all_of = len(cluster.nodes) + len(cluster.missing)
    if not cluster.missing:
        return f"{running} of {all_of} nodes running{since}"
    gone = [name for name in cluster.missing if name in cluster.made]
    never = [name for name in cluster.missing if name not in cluster.made]
    if not cluster.nodes and not never:
        created = "1 created node is" if len(gone) == 1 else f"{len(gone)} created nodes are"
        return f"{created} gone{since}"
    words = [f"gone: {_tasks(cluster, gone)}"] if gone else []
    words += [f"not created: {_tasks(cluster, never)}"] if never else []
    return f"{running} of {all_of} nodes running, {', '.join(words)}{since}"


def _tasks(cluster: ClusterStatus, names: list[str]) -> str:
    return some([name.removeprefix(f"{cluster.name}-") for name in names], NAMED)


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
    yield from (f"    {line}" for line in failure_lines(run))


def failure_lines(run: Run) -> Iterator[str]:
    """Lines on why the run's last attempt failed, on what it went on without, and on reasons to
    doubt that the run has done its work."""
    for doubt in run.doubts:
        yield f"warning: {doubt.text}"
        if doubt.hint:
            yield f"hint: {doubt.hint}"
    last = run.attempts[-1] if run.attempts else None
    cause = last.cause if last is not None and run.state != "succeeded" else None
    failures = (*([cause] if cause else []), *(last.tolerated if last is not None else ()))
    if not failures:
        return
    from cloudtrain.runs.root_cause import sentence

    for failure in failures:
        words = sentence(failure) if failure is cause else f"without {sentence(failure)}"
        yield quoted(words).replace("\n", "\n      ")
        if failure.hint:
            yield f"hint: {quoted(failure.hint)}"


# ── compute check before training ──────────────────────────────────────────────


SHOWN = 8
"""Nodes with a line of their own; of more, one line has the range."""


def proof_lines(run: Run) -> Iterator[str]:
    """`compute check: chief0 58.1 TFLOP/s of 65, with the others 1.1 GB/s over gRPC`."""
    proofs = [proof for proof in run.proof if proof.tflops]
    if len(proofs) <= SHOWN:
        names = {task.node: task.name for task in run.tasks}
        yield from (f"compute check: {names.get(p.node, p.node)} {_words([p])}" for p in proofs)
        return
    alike = sorted(proofs, key=_alike)
    for _, group in groupby(alike, key=_alike):
        same = list(group)
        yield f"compute check: {len(same)} nodes {_words(same)}"


def _alike(proof: NodeProof) -> tuple[int, float, float]:
    return len(proof.tflops), proof.tflops_listed or 0.0, proof.network_gbytes_listed or 0.0


def _words(proofs: Sequence[NodeProof]) -> str:
    first = proofs[0]
    each = f"{len(first.tflops)} × " if len(first.tflops) > 1 else ""
    words = [each + _range([rate for p in proofs for rate in p.tflops], "TFLOP/s")]
    words[0] += _listed(first.tflops_listed)
    among = [p.gpus_gbytes for p in proofs if p.gpus_gbytes is not None]
    if among:
        words.append(f"its GPUs {_range(among, 'GB/s')}{_listed(first.gpus_gbytes_listed)}")
    grpc = [p.grpc_gbytes for p in proofs if p.grpc_gbytes is not None]
    nccl = [p.nccl_gbytes for p in proofs if p.nccl_gbytes is not None]
    ways = [f"{_range(grpc, 'GB/s')} over gRPC"] if grpc else []
    ways += [f"{_range(nccl, 'GB/s')} with NCCL"] if nccl else []
    if ways:
        listed = _listed(first.network_gbytes_listed if nccl else None)
        words.append(f"with the others {', '.join(ways)}{listed}")
    return ", ".join(words)


def _range(rates: Sequence[float], unit: str) -> str:
    least, most = figure(min(rates)), figure(max(rates))
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _listed(rate: float | None) -> str:
    return f" of {figure(rate)}" if rate is not None else ""
