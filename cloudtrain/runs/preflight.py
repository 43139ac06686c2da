"""Checks every node before an attempt for what TensorFlow would never notice.

Ports free, every pair reachable, versions equal, clocks agree, disk space, a token of `identity`.
Each node holds its own port while it calls the others (node/probe.py), so the calls prove the path
that TensorFlow will take.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from cloudtrain.cluster.plan import takes_other_ports
from cloudtrain.cluster.session import Session
from cloudtrain.core import moments, paths
from cloudtrain.core.cloud import cloud_of, facts_of
from cloudtrain.core.codec import decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import PreflightError
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Transport
from cloudtrain.core.run_record import Environment, Run, Task
from cloudtrain.core.shell import Command
from cloudtrain.core.ship import program
from cloudtrain.node.probe import owner as port_owner
from cloudtrain.playbooks import code_packages, containers
from cloudtrain.runs.node_talk import Conversation
from cloudtrain.runs.tasks import node_of, save_run

CLOCK_SECONDS = 30.0
DISK_FULL = 50 * 1000**2
DISK_LOW = 500 * 1000**2
CONNECT_SECONDS = 5.0
TOKEN_SECONDS = 15.0
"""Time for the metadata service to learn of a new identity: AWS gives about that for IAM."""


_COMPARED = frozenset({"python", "tensorflow", "keras", "tf-keras", "numpy"})
_FATAL = frozenset({"tensorflow", "keras", "tf-keras"})


@dataclass(frozen=True, kw_only=True)
class Preflight:
    warnings: tuple[str, ...]
    environments: tuple[Environment, ...]


ALONE, IN_IMAGE = 30.0, 300.0
"""Seconds for a node's answer; with an image it starts a container, for which Podman may copy the
image (vfs) or read much of it from a slow disk."""


def preflight(
    tasks: Sequence[tuple[Task, Node]],
    transport: Transport,
    *,
    packages: Callable[[Node], Command | None] = lambda node: None,
    identity: Mapping[str, object] | None = None,
    running: Sequence[tuple[Task, str]] = (),
    folder: str = paths.ROOT,
    here: bool = False,
    timeout: float = ALONE,
) -> Preflight:
    """Raises PreflightError with every problem, each naming its node and what to do.

    `packages` is a command that prints what node/packages.py does, `identity` how a node
    gets a token of its identity (`token_query`), `folder` where the task writes. `running` are
    tasks that serve already, with their addresses: reached, but not asked. `here`: the nodes share
    this machine's ports, and do not see who has them. A node that does not answer within `timeout`
    seconds is a problem by itself.
    """
    asked: dict[tuple[str, Command | None], _Probe] = {}
    probes, like = [], []
    for task, node in tasks:
        command = packages(node)
        once = node.host or node.name, command  # nodes of a host have one environment
        own = program("probe", *(command.arguments if command and once not in asked else ()))
        probe = _Probe(task=task, node=node, program=own, blamed="the probe failed: ")
        probes.append(probe)
        like.append((task.role, asked.setdefault(once, probe)))
    _ask(probes, transport, {"folder": folder, "identity": identity}, running, timeout)
    findings = _Findings()
    alone = len(_cluster(probes)) + len(running) < 2
    for judge in (_silence, _clocks, _versions, _disks, _identities):
        judge(probes, findings)
    _reachability(probes, running, findings)
    others = bool(findings.problems)
    taken = _ports(probes, findings.warnings if alone else findings.problems, here)
    if findings.problems:
        raise PreflightError(problems=findings.problems, taken=() if others else taken)
    warnings = (f"{some(of)}: {text}" if of else text for of, text in findings.warnings)
    return Preflight(warnings=tuple(warnings), environments=_environments(like))


def _environments(tasks: Iterable[tuple[str, _Probe]]) -> tuple[Environment, ...]:
    """Those of the tasks, each of a role and the probe that was asked for its packages."""
    roles: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for role, probe in tasks:
        if probe.packages:
            roles.setdefault((probe.python, probe.packages), {})[role] = None
    return tuple(
        Environment(roles=tuple(named), python=python, packages=packages)
        for (python, packages), named in roles.items()
    )


def run_preflight(session: Session, run: Run) -> Run:
    """Run the preflight; returns the run, on other ports if other programs use some of its own."""
    while True:
        try:
            return replace(run, environments=preflight_attempt(session, run))
        except PreflightError as error:
            moved = with_spare_ports(session, run, error.taken)
            if moved is None:
                if error.taken and facts_of(session.config.provider).on_this_machine:
                    raise error.copy_with(hint=SHARED) from error
                raise
            first = error.message.partition("\n")[0]
            session.console.say(f"{first}: switching to other ports")
            run = save_run(session, moved)


SHARED = (
    "clusters of `provider: local` share this machine's ports: remove `train.port`, and each "
    "cluster uses free ports of its own"
)


def with_spare_ports(session: Session, run: Run, names: Collection[str]) -> Run | None:
    """The run with the next reserved port for each of these tasks; None if there is none left."""
    if not names or not takes_other_ports(session.config):
        return None
    moved = []
    for task in run.tasks:
        ports = node_of(session, task).task_ports
        if task.name in names:
            later = ports[ports.index(task.port) + 1 :] if task.port in ports else ports
            if not later:
                return None
            task = replace(task, port=later[0])
        moved.append(task)
    return replace(run, tasks=tuple(moved))


def preflight_attempt(
    session: Session, run: Run, running: Sequence[tuple[Task, str]] = ()
) -> tuple[Environment, ...]:
    """Check ports, reachability, versions and clocks: TensorFlow notices none of them by itself.
    `running`: tasks that serve already, with their addresses. Returns what the tasks may import.
    Raises PreflightError."""
    config = session.config
    with session.console.stage("preflight", len(run.tasks)) as stage:
        found = preflight(
            [(task, node_of(session, task)) for task in run.tasks],
            session.transport,
            packages=lambda node: (
                containers.packages_command(config, node, run.image)
                if run.image
                else code_packages.packages_command(config, node, run.code)
            ),
            identity=token_query(config),
            running=running,
            here=facts_of(config.provider).on_this_machine,
            timeout=IN_IMAGE if run.image else ALONE,
        )
        for task in run.tasks:
            stage.done(task.node)
    for warning in found.warnings:
        session.console.warn(warning)
    return found.environments


def token_query(config: ClusterConfig) -> Mapping[str, object] | None:
    """Query with which a node asks for a token of `identity`; None without one. CLOUDTRAIN_METADATA
    overrides the address."""
    cloud = cloud_of(config.provider)
    if config.identity is None or cloud is None or cloud.identity is None:
        return None
    query = asdict(cloud.identity.token)
    address = os.environ.get("CLOUDTRAIN_METADATA") or query["address"]
    return {**query, "address": address, "seconds": TOKEN_SECONDS}


# ── asking ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class _PortOwner:
    """Process that uses the port, as far as the node's user may see it."""

    uid: int | None = None
    pid: int | None = None
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class _NodeReport:
    """A probe's first answer."""

    listening: bool
    why: str
    """Why it does not listen."""
    time: float
    """Unix time, by its clock."""
    owner: _PortOwner | None = None
    free: int
    """Bytes on its disk."""
    files: int
    versions: str | None = None
    """What node/packages.py prints; nothing if the command failed, None if there was none."""
    identity: str | None = None
    """Why it gets no token of its identity; empty if it does, None if it has none."""


