"""One run of a rehearsal on local nodes, with at most one fault."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.checks.script_code import facts_in, scripts_of
from cloudtrain.cluster.session import Handle
from cloudtrain.console.forwarding import ForwardingConsole
from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.metrics import LogLine, Unit, has_reached, span_of, training, unit_of
from cloudtrain.core.model import ON_DEMAND, ClusterConfig, Endpoints, Limits, Network, NodeGroup
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run, Task
from cloudtrain.rehearsal import faults
from cloudtrain.rehearsal.report import Fault, FaultOutcome, compared, judged, saving_in
from cloudtrain.training.strategies import strategy_of

POLL = 0.05
"""Seconds between two looks at the log, for the first step."""


@dataclass
class Trial:
    """One run of the job, with at most one fault, and what its log showed when."""

    config: ClusterConfig
    console: Console
    run_job: Callable[[Console], Run]
    """Creates the cluster, runs the job on it and deletes the cluster."""
    down: Callable[[bool], None]
    """Deletes what is there of the cluster: True discards what has not landed."""
    fault: Fault | None = None
    training: float = 0.0
    """Seconds of training of the undisturbed run; measured by `run`."""
    unit: Unit | None = None
    """What the script counts by, as the undisturbed run has shown; measured by `run`."""
    span: tuple[int, int] | None = None
    """First and last number that it counted; measured by `run`."""
    landed: Manifest | None = None
    """What the undisturbed run has landed; read by `run`."""
    doubts: tuple[str, ...] = ()
    """Why its success may be none; read by `run`."""
    lines: list[LogLine] = field(default_factory=list)
    hit: float | None = None
    """When the fault came, Unix time."""
    unmade: str | None = None
    """Why the fault could not be made, or undone."""
    orphan: str | None = None
    """Fault of a node that came back: its task ran beside a later attempt, or `down` failed."""

    def run(self) -> Run:
        """Raises RunFailed and what `run` raises."""
        seen = Watching(self.console, self.lines)
        over = threading.Event()
        hitting = threading.Thread(target=self._hit, args=(over,), daemon=True)
        hitting.start()
        try:
            with disks_in_memory(self.fault is not None and self.fault.kind == "disk"):
                done = self.run_job(seen)
        finally:
            over.set()
            hitting.join()
            if self.fault is not None and self.fault.kind == "away" and self.hit is not None:
                try:  # a run without the silent node has kept it: `down` must lose nothing
                    self.down(False)
                except CloudtrainError as error:
                    self.orphan = f"the node came back, and `down` failed: {error.message}"
            self.down(True)
        if self.fault is None:
            self.unit = unit_of(self.lines)
            steps = training(self.lines, self.unit)
            self.span = span_of(self.lines, self.unit)
            self.training = steps[-1].seen - steps[0].seen if steps else 0.0
            self.landed = read_manifest(Handle(self.config).store, done.id)
            self.doubts = tuple(doubt.text for doubt in done.doubts)
        return done

    def outcome(self) -> FaultOutcome:
        """Run it, and judge how it went. Raises LeftoverError, and why no run has begun."""
        assert self.fault is not None
        error: CloudtrainError | None = None
        before = Handle(self.config).records.latest_run()
        try:
            self.run()
        except CloudtrainError as failure:
            error = failure
        run = Handle(self.config).records.latest_run()
        if error is not None and run == before:
            raise error
        assert run is not None
        tolerated = {cause.task for cause in run.attempts[-1].tolerated} if run.attempts else ()
        found = read_manifest(Handle(self.config).store, run.id)
        return judged(
            self.config,
            self.fault,
            run,
            self.lines,
            self.hit,
            error,
            saving=saving_in(facts_in(scripts_of(self.config).values())),
            orphan=self.orphan,
            unmade=self.unmade,
            landed=compared(self.landed, found, without=tolerated),
            doubted=self.doubts,
        )

    def _hit(self, over: threading.Event) -> None:
        if self.fault is None:
            return
        while not (begun := training(list(self.lines), self.unit)):
            if over.wait(POLL):
                return
        if not self._await_moment(self.fault, begun[0].seen, over):
            return
        handle = Handle(self.config)
        run = handle.records.active_run()
        name = self.fault.task
        of_client = name == faults.CLIENT
        tasks = [task for task in run.tasks if of_client or task.name == name] if run else []
        if run is None or not any(faults.processes_of(run, task) for task in tasks):
            return  # it has ended: there is nothing to break
        task = tasks[0]
        self.hit = moments.now()
        self.console.warn(f"{self.fault.kind} {name}: {faults.FAULTS[self.fault.kind]}")
        try:
            if of_client:
                faults.inject_client(self.fault.kind, self.config.train, over)
            else:
                faults.inject(self.fault.kind, handle, run, task, over)
        except (CloudtrainError, OSError) as error:
            self.unmade = f"the fault could not be made: {error}"
            return
        if self.fault.kind == "away" and self._ran_on(handle, run, task, over):
            self.orphan = f"the node came back, and its old {task.name} ran beside a later attempt"

    def _await_moment(self, fault: Fault, begun: float, over: threading.Event) -> bool:
        """Wait for the fault's share of the training, by the clock or, if that is sooner, by what
        the script counts: it may be faster than the undisturbed run was. False if it ends before.
        """
        lasts = faults.NOTICE if fault.kind == "preempt" else 0.0
        due = begun + min(fault.share * self.training, self.training - lasts)
        looked = 0
        while moments.now() < due:
            new = self.lines[looked:]
            looked += len(new)
            if has_reached(new, self.unit, self.span, fault.share):
                return True
            if over.wait(POLL):
                return False
        return True

    def _ran_on(self, handle: Handle, run: Run, task: Task, over: threading.Event) -> bool:
        """True if the task of the attempt that was given up lives when a later one has started."""
        while faults.processes_of(run, task):
            now = handle.records.latest_run()
            again = (
                next((each for each in now.tasks if each.name == task.name), task) if now else task
            )
            if again.attempt > task.attempt and faults.processes_of(run, again):
                return bool(faults.processes_of(run, task))
            if over.wait(POLL):
                return False
        return False


@contextmanager
def disks_in_memory(wanted: bool) -> Iterator[None]:
    """Give each node that is created a disk of its own, unless the user has chosen its size."""
    if not wanted or faults.DISK_VARIABLE in os.environ:
        yield
        return
    os.environ[faults.DISK_VARIABLE] = faults.DISK
    try:
        yield
    finally:
        del os.environ[faults.DISK_VARIABLE]


class Watching(ForwardingConsole):
    """Passes everything on to a console, and keeps every line of the tasks with its time."""

    def __init__(self, console: Console, lines: list[LogLine]) -> None:
        super().__init__(console)
        self._lines = lines
        self._rest: dict[str, bytes] = {}

    def task_output(self, task: str, data: bytes) -> None:
        now = moments.now()
        *whole, self._rest[task] = (
            (self._rest.get(task, b"") + data).replace(b"\r", b"\n").split(b"\n")
        )
        self._lines += (
            LogLine(task=task, seen=now, text=line.decode("utf-8", "replace"))
            for line in whole
            if line
        )
        super().task_output(task, data)


# ── the config of a rehearsal ──────────────────────────────────────────────────


ENDING = "-rehearsal"
LONGEST = 30
"""Characters of a cluster's name."""


