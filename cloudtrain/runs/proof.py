"""Proves nodes by work before a run's tasks start on them: they compute, alone and together.

A list of GPUs shows neither a cuDNN without code for them, nor a missing part of CUDA, nor one GPU
at half its speed. On GPUs once per run and boot of a node, on CPUs once per boot, machine and
environment; figures go into the run's record."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from cloudtrain.catalog import gpus
from cloudtrain.catalog.bandwidth import bandwidth
from cloudtrain.cluster.session import Session
from cloudtrain.cluster.task_launch import TaskLaunch
from cloudtrain.core import paths
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import PreflightError
from cloudtrain.core.model import Accelerator, ClusterConfig, Node
from cloudtrain.core.run_record import NodeProof, Run, Task, figure
from cloudtrain.diagnosis.hints import hint_for
from cloudtrain.playbooks import code_packages, containers, nvidia, tensorflow_releases
from cloudtrain.runs.node_talk import Failure, NodeAnswer, ProofOrder, compute
from cloudtrain.runs.task_commands import TAG
from cloudtrain.runs.tasks import node_of, save_run, tag_of
from cloudtrain.training.log_text import reports_lost_peer
from cloudtrain.training.strategies import strategy_of
from cloudtrain.training.tf_config import tf_config

REDUCES_FROM = (2, 4)
"""First TensorFlow with CommunicationOptions (TensorFlow's release notes, v2.4.0)."""
ON_GPUS, ON_CPUS = 64 << 20, 1 << 20
"""Bytes that are reduced between nodes."""
COMPILES = 3600.0
"""Seconds in which kernels are compiled for a GPU: "30 minutes or longer" (TensorFlow's words)."""


def prove_nodes(session: Session, run: Run, launches: Sequence[TaskLaunch]) -> Run:
    """Have the run's nodes compute, unless they did; returns the run with their figures. Raises
    PreflightError with every node that cannot."""
    setup, strategy = session.config.setup, strategy_of(session.config)
    version = tensorflow_in(setup.tensorflow, run)
    if setup.prove == "off" or version is None or strategy.tpus or not launches:
        return run
    release = tensorflow_releases.release(version)
    if release < (2, 0):
        return run
    members = [_member(session, run, launch, version) for launch in launches]
    kinds = {member.gpus.kind for member in members if member.gpus and member.limits}
    if kinds:
        session.console.say(
            f"TensorFlow {version} has no code for {', '.join(sorted(kinds))}: the "
            "compute check compiles it first, for up to an hour"
        )
    together = strategy.all_reduces and release >= REDUCES_FROM
    orders = proof_orders(members, together=together)
    size = ON_GPUS if any(member.gpus for member in members) else ON_CPUS
    with ExitStack() as shown:  # only if something is computed

        def begins(number: int) -> Callable[[str], None]:
            return shown.enter_context(session.console.stage("compute check", number)).done

        answers = compute(orders, session.transport, size=size, begins=begins)
    facts = {member.node.name: _facts(member, members, answers) for member in members}
    proofs = [_proof(session.config, member, facts[member.node.name]) for member in members]
    expected = {member.node.name: _expected(member, facts[member.node.name]) for member in members}
    failures = [failure for answer in answers.values() for failure in answer.failures]
    found = judge(proofs, expected, failures)
    for finding in (each for each in found if not each.fatal):
        session.console.warn(str(finding))
    run = save_run(session, replace(run, proof=tuple(proofs)))
    refuse(finding for finding in found if finding.fatal)
    return run


def tensorflow_in(asked_for: str | None, run: Run) -> str | None:
    """The version that the config installs, or that the run's image has by the preflight; None if
    there is none, or one of no release."""
    if asked_for is not None or not run.image:
        return asked_for
    for line in (line for each in run.environments for line in each.packages):
        name, _, version = line.partition("==")
        found = tensorflow_releases.VERSION.match(version)  # NVIDIA's is 2.16.1+nv24.08
        if found and name in ("tensorflow", "tensorflow-cpu"):
            return found[0]
    return None


def refuse(fatal: Iterable[ProofFinding]) -> None:
    """Raise PreflightError if there are any: nodes that say the same in one line."""
    nodes: dict[str, list[str]] = defaultdict(list)
    hints: list[str] = []
    for finding in fatal:
        nodes[finding.text].append(finding.node)
        hints.append(finding.hint)
    if nodes:
        problems = [(names, text) for text, names in nodes.items()]
        raise PreflightError(problems=problems, hint=hints[0])


@dataclass(frozen=True, kw_only=True)
class Member:
    """A task's node, as the proof needs to know it."""

    task: Task
    node: Node
    python: str | tuple[str, ...]
    shared: str
    """The environment below the task's own layer: nodes of a host share it."""
    gpus: Accelerator | None
    environment: Mapping[str, str]
    in_run: str
    """Folder of the task on its node."""
    limits: Mapping[str, float]

    @property
    def host(self) -> tuple[str, str]:
        """Nodes with an equal one are one machine with one environment."""
        return (self.node.host or self.node.name, self.shared)


def _member(session: Session, run: Run, launch: TaskLaunch, version: str) -> Member:
    config, task = session.config, launch.task
    node = node_of(session, task)
    has = nvidia.wanted(config, node)
    folder = paths.environment_folder(run.cluster, run.id, task.name)
    compiled = has and gpus.fit(has.kind, version) == "ptx"
    python: str | tuple[str, ...] = f"{folder}/bin/python"
    shared = code_packages.environment_folder(config, node, run.code)
    tag = {}
    if run.image:
        python = containers.python_of(config, node, run.image)
        shared = run.image + containers.layer_of(config, run.image)
        tag = {TAG: tag_of(run, task)}  # what hangs ends with the attempt
    return Member(
        task=task,
        node=node,
        python=python,
        shared=shared or "",
        gpus=has,
        environment={
            name: value
            for name, value in launch.environment.items()
            if isinstance(value, str) and not name.startswith("CLOUDTRAIN_")
        }
        | tag,
        in_run=f"{paths.runs_folder(run.cluster)}/{run.id}/{task.name}",
        limits={"other": COMPILES} if compiled else {},
    )


# ── who computes what ────────────────────────────────────────────────────────


def proof_orders(members: Sequence[Member], *, together: bool) -> list[ProofOrder]:
    """Orders of what each machine computes: once by itself, and together with the others. Together:
    all with GPUs if their numbers are equal, else the CPUs of machines without, of several nodes on
    one machine the first two."""
    peers = _peers(members) if together else []
    # In TF_CONFIG all are workers, on the addresses and ports of their tasks.
    workers = [replace(peer.task, role="worker", index=number) for number, peer in enumerate(peers)]
    addresses = {peer.node.name: peer.node.internal for peer in peers}
    texts = {worker.node: tf_config(workers, addresses, worker) or "" for worker in workers}
    orders = []
    for member in members:
        own = next(each for each in members if each.host == member.host) is member
        text = texts.get(member.node.name, "")
        if not own and not text:
            continue
        hosts = [each.host[0] for each in peers]
        key = repr((member.shared, own, member.gpus, hosts, text != "", _told(member)))
        rank = peers.index(member) if member in peers else 0
        digest = hashlib.sha256(repr((key, rank)).encode()).hexdigest()[:12]
        in_cache = f"{member.node.shared_cache or member.node.cache}/proofs/{digest}.json"
        orders.append(
            ProofOrder(
                node=member.node,
                python=member.python,
                environment=member.environment,
                stamp=f"{member.in_run}/proof" if member.gpus else in_cache,
                key=key,
                own=own,
                tf_config=text,
                gpus=member.gpus.count if member.gpus else 0,
                limits=member.limits,
            )
        )
    return orders


def _told(member: Member) -> list[tuple[str, str]]:
    """Variables that change how its TensorFlow computes: another value is proved anew."""
    told = ("GRPC_", "LD_", "TF_", "XLA_")
    return sorted(
        (name, value)
        for name, value in member.environment.items()
        if name.startswith(told) and name != "TF_CONFIG"
    )


def _peers(members: Sequence[Member]) -> list[Member]:
    training = [each for each in members if each.task.role in ("chief", "worker")]
    with_gpus = [each for each in training if each.gpus]
    if with_gpus:
        counts = {each.gpus.count for each in with_gpus if each.gpus}
        return with_gpus if len(counts) == 1 and len(with_gpus) > 1 else []
    there: Counter[tuple[str, str]] = Counter()
    peers = []
    for member in training:
        there[member.host] += 1
        if there[member.host] <= 2:
            peers.append(member)
    return peers if len(peers) > 1 else []


def _facts(
    member: Member, members: Sequence[Member], answers: Mapping[str, NodeAnswer]
) -> Mapping[str, Any]:
    """Facts computed on the member's machine, and by the member together with others."""
    first = next(each for each in members if each.host == member.host)
    said = [answers[name].facts for name in (first.node.name, member.node.name) if name in answers]
    return {name: value for facts in said for name, value in facts.items()}


def _expected(member: Member, facts: Mapping[str, Any]) -> Expected:
    has = member.gpus
    return Expected(
        gpus=has.count if has else 0,
        kind=has.kind if has else member.node.machine,
        seen=facts.get("gpus") if has else None,
    )


def _proof(config: ClusterConfig, member: Member, facts: Mapping[str, Any]) -> NodeProof:
    between = bandwidth(config.provider, member.node.machine, private=config.network.private)
    listed = gpus.rate(member.gpus.kind) if member.gpus else None
    among = facts.get("gbytes")
    return NodeProof(
        node=member.node.name,
        tflops=tuple(round(float(each), 4) for each in facts.get("tflops", ())),
        tflops_listed=listed.tflops if listed else None,
        gpus_gbytes=_rounded(among),
        gpus_gbytes_listed=listed.link if listed and among is not None else None,
        grpc_gbytes=_rounded(facts.get("grpc")),
        nccl_gbytes=_rounded(facts.get("nccl")),
        network_gbytes_listed=round(between.gbits / 8, 3) if between and "grpc" in facts else None,
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


# ── verdict ────────────────────────────────────────────────────────────────────


SLOW = 0.5
"""Share of its siblings' rate at which a node is named as slow."""
FAR_BELOW = 0.25
"""Share of NVIDIA's figure at which a GPU is named as slow without siblings. Half would be too
much: a T4 (70 W) and an L4 (72 W) throttle to less than that in a long product of matrices.
arXiv:1903.07486 measured 41.6 of a T4's 65 TFLOP/s before throttling. Also the share of a cloud's
figure for its network."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Facts expected of a node. Nodes with the same `kind` are siblings; empty: none are."""

    gpus: int
    kind: str
    seen: int | None = None
    """GPUs that TensorFlow lists; None if it did not get that far."""


@dataclass(frozen=True, kw_only=True)
class ProofFinding:
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
) -> tuple[ProofFinding, ...]:
    """Fatal findings first. Both parts of a node's proof may fail for one reason: said once."""
    missing = [
        _missing(name, each)
        for name, each in expected.items()
        if each.seen is not None and each.seen < each.gpus
    ]
    named = {finding.node for finding in missing}
    own = [each for each in failures if not reports_lost_peer(each.words)]
    failed = [_failed(each) for each in own or failures if each.node not in named]
    slow = [
        check(proof, proofs, expected) for proof in proofs for check in (_slow_device, _slow_links)
    ]
    found = [*missing, *failed, *filter(None, slow), *_slow_network(proofs)]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: not each.fatal))


