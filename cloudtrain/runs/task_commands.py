"""Commands that start, monitor and end a task on its node, and parsers of their answers.

Nothing is run here: each function returns a command for the Transport, or parses its answer. The
node's side: node/task_dispatch.sh and watcher.py, explained in docs/internals/supervision.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal, cast, get_args

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import NodeError
from cloudtrain.core.paths import runs_folder
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command, Secret, script, variables
from cloudtrain.core.ship import inline, text, whole

TAG = "CLOUDTRAIN_TASK"
"""Variable whose value (`layout.tag`) marks every process of an attempt."""


# ── start ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class RemoteCommand:
    """A command and its stdin, which may hold secrets and is never shown."""

    command: Command
    stdin: bytes = field(repr=False)


def start(
    folder: str,
    *,
    tag: str,
    work: str,
    command: str,
    environment: Mapping[str, str | Secret],
    port: int | None = None,
    nccl_address: str | None = None,
    grace: float = 5.0,
) -> RemoteCommand:
    """Start one attempt in the existing folder `work`, once: safe to repeat after a lost reply.

    What the command leaves behind is ended with it: TERM, after `grace` seconds KILL.
    `port` is the one that TensorFlow opens in it: `PortState` reports whether it did. NCCL uses the
    interface that has `nccl_address`. `command` is a shell line for the node's bash, or its sh if
    there is none. It and the environment travel on stdin: secrets are on no command line and on no
    disk. Parse the answer with `parse_start`.
    """
    if "\0" in command:
        raise ValueError("a command cannot hold a NUL byte")
    return RemoteCommand(
        command=whole(
            "starter",
            folder,
            work,
            f"{port:04X}" if port else "",
            nccl_address or "",
            tag,
            str(ceil(grace)),
            inline("sampler"),
            text("task_processes.sh") + text("task_watcher.sh"),
        ),
        stdin=b"\0".join(
            [
                *variables({**environment, TAG: tag}),
                b"",
                command.encode("utf-8", "surrogateescape"),
                b"#end\n",
            ]
        ),
    )


Started = Literal["started", "already", "stopped"]


def parse_start(node: str, completed: Completed) -> Started:
    """Parse the answer. `already`: an earlier start of this attempt holds. `stopped`: a stop came
    before it. Raises NodeError with the node's message if nothing was started."""
    verb, _, rest = completed.stdout.decode(errors="replace").strip().partition(" ")
    for started in get_args(Started):
        if verb == started:
            return cast("Started", started)
    if verb == "failed":
        raise NodeError(node, f"the task was not started: {rest}")
    raise _invalid_answer(node, "start", completed)


# ── status ───────────────────────────────────────────────────────────────────

TaskState = Literal["absent", "running", "exited", "lost"]
_STATES: tuple[TaskState, ...] = get_args(TaskState)


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of a task. `state` is the kernel's letter: R S D, T for a stopped one."""

    pid: int
    state: str
    ticks: int
    """CPU time used, in the kernel's ticks (100 a second)."""
    name: str


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """State of one attempt on its node. `absent`: never started. `lost`: its process is gone and
    nobody saw how it ended (its watcher was killed too, or the machine went down). Times are Unix
    times of the node's clock."""

    folder: str
    state: TaskState
    exit_code: int | None = None
    """Negative for a signal."""
    pid: int | None = None
    size: int = 0
    """Bytes of the log."""
    started: float | None = None
    ended: float | None = None
    processes: tuple[Process, ...] = ()


def status(*folders: str) -> Command:
    """Command for the state of the attempts in these folders: see `parse_status`."""
    return _dispatch("status", *folders)


def parse_status(node: str, completed: Completed) -> tuple[TaskStatus, ...]:
    """States in the order of the folders. Raises NodeError for any other answer."""
    found: list[TaskStatus] = []
    processes: list[list[Process]] = []
    try:
        for line in completed.stdout.decode("utf-8", "surrogateescape").splitlines():
            if line.startswith("- "):
                processes[-1].append(_process(line[2:].split(" ")))
            else:
                found.append(_status_line(line))
                processes.append([])
    except (ValueError, IndexError):
        raise _invalid_answer(node, "status", completed) from None
    if completed.exit_code != 0:
        raise _invalid_answer(node, "status", completed)
    return tuple(
        replace(one, processes=tuple(its)) for one, its in zip(found, processes, strict=True)
    )


