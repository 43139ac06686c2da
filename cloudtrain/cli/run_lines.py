"""Lines about one run: its state, why it failed, its progress, use and compute check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cloudtrain.console.lines import quoted
from cloudtrain.console.times import clock, duration
from cloudtrain.core.run_record import NodeProof, Run, figure, resumed

if TYPE_CHECKING:
    from cloudtrain.runs.run_progress import RoleUse, RunProgress, Utilization

NOTABLE = 5.0
"""Percentage points below the mean of a role from which its least busy task is named."""

SHOWN = 8
"""Nodes with a line of their own on the compute check; of more, one line has the range."""


def run_lines(run: Run, now: float, as_of: float | None) -> Iterator[str]:
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


def progress_line(progress: RunProgress) -> str:
    """`epoch 3 of 10, loss 0.42, 85.1 examples/s, about 4m left`."""
    of = "" if progress.of is None else f" of {progress.of}"
    loss = "" if progress.loss is None else f", loss {progress.loss:g}"
    rate = "" if progress.rate is None else f", {progress.rate}"
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{progress.unit} {progress.at}{of}{loss}{rate}{left}"


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
