"""One run of a rehearsal on local nodes, with at most one fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import Handle
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.commands.run import run as run_all
from cloudtrain.errors import CloudtrainError
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import Console, Stage
from cloudtrain.rehearsal import faults
from cloudtrain.rehearsal.progress import Line, Unit, training, unit_of
from cloudtrain.rehearsal.report import Fault, Outcome, judged
from cloudtrain.run_record import Run
from cloudtrain.state import Records

POLL = 0.05
"""Seconds between two looks at the log, for the first step."""


@dataclass
class Trial:
    """One run of the job, with at most one fault, and what its log showed when."""

    config: ClusterConfig
    arguments: Sequence[str]
    console: Console
    fault: Fault | None = None
    training: float = 0.0
    """Seconds of training of the undisturbed run; measured by `run`."""
    unit: Unit | None = None
    """What the script counts by, as the undisturbed run has shown; measured by `run`."""
    lines: list[Line] = field(default_factory=list)
    hit: float | None = None
    """When the fault came, Unix time."""
    failed: Exception | None = None
    """Why it could not be injected."""

    def run(self) -> Run:
        """Raises RunFailed and what `run` raises."""
        seen = Watching(self.console, self.lines)
        over = threading.Event()
        hitting = threading.Thread(target=self._hit, args=(over,), daemon=True)
        hitting.start()
        try:
            done = run_all(make_plan(self.config), arguments=self.arguments, console=seen)
        finally:
            over.set()
            hitting.join()
            take_down(self.config, self.console)
        if self.fault is None:
            self.unit = unit_of(self.lines)
            steps = training(self.lines, self.unit)
            self.training = steps[-1].seen - steps[0].seen if steps else 0.0
        return done

    def outcome(self) -> Outcome:
        """Run it, and judge how it went. Raises LeftoverError, and why no fault could be made."""
        assert self.fault is not None
        error: CloudtrainError | None = None
        try:
            self.run()
        except CloudtrainError as failure:
            error = failure
        if self.failed is not None:
            raise self.failed
        run = Records(self.config.name).latest_run()
        assert run is not None
        return judged(self.config, self.fault, run, self.lines, self.hit, error)

    def _hit(self, over: threading.Event) -> None:
        if self.fault is None:
            return
        while not (begun := training(list(self.lines), self.unit)):
            if over.wait(POLL):
                return
        lasts = faults.NOTICE if self.fault.kind == "preempt" else 0.0
        due = begun[0].seen + min(self.fault.share * self.training, self.training - lasts)
        if over.wait(max(0.0, due - time.time())):
            return
        handle = Handle(self.config)
        run = handle.records.active_run()
        task = (
            next((each for each in run.tasks if each.name == self.fault.task), None)
            if run
            else None
        )
        if run is None or task is None:
            return
        self.hit = time.time()
        self.console.warn(f"{self.fault.kind} {task.name}: {faults.FAULTS[self.fault.kind]}")
        try:
            faults.inject(self.fault.kind, handle, run, task, over)
        except (CloudtrainError, OSError) as error:
            self.failed = error


def take_down(config: ClusterConfig, console: Console) -> None:
    """Delete what a run that could not land, or a killed rehearsal, has left."""
    if Records(config.name).is_open():
        destroy_cluster(Handle(config), discard=True, console=console)


class Watching:
    """Passes everything on to a console, and keeps every line of the tasks with its time."""

    def __init__(self, console: Console, lines: list[Line]) -> None:
        self._console, self._lines = console, lines
        self._rest: dict[str, bytes] = {}

    def say(self, text: str) -> None:
        self._console.say(text)

    def warn(self, text: str) -> None:
        self._console.warn(text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return self._console.stage(title, total)

    def task_output(self, task: str, data: bytes) -> None:
        now = time.time()
        *whole, self._rest[task] = (
            (self._rest.get(task, b"") + data).replace(b"\r", b"\n").split(b"\n")
        )
        self._lines += (
            Line(task=task, seen=now, text=line.decode("utf-8", "replace"))
            for line in whole
            if line
        )
        self._console.task_output(task, data)
