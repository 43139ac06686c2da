"""Follows the log and state of tasks, each in its attempt, over any number of connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from cloudtrain.core import metrics, moments
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Console, Transport
from cloudtrain.core.retry import LOG_SILENT, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands
from cloudtrain.runs.tasks import folder_of
from cloudtrain.state.files import FULL
from cloudtrain.state.line_times import ArrivalIndex

AGAIN = Retry(pause=1.0)
"""Retries of following a task, until its end has arrived."""


MOST_METRICS = 16 << 20
"""Limit in bytes of a task's metrics here: a month of them on a node with 16 GPUs has less."""


class LogBytes:
    """New log bytes of a task, already in the local log."""

    def __init__(self, task: Task, data: bytes) -> None:
        self.task, self.data = task, data


class HeartbeatSeen:
    """A heartbeat: the task's processes as its node lists them."""

    def __init__(self, task: Task, heartbeat: task_commands.Heartbeat) -> None:
        self.task, self.heartbeat = task, heartbeat


class PreemptionNoticed:
    """The cloud is about to take the task's node."""

    def __init__(self, task: Task, notice: task_commands.NoticeSeen) -> None:
        self.task, self.notice = task, notice


class PortOpened:
    """State of a task's port, as seen on its node."""

    def __init__(self, task: Task, served: task_commands.PortState) -> None:
        self.task, self.served = task, served


class DiskFilling:
    """The node's disk is nearly full."""

    def __init__(self, task: Task, low: task_commands.DiskLow) -> None:
        self.task, self.low = task, low


class OutOfMemoryKill:
    """The kernel killed the task because memory ran out; precedes its end."""

    def __init__(self, task: Task, starved: task_commands.OutOfMemory) -> None:
        self.task, self.starved = task, starved


class AttemptEnded:
    """The task's attempt is over on its node, and every byte of its log has arrived."""

    def __init__(self, task: Task, end: task_commands.AttemptEnd) -> None:
        self.task, self.end = task, end


class NodeSilent:
    """The node did not answer."""

    def __init__(self, task: Task, reason: str) -> None:
        self.task, self.reason = task, reason


Event = (
    LogBytes
    | HeartbeatSeen
    | PreemptionNoticed
    | PortOpened
    | DiskFilling
    | OutOfMemoryKill
    | AttemptEnded
    | NodeSilent
)


class Follower:
    """Follows each task in a thread; `events` yields what they see, in order for each attempt.

    The size of the local log file is the offset from which a log is continued, so that no second
    record can disagree with it.
    """

    def __init__(
        self,
        run: Run,
        transport: Transport,
        log_path: Callable[[Task], Path],
        console: Console,
    ) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._closed = threading.Event()
        self._warned: set[Path] = set()
        self._run = run
        self._transport = transport
        self._log_path = log_path
        self._console = console

    def follow(self, task: Task, node: Node) -> None:
        """Follow the task's attempt in a thread of its own, to its end."""
        threading.Thread(
            target=self._follow, args=(task, node), daemon=True, name=f"follow {task.name}"
        ).start()

    def close(self) -> None:
        """Stop retrying; a thread that is waiting for bytes ends with its connection."""
        self._closed.set()

    def _follow(self, task: Task, node: Node) -> None:
        folder, log = folder_of(self._run, task), self._log_path(task)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.touch(mode=0o600)

        def followed() -> task_commands.AttemptEnd | None:
            try:
                return self._follow_once(task, node, folder, log)
            except (CloudtrainError, OSError) as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    self._no_room(log)  # says nothing about the node: no reason to end the run
                else:
                    self.events.put(NodeSilent(task, str(error)))
                return None

        end = poll_until(followed, AGAIN, clock=Clock(sleep=self._closed.wait))
        if end is not None:
            self.events.put(AttemptEnded(task, end))

    def _no_room(self, log: Path) -> None:
        if log not in self._warned:
            self._warned.add(log)
            self._console.warn(
                f"{log}: disk full: the task continues, and its log is followed again, without a "
                "gap, once there is space; until then its end is not noticed"
            )

    def _follow_once(
        self, task: Task, node: Node, folder: str, log: Path
    ) -> task_commands.AttemptEnd | None:
        with log.open("ab") as file:
            reader, times = task_commands.FollowReader(), ArrivalIndex(log)
            samples = MetricsFile(log.with_suffix(metrics.SUFFIX))
            end: list[task_commands.AttemptEnd] = []

            def wrote(data: bytes) -> None:
                times.arrived(file.tell(), moments.now())
                append(file, data)
                self._console.task_output(task.name, data.replace(b"\0", b""))
                self.events.put(LogBytes(task, data))

            def beat(data: bytes) -> None:
                for one in reader.feed(data):
                    if isinstance(one, task_commands.AttemptEnd):
                        end.append(one)
                    elif isinstance(one, task_commands.MetricsLine):
                        samples.add(one.text)
                    elif isinstance(one, task_commands.NoticeSeen):
                        self.events.put(PreemptionNoticed(task, one))
                    elif isinstance(one, task_commands.PortState):
                        self.events.put(PortOpened(task, one))
                    elif isinstance(one, task_commands.DiskLow):
                        self.events.put(DiskFilling(task, one))
                    elif isinstance(one, task_commands.OutOfMemory):
                        self.events.put(OutOfMemoryKill(task, one))
                    else:
                        self.events.put(HeartbeatSeen(task, one))

            self._transport.run(
                node,
                task_commands.follow(folder, file.tell(), measured=samples.size),
                on_stdout=wrote,
                on_stderr=beat,
                timeout=LOG_SILENT,
            )
            return end[0] if end else None


class MetricsFile:
    """A task's samples here. Its size is the offset from which they are continued, as the log's.

    They are worth less than the log: without room for them, the task is followed without them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self.size = path.stat().st_size if path.exists() else 0

    def add(self, line: str) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        self._closed = self._closed or self.size + len(data) > MOST_METRICS
        if self._closed:
            return
        try:
            self._path.touch(mode=0o600)
            with self._path.open("ab") as file:
                file.write(data)
        except OSError:
            self._closed = True  # until the next connection, which continues where this one ended
        else:
            self.size += len(data)


def append(file: BinaryIO, data: bytes) -> None:
    """Write to a log; what its node has deleted of it arrives as zeros, and takes no room here."""
    if data.count(0) == len(data):
        file.truncate(file.seek(0, os.SEEK_END) + len(data))
    else:
        file.write(data)
    file.flush()


def listening_ports(tasks: Sequence[Task], node: Node, transport: Transport) -> frozenset[str]:
    """Tasks of a node whose port is open there."""
    listing = "awk '$4 == \"0A\" {print substr($2, length($2) - 3)}' /proc/net/tcp /proc/net/tcp6"
    open_ports = transport.ask(node, listing).stdout.decode("ascii", "replace").split()
    return frozenset(task.name for task in tasks if f"{task.port:04X}" in open_ports)
