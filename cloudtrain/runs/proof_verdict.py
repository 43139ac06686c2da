"""Judges what nodes computed before a run: missing, failing and slow ones; figures in, findings
out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from cloudtrain.core.run_record import NodeProof, figure
from cloudtrain.runs.hints import hint_for
from cloudtrain.training.log_text import reports_lost_peer

SLOW = 0.5
"""Share of its siblings' rate at which a node is named as slow."""
FAR_BELOW = 0.25
"""Share of NVIDIA's figure at which a GPU is named as slow without siblings. Half would be too
much: a T4 (70 W) and an L4 (72 W) throttle to less than that in a long product of matrices.
arXiv:1903.07486 measured 41.6 of a T4's 65 TFLOP/s before throttling. Also the share of a cloud's
figure for its network."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A part of the proof that did not end well on a node."""

    node: str
    phase: str
    """What it was doing: `matrix product`, `XLA`, …"""
    words: str = ""
    """TensorFlow's words; empty after a crash."""
    device: str = ""
    """The device at fault, as TensorFlow names it: `/GPU:1`."""
    log: str = ""
    """The last messages of the process."""
    signal: int | None = None
    """The signal that ended it."""
    late: float | None = None
    """The limit of seconds that the phase exceeded."""
    fatal: bool = True
    """False if training does without what failed."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Facts expected of a node. Nodes with the same `kind` are siblings; empty: none are."""

    gpus: int
    kind: str
    seen: int | None = None
    """GPUs that TensorFlow lists; None if it did not get that far."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    node: str
    text: str
    hint: str
    fatal: bool

    def __str__(self) -> str:
        return (
            f"{self.node}: {self.text}: {self.hint}" if self.hint else f"{self.node}: {self.text}"
        )


def judge(
    proofs: Sequence[NodeProof], expected: dict[str, Expected], failures: Sequence[Failure]
) -> tuple[Finding, ...]:
    """Fatal findings first. Both parts of a node's proof may fail for one reason: said once."""
    missing = [
        _missing(name, each)
        for name, each in expected.items()
        if each.seen is not None and each.seen < each.gpus
    ]
    named = {finding.node for finding in missing}
    own = [each for each in failures if not _of_a_peer(each)]
    failed = [_failed(each) for each in own or failures if each.node not in named]
    found = [*missing, *failed, *_slow(proofs, expected), *_slow_network(proofs)]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: not each.fatal))


def _missing(name: str, expected: Expected) -> Finding:
    return Finding(
        node=name,
        text=f"TensorFlow sees {expected.seen} of {expected.gpus} GPUs",
        hint="`nvidia-smi` on the node shows what the driver sees, `sudo dmesg | grep -E "
        "'NVRM|Xid'` why; delete a node with a broken GPU, then run `cloudtrain up`",
        fatal=True,
    )


def _of_a_peer(failure: Failure) -> bool:
    """True if the node failed only because another did."""
    return reports_lost_peer(failure.words)


def _failed(failure: Failure) -> Finding:
    log = "\n".join(filter(None, [failure.log, failure.words]))
    hint = hint_for("exit", log.encode(), failure.signal)
    where = f" on {failure.device.lstrip('/')}" if failure.device else ""
    if failure.late is not None:
        text = f"{failure.phase}{where} did not end within {failure.late:g} s"
    elif failure.words:
        words = re.sub(r"^(\w+\.)+", "", failure.words.splitlines()[0])
        text = f"{failure.phase}{where} failed: {words[:300]}"
    else:
        last = [line for line in failure.log.splitlines() if line.strip()][-1:]
        how = f"signal {failure.signal}" if failure.signal else "the end of its process"
        text = ": ".join([f"{failure.phase}{where} failed with {how}", *last])
    otherwise = _OTHERWISE if failure.fatal else _WITHOUT
    return Finding(node=failure.node, text=text, hint=hint or otherwise, fatal=failure.fatal)


_OTHERWISE = (
    "run it again, or delete that node and run `cloudtrain up`; `setup.prove: off` skips this"
)
_WITHOUT = "the run goes on, and fails only if its script uses this"


# ── slow ones ────────────────────────────────────────────────────────────────


def _slow(proofs: Sequence[NodeProof], expected: dict[str, Expected]) -> list[Finding]:
    return [
        finding
        for proof in proofs
        for finding in (_slow_device(proof, proofs, expected), _slow_links(proof, proofs, expected))
        if finding is not None
    ]


def _slow_device(
    proof: NodeProof, proofs: Sequence[NodeProof], expected: dict[str, Expected]
) -> Finding | None:
    """Name the node's slowest device if it is slow beside the others of its kind."""
    if not proof.tflops:
        return None
    number, rate = min(enumerate(proof.tflops), key=lambda each: each[1])
    others = [*proof.tflops[:number], *proof.tflops[number + 1 :]]
    for sibling in _siblings(proof, proofs, expected):
        others += sibling.tflops
    what = f"GPU {number}" if expected[proof.node].gpus else "its CPU"
    if others and rate <= SLOW * median(others):
        text = (
            f"{what} multiplies matrices at {figure(rate)} TFLOP/s, "
            f"its siblings at {figure(median(others))}"
        )
    elif proof.tflops_listed and rate <= FAR_BELOW * proof.tflops_listed:
        text = (
            f"{what} multiplies matrices at {figure(rate)} TFLOP/s, "
            f"NVIDIA lists {figure(proof.tflops_listed)}"
        )
    else:
        return None
    return Finding(node=proof.node, text=text, hint=_TIRED, fatal=False)


def _slow_links(
    proof: NodeProof, proofs: Sequence[NodeProof], expected: dict[str, Expected]
) -> Finding | None:
    others = [
        sibling.gpus_gbytes
        for sibling in _siblings(proof, proofs, expected)
        if sibling.gpus_gbytes is not None
    ]
    rate = proof.gpus_gbytes
    if rate is None or not others or rate > SLOW * median(others):
        return None
    text = (
        f"its GPUs reduce gradients at {figure(rate)} GB/s, "
        f"those of its siblings at {figure(median(others))}"
    )
    return Finding(node=proof.node, text=text, hint=_TIRED, fatal=False)


def _slow_network(proofs: Sequence[NodeProof]) -> list[Finding]:
    """Name the slowest node if NCCL gets little of its network: all nodes reduce as fast as it."""
    rates = [
        (proof.nccl_gbytes, proof.network_gbytes_listed, proof.node)
        for proof in proofs
        if proof.nccl_gbytes is not None and proof.network_gbytes_listed is not None
    ]
    if not rates:
        return []
    rate, listed, node = min(rates)
    if rate > FAR_BELOW * listed:
        return []
    text = (
        f"NCCL reduces gradients with the other nodes at {figure(rate)} GB/s, "
        f"the cloud lists {figure(listed)} for its network"
    )
    return [Finding(node=node, text=text, hint=_WAY, fatal=False)]


_WAY = "`train.env: {NCCL_DEBUG: INFO}` shows on which network and by which protocol it goes"
_TIRED = (
    "all nodes wait for the slowest: look for other processes, heat and errors with `nvidia-smi -q`"
    " or `top` on it; if it stays slow, delete that node, then run `cloudtrain up`"
)


def _siblings(
    proof: NodeProof, proofs: Sequence[NodeProof], expected: dict[str, Expected]
) -> list[NodeProof]:
    """Proofs of the other nodes of its kind."""
    kind = expected[proof.node].kind
    return [
        each for each in proofs if kind and each is not proof and expected[each.node].kind == kind
    ]