@dataclass(frozen=True, kw_only=True)
class _PeerReport:
    """A probe's second answer: peers that it did not reach, with the reason."""

    failed: Mapping[str, str]


@dataclass(kw_only=True, eq=False)
class _Probe(Conversation):
    task: Task
    began: float = 0.0
    answered: float = 0.0
    """When its first answer arrived, by the local clock."""
    versions: Mapping[str, str] | None = None
    """Of what is compared between nodes; None if it was not asked."""
    python: str = ""
    packages: tuple[str, ...] = ()
    report: _NodeReport | None = None
    failed: Mapping[str, str] | None = None

    def heard(self, fact: dict[str, Any]) -> None:
        if self.report is None:
            self.report, self.answered = decode(_NodeReport, fact), moments.now()
            if self.report.versions is not None:
                lines = reversed(self.report.versions.splitlines())  # the last: images may say more
                none = '{"python": "none", "packages": []}'
                printed = json.loads(next((li for li in lines if li.startswith("{")), none))
                self.python, self.packages = printed["python"], tuple(printed["packages"])
                named = [line.partition("==")[::2] for line in self.packages]
                parts = {re.sub("^tensorflow-(cpu|tpu)$", "tensorflow", n): v for n, v in named}
                parts["python"] = self.python
                self.versions = {name: parts[name] for name in _COMPARED & parts.keys()}
        else:
            self.failed = decode(_PeerReport, fact).failed