def _missing(name: str, expected: Expected) -> ProofFinding:
    return ProofFinding(
        node=name,
        text=f"TensorFlow sees {expected.seen} of {expected.gpus} GPUs",
        hint="`nvidia-smi` on the node shows what the driver sees, `sudo dmesg | grep -E "
        "'NVRM|Xid'` why; delete a node with a broken GPU, then run `cloudtrain up`",
        fatal=True,
    )


def _failed(failure: Failure) -> ProofFinding:
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
    return ProofFinding(node=failure.node, text=text, hint=hint or otherwise, fatal=failure.fatal)


_OTHERWISE = (
    "run it again, or delete that node and run `cloudtrain up`; `setup.prove: off` skips this"
)
_WITHOUT = "the run goes on, and fails only if its script uses this"


# ── slow ones ────────────────────────────────────────────────────────────────


def _slow_device(
    proof: NodeProof, proofs: Sequence[NodeProof], expected: dict[str, Expected]
) -> ProofFinding | None:
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
    return ProofFinding(node=proof.node, text=text, hint=_TIRED, fatal=False)


def _slow_links(
    proof: NodeProof, proofs: Sequence[NodeProof], expected: dict[str, Expected]
) -> ProofFinding | None:
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
    return ProofFinding(node=proof.node, text=text, hint=_TIRED, fatal=False)


def _slow_network(proofs: Sequence[NodeProof]) -> list[ProofFinding]:
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
    return [ProofFinding(node=node, text=text, hint=_WAY, fatal=False)]


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
