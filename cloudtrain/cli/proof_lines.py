"""What a run's nodes computed before training, for `status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from cloudtrain.core.run_record import NodeProof, Run, figure

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