def _ask(
    probes: Sequence[_Probe],
    transport: Transport,
    order: Mapping[str, object],
    running: Sequence[tuple[Task, str]],
    timeout: float,
) -> None:
    """Run all probes in two steps: all hold their ports, then all call all. `order`: what the first
    order of every probe has."""
    serving = [(task.name, address, task.port) for task, address in running]
    changed = threading.Condition()
    nonce = secrets.token_hex(8)
    try:
        for probe in probes:
            probe.began = moments.now()
            own = {"nonce": nonce, "name": probe.task.name, "port": probe.task.port}
            probe.tell({**own, **order})
            probe.start(transport, changed, 3 * timeout)
        _wait(changed, timeout, lambda: all(probe.report or probe.over for probe in probes))
        callers = _cluster(probes)
        for probe in callers:
            peers = [
                (other.task.name, other.node.internal, other.task.port)
                for other in callers
                if other is not probe and other.report and other.report.listening
            ]
            calls = {"peers": peers, "serving": serving, "nonce": nonce, "timeout": CONNECT_SECONDS}
            probe.tell(calls)
        _wait(
            changed,
            timeout,
            lambda: all(
                probe.failed is not None or probe.over or not probe.report for probe in callers
            ),
        )
    finally:
        for probe in probes:
            probe.tell(None)
    # The ports are free again once the probes have ended; a probe that hangs is not waited for.
    answered = [probe for probe in probes if probe.report]
    _wait(changed, timeout, lambda: all(probe.over for probe in answered))


def _cluster(probes: Sequence[_Probe]) -> list[_Probe]:
    """Tasks that connect to each other: an evaluator is in nobody else's cluster."""
    return [probe for probe in probes if probe.task.role != "evaluator"]


def _wait(changed: threading.Condition, seconds: float, done: Callable[[], bool]) -> None:
    with changed:
        changed.wait_for(done, seconds)


# ── judging ──────────────────────────────────────────────────────────────────


_Problem = tuple[tuple[str, ...], str]
"""The nodes that have it, none for all, and what it is."""


@dataclass
class _Findings:
    problems: list[_Problem] = field(default_factory=list)
    warnings: list[_Problem] = field(default_factory=list)


def _silence(probes: Sequence[_Probe], findings: _Findings) -> None:
    callers = _cluster(probes)
    for probe in probes:
        name = probe.node.name
        if probe.report is None or (probe.failed is None and probe in callers):
            text = probe.error or "it did not answer in time: check that the node is running"
            findings.problems.append(((name,), text))


def _ports(probes: Sequence[_Probe], into: list[_Problem], here: bool) -> tuple[str, ...]:
    """Report ports that cannot be opened; returns the tasks whose port another program uses."""
    taken = []
    for probe in probes:
        report = probe.report
        if report is None or not report.why:
            continue
        node, what = (probe.node.name,), f"port {probe.task.port}"
        owner = report.owner or _PortOwner()
        if report.why != "in use":
            into.append((node, f"{what} cannot be opened ({report.why}): set train.port"))
            continue
        taken.append(probe.task.name)
        if owner.pid is None and here:
            owner = decode(_PortOwner, port_owner(probe.task.port) or {})
        if owner.pid is not None:
            used = f"{what} is in use by pid {owner.pid} ({owner.command[:100]})"
        else:
            whose = f" by a process of user id {owner.uid}" if owner.uid is not None else ""
            used = f"{what} is in use{whose}"
        into.append((node, f"{used}: choose another train.port"))
    return tuple(taken)