def name_of_rehearsal(name: str) -> str:
    """Name of the rehearsal's cluster: never that of a cluster that a file of the user names."""
    return name[: LONGEST - len(ENDING)].rstrip("-") + ENDING


def local_config(config: ClusterConfig, store: str, *, setup_run: bool) -> ClusterConfig:
    """The same job on local nodes, with its artifacts in `store` (a `file://` URI). `setup_run`:
    whether the lines of `setup.run` are run, which change this machine."""
    kept = config.limits
    return replace(
        config,
        name=name_of_rehearsal(config.name),
        provider="local",
        project=None,
        placement=(),
        network=Network(),
        identity=None,
        resource_group=None,
        disk_key=None,
        tags={},
        image="auto",
        nodes={role: _group(config, group) for role, group in config.nodes.items()},
        hosts=(),
        setup=config.setup if setup_run else replace(config.setup, run=()),
        artifacts=replace(config.artifacts, store=store, create=False),
        shared=config.shared and replace(config.shared, path=None),
        endpoints=Endpoints(storage=config.endpoints.storage),
        limits=Limits(max_lifetime=kept.max_lifetime, wait=kept.wait, give_back=kept.give_back),
        candidates=(),
        candidate_order="",
    )


def _group(config: ClusterConfig, group: NodeGroup) -> NodeGroup:
    if strategy_of(config).tpus:
        # The type of a TPU says how many hosts it has.
        return replace(group, provisioning=ON_DEMAND)
    return NodeGroup(count=group.count)


def not_rehearsed(config: ClusterConfig, *, setup_run: bool) -> Iterator[str]:
    """Each part of the config that the rehearsal leaves out, in words."""
    if any(group.accelerator for group in config.nodes.values()) or strategy_of(config).tpus:
        yield "accelerators: TensorFlow's CPU build runs"
    if config.identity:
        yield f"identity: {config.identity}"
    if config.setup.run and not setup_run:
        yield (
            f"setup.run: {len(config.setup.run)} lines, which would change this machine "
            "(--setup-run runs them)"
        )
    if config.image != "auto":
        yield f"image: {config.image}"
    if config.artifacts.store:
        yield f"artifacts.store: nothing is written to {config.artifacts.store}"
