"""`cloudtrain logs`: what every task wrote, its name before each line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cloudtrain.errors import LockedError, UsageError
from cloudtrain.model import Run, Task
from cloudtrain.protocols import Console, Stage
from cloudtrain.records import Records
from cloudtrain.session import artifact_store, open_session, recorded_config
from cloudtrain.training.attend import attend

POLL = 0.2
CHUNK = 1 << 16


def logs(
    name: str,
    *,
    follow: bool = False,
    roles: Sequence[str] = (),
    tail: int | None = None,
    run: str | None = None,
    console: Console,
) -> None:
    """The latest run's logs, or those of `run`. With `follow`, until the run has ended: where
    nobody attends to it, this process does, and ends, restarts and lands it as `train` would."""
    records = Records(name)
    wanted = chosen(records, run)
    shown = Only(console, roles)
    offsets = show(records, wanted, shown, tail)
    if not follow or wanted.ended is not None:
        return
    while True:
        try:
            with records.lock("logs -f"):
                wanted = records.run(wanted.id)
                if wanted.ended is None:
                    advance(records, wanted, shown, offsets)
                    with open_session(recorded_config(records), records, shown) as session:
                        attend(session, wanted)
                else:
                    advance(records, wanted, shown, offsets)
                return
        except LockedError:
            time.sleep(POLL)
            wanted = records.run(wanted.id)
            advance(records, wanted, shown, offsets)
            if wanted.ended is not None:
                return


def chosen(records: Records, run: str | None) -> Run:
    if run is not None:
        return records.run(run)
    latest = records.latest_run()
    if latest is None:
        raise UsageError(f"{records.name} has had no run", hint="`cloudtrain train` starts one")
    return latest


Offsets = dict[tuple[str, int], int]


def show(records: Records, run: Run, console: Console, tail: int | None) -> Offsets:
    """Every log as far as it is here, attempt by attempt; where each was left."""
    offsets: Offsets = {}
    for task, attempt, path in log_files(records, run):
        data = path.read_bytes() if path.exists() else landed(records, run, task, attempt)
        offsets[task.name, attempt] = len(data)
        console.task_output(task.name, last_lines(data, tail))
    return offsets


def advance(records: Records, run: Run, console: Console, offsets: Offsets) -> None:
    """What has been added since."""
    for task, attempt, path in log_files(records, run):
        offset = offsets.get((task.name, attempt), 0)
        if not path.exists() or path.stat().st_size <= offset:
            continue
        with path.open("rb") as log:
            log.seek(offset)
            while data := log.read(CHUNK):
                offset += len(data)
                console.task_output(task.name, data)
        offsets[task.name, attempt] = offset


def log_files(records: Records, run: Run) -> Iterator[tuple[Task, int, Path]]:
    for attempt in run.attempts:
        for task in run.tasks:
            yield task, attempt.number, records.log_path(run.id, task.name, attempt.number)


def landed(records: Records, run: Run, task: Task, attempt: int) -> bytes:
    """A log that is not here, from the store; empty where it has not landed."""
    if run.ended is None:
        return b""
    store = artifact_store(recorded_config(records), records)
    name = f"{run.id}/logs/{task.name}.attempt-{attempt}.log"
    if not any(artifact.path == name for artifact in store.list(f"{run.id}/logs")):
        return b""
    return b"".join(store.download(name))


def last_lines(data: bytes, tail: int | None) -> bytes:
    if tail is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-tail:]) if tail > 0 else b""


class Only:
    """A console that shows the output of some roles alone."""

    def __init__(self, console: Console, roles: Sequence[str]) -> None:
        self._console, self._roles = console, frozenset(roles)

    def say(self, text: str) -> None:
        self._console.say(text)

    def warn(self, text: str) -> None:
        self._console.warn(text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return self._console.stage(title, total)

    def task_output(self, task: str, data: bytes) -> None:
        if not self._roles or task in self._roles or task.rstrip("0123456789") in self._roles:
            self._console.task_output(task, data)