def _reachability(
    probes: Sequence[_Probe], running: Sequence[tuple[Task, str]], findings: _Findings
) -> None:
    """Report each unreachable peer, one line per reason."""
    missed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for probe in probes:
        for peer, why in (probe.failed or {}).items():
            missed[peer, why].append(probe.node.name)
    targets = {task.name: (task, address) for task, address in running}
    targets |= {probe.task.name: (probe.task, probe.node.internal) for probe in probes}
    for (peer, why), sources in missed.items():
        task, address = targets[peer]
        what = "allow the cluster's nodes in the firewall"
        if any(words in why for words in _NO_SUCH_NAME):
            what = "the nodes need an address that they can resolve: set it in `hosts`"
        text = f"{address} port {task.port} is not reachable from {some(sources)} ({why}): {what}"
        findings.problems.append(((task.node,), text))


_NO_SUCH_NAME = ("not known", "name resolution", "No address associated")
"""Words of getaddrinfo(3) in the GNU and musl libraries."""


def _versions(probes: Sequence[_Probe], findings: _Findings) -> None:
    """Report versions that differ from most; fatal where TensorFlow's protocol needs them."""
    answered = [probe for probe in probes if probe.versions is not None]
    packages = sorted({package for probe in answered for package in probe.versions or {}})
    for package in packages:
        have = [(probe, (probe.versions or {}).get(package, "none")) for probe in answered]
        usual = Counter(version for _, version in have).most_common(1)[0][0]
        into = findings.problems if package in _FATAL else findings.warnings
        into.extend(
            (
                (probe.node.name,),
                f"{package} is {version} here, {usual} on the other nodes:"
                " run `cloudtrain up` to make them equal",
            )
            for probe, version in have
            if version != usual
        )


def _clocks(probes: Sequence[_Probe], findings: _Findings) -> None:
    """Report clocks that differ from the median by more than the round trip explains."""
    offsets = {}
    for probe in probes:
        if probe.report:
            between = (probe.began + probe.answered) / 2
            offsets[probe.node.name] = probe.report.time - between, probe.answered - probe.began
    if not offsets:
        return
    usual = median(offset for offset, _ in offsets.values())
    for name, (offset, trip) in offsets.items():
        if abs(offset - usual) - trip > CLOCK_SECONDS:
            text = f"its clock is {offset - usual:+.0f} s off the others'"
            cure = "run `sudo timedatectl set-ntp true` there"
            findings.problems.append(((name,), f"{text}: {cure}"))
    if abs(usual) - max(trip for _, trip in offsets.values()) > CLOCK_SECONDS:
        text = f"the nodes' clocks are {usual:+.0f} s off this machine's"
        findings.warnings.append(((), text))


def _disks(probes: Sequence[_Probe], findings: _Findings) -> None:
    seen = set()
    for probe in probes:
        if not probe.report or probe.node.storage in seen:
            continue
        seen.add(probe.node.storage)
        free = probe.report.free
        name, text = probe.node.name, f"only {free // 1000**2} MB free on its disk"
        if free < DISK_FULL or not probe.report.files:
            text += ", too little for a run: free space or raise disk_gb"
            findings.problems.append(((name,), text))
        elif free < DISK_LOW:
            findings.warnings.append(((name,), text))


def _identities(probes: Sequence[_Probe], findings: _Findings) -> None:
    for probe in probes:
        if probe.report and probe.report.identity:
            text = "no token of `identity` from the metadata service"
            problem = f"{text}: {probe.report.identity}: run `cloudtrain check`"
            findings.problems.append(((probe.node.name,), problem))
