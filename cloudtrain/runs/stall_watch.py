"""Says that nothing moves in a run, or that its GPUs compute nothing, and where its tasks wait.

It ends nothing: `train.stall_timeout` does, if it is set (state_machine.timed_out)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from cloudtrain.core import moments, paths
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import MovesAgain, NothingMoves, nothing_moves
from cloudtrain.core.metrics import GPU_RESTS, Sample
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import some
from cloudtrain.core.retry import PEER_GONE, STILL
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands
from cloudtrain.runs.attempt_state import AttemptState, serves
from cloudtrain.runs.observers import Observer, Watched
from cloudtrain.runs.run_progress import fresh_samples
from cloudtrain.runs.tasks import node_of, read_stacks
from cloudtrain.training.log_text import delivered_name, is_library
from cloudtrain.training.strategies import strategy_of

AGAIN = 60.0
"""Seconds until the next look at files and devices, after these have moved."""

GPUS_EVERY = 30.0
"""Seconds between two looks at the GPUs' samples."""

NETWORK, DISK = 50e3, 1e6
"""Bytes a second of a node from which it downloads, or reads its input: heartbeats take less."""


@dataclass(frozen=True, kw_only=True)
class Still:
    """Since `since`, no running task of an attempt has moved."""

    since: float
    tasks: tuple[Task, ...]
    finished: Mapping[str, float]
    """Tasks that the others are connected to and that have ended with 0, with the time of that."""


def still(state: AttemptState, now: float) -> Still | None:
    """None as long as one of the tasks moves, or is not seen."""
    running = [view for view in state.tasks.values() if not view.ended]
    unseen = any(
        view.unreachable_since is not None or view.stopped_since is not None or view.begun
        for view in running
    )
    if not running or unseen or state.succeeded_at is not None:
        return None
    finished = {
        view.task.name: view.ended_at
        for view in state.tasks.values()
        if view.exit_code == 0 and view.ended_at is not None and serves(state, view.task)
    }
    since = max([view.moved_at for view in running] + list(finished.values()))
    if now - since < (PEER_GONE if finished else STILL):
        return None
    tasks = tuple(view.task for view in running)
    serving = strategy_of(state.config).never_exit  # they stand still whatever the others do
    waiting = tuple(task for task in tasks if task.role not in serving)
    return Still(since=since, tasks=waiting or tasks, finished=finished)


def described(found: Still, stacks: Mapping[str, bytes], now: float) -> str:
    """`worker0 waits in fit, in a collective (train.py:16), worker1 waits in …`."""
    places: dict[str, list[str]] = {}
    for task in found.tasks:
        where = waits_in(stacks.get(task.name, b""))
        places.setdefault(f" {where}" if where else "", []).append(task.name)
    ended = sorted(found.finished.items(), key=lambda each: each[1])
    gone = [f"{name}, which ended with 0 {ago(now - at)} ago" for name, at in ended]
    peers = f" for {some(gone)}," if gone else ""
    return ", ".join(
        f"{some(names)} wait{'s' if len(names) == 1 else ''}{peers}{where}".rstrip(",")
        for where, names in places.items()
    )


def ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def busy(samples: Sequence[Sample], *, whole_machine: bool) -> bool:
    """True if samples show work: of GPUs; network and disks where the machine is its own."""
    recent = [sample for sample in samples if sample.time >= samples[-1].time - PEER_GONE]
    if any((gpu.utilization or 0.0) > GPU_RESTS for sample in recent for gpu in sample.gpus):
        return True
    count = len(recent)
    moved = sum(sample.received + sample.sent for sample in recent)
    stored = sum(sample.disk_read + sample.disk_written for sample in recent)
    return whole_machine and count > 0 and (moved > NETWORK * count or stored > DISK * count)


def resting_gpus(samples: Mapping[str, Sequence[Sample]]) -> tuple[str, ...]:
    """Tasks with GPUs, if none of all GPUs has computed within `STILL` seconds; else none."""
    with_gpus = {name: of for name, of in samples.items() if of and of[-1].gpus}
    for of in with_gpus.values():
        begin = of[-1].time - STILL
        figures = [gpu.utilization for one in of if one.time >= begin for gpu in one.gpus]
        if of[0].time > begin or any(each is None or each > GPU_RESTS for each in figures):
            return ()
    return tuple(with_gpus)