def _status_line(line: str) -> TaskStatus:
    word, code, pid, size, started, ended, folder = line.split(" ", 6)
    state = next((state for state in _STATES if state == word), None)
    if state is None:
        raise ValueError(word)
    return TaskStatus(
        folder=folder,
        state=state,
        exit_code=None if code == "-" else exit_code_of(code),
        pid=int(pid) or None,
        size=int(size),
        started=float(started) or None,
        ended=float(ended) or None,
    )


def _process(words: Sequence[str]) -> Process:
    pid, state, ticks, name = words
    return Process(pid=int(pid), state=state, ticks=int(ticks), name=name)


def exit_code_of(raw: str) -> int:
    """Convert a shell's exit code: 137 stands for SIGKILL and for `exit 137`, Python's -9 for both.
    They cannot be told apart: the user's line runs in a shell, which turns the first into the
    second unless the line is one plain command."""
    code = int(raw)
    return 128 - code if 129 <= code <= 159 else code


# ── follow ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The task runs, its log has `size` bytes, these are its processes."""

    size: int
    processes: tuple[Process, ...]

    @property
    def frozen(self) -> tuple[Process, ...]:
        """Processes that a SIGSTOP (T) or a debugger (t) holds."""
        return tuple(process for process in self.processes if process.state in "Tt")


@dataclass(frozen=True, kw_only=True)
class NoticeSeen:
    """The node's end is announced. `given`: Unix time; `word`: preempted, shutdown or lifetime."""

    given: float
    word: str = "preempted"


@dataclass(frozen=True, kw_only=True)
class PortState:
    """State of a task's port, as seen on its node. `after`: seconds from its start until then.
    `never`: seconds after which it ended without opening it; `elsewhere`: it listened on another
    port instead."""

    after: float | None = None
    never: float | None = None
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True)
class DiskLow:
    """Less than 500 MB of the disk with the task's folder are free; in bytes."""

    free: int


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The kernel killed the task because memory ran out. Bytes, None if unknown: the limit of its
    cgroup or else of the machine; the cgroup's peak; the task's own memory."""

    limit: int | None
    peak: int | None
    rss: int | None


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """The attempt is over, and every byte of its log was sent before this. `exit_code` is negative
    for a signal, None if unknown or if the attempt never started."""

    state: Literal["exited", "lost", "absent"]
    exit_code: int | None = None


def follow(folder: str, offset: int, *, measured: int = 0, interval: float = 5.0) -> Command:
    """Command that prints the log's bytes from `offset` on stdout as they are written, until the
    task has ended.

    stderr has a heartbeat at once and every `interval` seconds, the samples of the node's metrics
    after the first `measured` bytes, and the end: parse it with `FollowReader`. If stderr closes
    without an end, follow again from the offsets reached. The command ends with its client.
    """
    if offset < 0 or measured < 0:
        raise ValueError("an offset must not be negative")
    arguments = folder, str(offset), f"{interval:g}", str(measured)
    return whole("follower", *arguments)


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """A line of the node's metrics; cloudtrain/core/metrics.py parses it."""

    text: str


FollowFact = Heartbeat | MetricsLine | NoticeSeen | PortState | DiskLow | OutOfMemory | AttemptEnd

MOST_IN_LINE = 1 << 20
"""Limit in bytes: a heartbeat with ten thousand processes has 400 kB."""


class FollowReader:
    """Parses heartbeats and the end from a follower's stderr, however its bytes are split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[FollowFact, ...]:
        """The facts complete so far. Other lines (an SSH banner) are skipped."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MOST_IN_LINE:]
        parsed = (_follow_line(line.decode(errors="replace")) for line in lines)
        return tuple(one for one in parsed if one is not None)