class StallWatch(Observer):
    """Looks at one attempt; what costs calls to nodes is done in a thread."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        if nothing_moves(self.session.records.events(), self.run.id) is not None:
            self._forget()  # said by a process that is gone
        self._answer: tuple[Still, str | None] | None = None
        self._told: Still | None = None
        self._next = self._next_gpus = 0.0
        self._resting: tuple[str, ...] = ()
        """Tasks whose GPUs do not compute, until that has been said."""

    def look(self, state: AttemptState) -> None:
        """Warn once for each time that nothing moves, and say when something does again."""
        session, now = self.session, self.session.clock.awake()
        found = still(state, now)
        if self._told is not None and (found is None or found.since > self._told.since):
            session.console.say(f"the run moves again, after {ago(now - self._told.since)}")
            self._forget()
        answer, self._answer = self._answer, None
        if answer is not None and found is not None and answer[0] == found:
            self._answered(found, answer[1], now)
        if found is None:
            self._look_at_gpus(state, now)
        elif self._told is None and now >= self._next and not self.is_busy():
            self._ask(found)

    def end(self) -> None:
        if self._told is not None:
            self._forget()

    def _forget(self) -> None:
        self._told = None
        self.session.records.journal(MovesAgain(run=self.run.id))

    def _ask(self, found: Still) -> None:
        """Ask the nodes, in a thread."""
        run = self.run

        def ask() -> None:
            try:
                if self._moves(run, found.tasks):
                    self._answer = found, None
                    return
                stacks = read_stacks(self.session, run, found.tasks)
                self._answer = found, described(found, stacks, self.session.clock.awake())
            except CloudtrainError:  # a node does not answer: the monitor says so
                self._answer = found, None

        self.start(ask)

    def _answered(self, found: Still, text: str | None, now: float) -> None:
        if text is None:
            self._next = now + AGAIN
            return
        self._told, quiet = found, now - found.since
        config = self.session.config
        limit = config.train.stall_timeout
        set_to = "`train.stall_timeout: 10m`" if limit is None else "`train.stall_timeout`"
        self.session.console.warn(
            f"nothing has moved for {ago(quiet)}: {text}; `cloudtrain stop-run {config.name}`, or "
            f"{set_to}, ends it"
        )
        since = self.session.clock.now() - quiet
        self.session.records.journal(NothingMoves(run=self.run.id, since=since, text=text))

    def _moves(self, run: Run, tasks: Iterable[Task]) -> bool:
        """True if a task writes files, or its node computes, downloads or reads."""
        own = not facts_of(self.session.config.provider).on_this_machine
        samples = self._samples(run, tasks)
        if any(busy(of, whole_machine=own) for of in samples.values() if of):
            return True

        def writes(task: Task) -> bool:
            work = paths.work_folder(run.cluster, run.id, task.name)
            minutes = max(1, round(STILL / 60))
            done = self.session.transport.run(
                node_of(self.session, task), task_commands.changed_file(work, minutes), timeout=60.0
            )
            return done.stdout.startswith(b"changed ")

        return any(fan_out(list(tasks), writes, name=lambda task: task.name))

    def _samples(self, run: Run, tasks: Iterable[Task]) -> dict[str, list[Sample]]:
        """Of nodes whose samples still arrive."""
        records, now = self.session.records, moments.wall()
        found = ((task.name, fresh_samples(records, run, task, now, PEER_GONE)) for task in tasks)
        return {name: samples for name, samples in found if samples is not None}

    def _look_at_gpus(self, state: AttemptState, now: float) -> None:
        """Warn once in an attempt that no GPU of its tasks computes although they run."""
        if self._resting and state.succeeded_at is None:
            names, self._resting = self._resting, ()
            self._next_gpus = math.inf
            self.session.console.warn(
                f"no GPU of {some(names)} has computed anything for {ago(STILL)}, while the tasks "
                "run: they load data, or the script uses the CPU alone"
            )
        if now < self._next_gpus or self.is_busy():
            return
        self._next_gpus = now + GPUS_EVERY
        accelerator = self.session.plan.accelerator
        running = [view.task for view in state.tasks.values() if not view.ended]
        tasks = [task for task in running if accelerator(task.node) is not None]
        run = self.run

        def ask() -> None:
            self._resting = resting_gpus(self._samples(run, tasks))

        if tasks:
            self.start(ask)


# ── stacks of a task ───────────────────────────────────────────────────────────


_PROCESS = re.compile(r"(?m)^== \d+ .*$")
_THREAD = re.compile(r"(?m)^(?:Current thread|Thread) 0x[0-9a-f]+.*$")
_FRAME = re.compile(r'(?m)^  File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<name>.+)$')
_SOURCE = re.compile(r"(?m)^source (\d+) (.+?): (.*)$")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_COLLECTIVE = re.compile(r"collective|cross_device|all_reduce|allreduce|horovod", re.IGNORECASE)
_WRAPPERS = frozenset({"error_handler", "wrapper", "op_dispatch_handler", "_method_wrapper"})
"""Functions between a script and what it calls (Keras' and TensorFlow's traceback_utils)."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str