def _follow_line(line: str) -> FollowFact | None:
    words = line.split(" ")
    try:
        match words:
            case ["end", "lost"]:
                return AttemptEnd(state="lost")
            case ["end", "absent"]:
                return AttemptEnd(state="absent")
            case ["end", code]:
                return AttemptEnd(state="exited", exit_code=exit_code_of(code))
            case ["notice", given]:
                return NoticeSeen(given=float(given))
            case ["notice", given, word]:
                return NoticeSeen(given=float(given), word=word)
            case ["served", "never" | "elsewhere" as how, life]:
                return PortState(never=int(life) / 100, elsewhere=how == "elsewhere")
            case ["served", after]:
                return PortState(after=int(after) / 100)
            case ["low", free]:
                return DiskLow(free=int(free) * 1024)
            case ["metrics", sample]:
                return MetricsLine(text=sample)
            case ["oom", figures]:
                limit, peak, rss = (int(each) if each else None for each in figures.split(":"))
                return OutOfMemory(limit=limit, peak=peak, rss=rss)
            case ["beat", size, *processes]:
                its = tuple(_process(one.split("/")) for one in processes if one)
                return Heartbeat(size=int(size), processes=its)
    except ValueError:
        return None
    return None


# ── stop ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class StopResult:
    """Number of processes that got TERM, and of those that had to be killed."""

    termed: int
    killed: int


def stop(folder: str, *, tag: str, grace: float) -> Command:
    """Command that ends every process of the attempt: TERM, after `grace` seconds KILL, until none
    is left. They are found by session, descent and tag. Safe to repeat; an attempt that never
    started then never will. Silent for up to `grace` + 15 seconds. See `parse_stop`."""
    return _dispatch("stop", folder, tag, str(ceil(grace)))


def stop_orphans_command(cluster: str, *, keep: Sequence[str] = (), grace: float = 2.0) -> Command:
    """Command that ends what is left of every attempt on this node, except the tags in `keep`.
    Silent for up to `grace` + 15 seconds for each attempt that still runs. See `parse_stop`."""
    return _dispatch("orphans", cluster, runs_folder(cluster), str(ceil(grace)), *keep)


def parse_stop(node: str, completed: Completed) -> StopResult:
    """Parse the answer. Raises NodeError if processes survive SIGKILL, or for any other answer."""
    termed = killed = 0
    left: list[str] = []
    try:
        for line in completed.stdout.decode(errors="replace").splitlines():
            _, _, counts = line.rpartition("stopped ")
            first, second, *more = counts.split()
            termed, killed, left = termed + int(first), killed + int(second), left + more
    except ValueError:
        raise _invalid_answer(node, "stop", completed) from None
    if left:
        raise NodeError(
            node,
            f"processes {', '.join(left)} survive SIGKILL",
            hint="the kernel holds them, often on a dead disk or GPU: reboot or destroy the node",
        )
    if completed.exit_code != 0:
        raise _invalid_answer(node, "stop", completed)
    return StopResult(termed=termed, killed=killed)


def parse_orphans(node: str, completed: Completed) -> tuple[tuple[str, str], ...]:
    """Run and task of each attempt that ran, ("", "") for what outlived one. See `parse_stop`."""
    ended = []
    if parse_stop(node, completed).termed or completed.stdout.strip():
        for line in completed.stdout.decode(errors="replace").splitlines():
            _, run, task, _ = (*line.partition(" ")[0].split("/"), "", "", "", "")[:4]
            ended.append((run, task))
    return tuple(ended)


def dump_stacks(folder: str, *, tag: str) -> Command:
    """Command that prints what each process of the attempt does now: as its Python itself writes
    it, or by py-spy if there is one. It ends nothing."""
    return _dispatch("stacks", folder, tag)


def changed_file(work: str, minutes: int) -> Command:
    """Command that prints `changed FILE` if a file below `work` has changed within that time."""
    return _dispatch("changed", work, str(minutes))


def _dispatch(verb: str, *arguments: str) -> Command:
    return script(text("task_processes.sh") + text("task_dispatch.sh"), verb, *arguments)


def _invalid_answer(node: str, what: str, completed: Completed) -> NodeError:
    words = (completed.stderr or completed.stdout).decode(errors="replace").strip()
    return NodeError(
        node,
        f"invalid answer to {what}, exit code {completed.exit_code}: {words[-300:] or 'no output'}",
        hint="the node needs /bin/sh, coreutils, grep and awk",
    )