def waits_in(stacks: bytes) -> str | None:
    """`in evaluate, in a collective (train.py:16)`: where the user's code waits, if known."""
    text = stacks.decode("utf-8", "replace")
    sources = {(found[2], int(found[1])): found[3] for found in _SOURCE.finditer(text)}
    for process in _PROCESS.split(text):
        threads = [_frames(each) for each in _THREAD.split(process)[1:]]
        own = [thread for thread in threads if any(not is_library(each.file) for each in thread)]
        if own:
            main = next((each for each in own if each[-1].name == "<module>"), own[-1])
            waits = _described(main, sources)
            together = any(_COLLECTIVE.search(f.file) for thread in threads for f in thread)
            return f"{waits[0]}{', in a collective' if together else ''} ({waits[1]})"
    return _in_kernel(text)


def _in_kernel(text: str) -> str | None:
    """`in a sleep (python3)`: what the kernel says of a program that wrote no stack."""
    for process in _STATE.finditer(text):
        waits = next((words for names, words in _KERNEL if names.search(process["waits"])), None)
        if waits is not None and process["name"] not in _SHELLS:
            return f"{waits} ({process['name']})"
    return None


_STATE = re.compile(r"(?m)^== \d+ (?P<name>\S+), state S, \d+ ticks, waits in (?P<waits>\w+)")
_KERNEL = (
    (re.compile("nanosleep"), "in a sleep"),
    (re.compile("futex"), "for a lock or a thread"),
    (
        re.compile("inet_csk_accept|sk_wait_data|unix_stream|skb_wait|inet_csk_wait"),
        "for a connection",
    ),
    (re.compile("poll|ep_|select"), "for a connection or a file"),
    (re.compile("pipe_"), "for a pipe"),
)
"""By the kernel's functions (/proc/PID/wchan, proc(5)), which differ between releases."""
_SHELLS = frozenset({"sh", "bash", "dash", "timeout", "setsid", "tee", "cat", "tail"})


def _frames(thread: str) -> Sequence[Frame]:
    return [
        Frame(file=found["file"], line=int(found["line"]), name=found["name"])
        for found in _FRAME.finditer(thread)
    ]


def _described(thread: Sequence[Frame], sources: Mapping[tuple[str, int], str]) -> tuple[str, str]:
    """Call in the innermost line of the user's own code, and the line's place. The innermost frame
    comes first; a call of C code has none."""
    number = next(n for n, each in enumerate(thread) if not is_library(each.file))
    here = thread[number]
    called = next((f.name for f in reversed(thread[:number]) if f.name not in _WRAPPERS), None)
    if called is None or called.startswith("__"):  # a class is made
        found = _CALL.search(sources.get((here.file, here.line), ""))
        called = found[1] if found else here.name
    return f"in {called}", f"{delivered_name(here.file)}:{here.line}"
