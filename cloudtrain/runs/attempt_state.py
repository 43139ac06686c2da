"""State of a running attempt as seen from here, and which of its tasks have joined the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cloudtrain.cluster.plan import first_task, serving_tasks
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.retry import JOINED_LATE
from cloudtrain.core.run_record import CAUSES, Cause, CauseKind, Collectives, Task
from cloudtrain.runs.task_commands import OutOfMemory, PortState, Process
from cloudtrain.training.log_text import GRPC_WINDOW, reduces_over_grpc, waits_for_peers

TAIL = 65_536
"""Bytes of a task's log that are kept to find the cause."""


COMPUTES = 0.03
"""Share of a core from which a task computes: TensorFlow 2.21 in a collective uses 0.002 (seen)."""

TICKS = 100
"""Ticks a second of the kernel's figures (proc(5), USER_HZ)."""


@dataclass(kw_only=True)
class TaskView:
    """State of one task as seen from here; times are those of `Clock.awake`."""

    task: Task
    exit_code: int | None = None
    ended_at: float | None = None
    lost: str | None = None
    """Why its node counts as lost."""
    notice: float | None = None
    """When the end of its node was announced, a Unix time."""
    announced: str = "preempted"
    """How its node ends, once there is a notice; see `task_commands.NoticeSeen`."""
    stopped_since: float | None = None
    port_open: bool = False
    opened_at: float | None = None
    starved: OutOfMemory | None = None
    """The kernel's figures if it killed the task because memory ran out."""
    served: PortState | None = None
    """State of its port, as its node reports it."""
    last_byte: float = 0.0
    moved_at: float = 0.0
    """When it last wrote a line of its own or used a processor."""
    beat: tuple[float, int, frozenset[int]] | None = None
    """Of its last heartbeat: when it came, all ticks, and the processes."""
    unreachable_since: float | None = None
    tail: bytes = b""
    free: int | None = None
    """Bytes on its disk, once these are few."""
    grpc: str | None = None
    """How NCCL would replace gRPC between GPUs, once its log says that gRPC is used."""
    restarted: bool = False
    """Whether it was restarted alone in this attempt of the run."""
    connected: bool = True
    """False from its restart until TensorFlow can have connected to it again."""
    restart_at: float | None = None
    """When it is restarted alone, after it has failed."""
    restarted_at: float | None = None
    """When it was started alone; None while its node is being prepared for that."""
    failed_at: float | None = None
    """When it failed before its restart."""
    begun: bool = False
    """True if its restart is recorded, but was interrupted before it started."""
    taken_over: bool = False
    """True if its restart was recorded by a process that is gone: its node may be half ready."""
    final: str | None = None
    """Why it can never be restarted alone."""

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.lost is not None

    @property
    def is_prepared(self) -> bool:
        """True while its node is being prepared for its restart alone, whose preflight opens its
        port."""
        return self.restarted and self.restarted_at is None

    def saw(self, data: bytes, now: float) -> None:
        self.last_byte = now
        if not waits_for_peers(data):
            self.moved_at = now
        self.tail = (self.tail + data)[-TAIL:]
        if b".AUTO" in data[-TAIL:] and self.grpc is None:
            self.grpc = reduces_over_grpc(self.tail[-len(data) - GRPC_WINDOW :])

    def beats(self, processes: Sequence[Process], now: float) -> None:
        """See what its processes have computed since the last heartbeat."""
        ticks, pids = sum(one.ticks for one in processes), frozenset(one.pid for one in processes)
        if self.beat is not None:
            then, before, old = self.beat
            if pids != old or ticks - before > COMPUTES * TICKS * (now - then):
                self.moved_at = now
        self.beat = now, ticks, pids

    def begin_again(self, task: Task, now: float) -> None:
        """See the task in its next attempt, which is about to be started alone."""
        again = TaskView(task=task, last_byte=now, moved_at=now, notice=self.notice, grpc=self.grpc)
        again.restarted, again.connected, again.begun = True, False, True
        again.failed_at = self.ended_at or self.stopped_since or now
        vars(self).update(vars(again))

    def opened(self, now: float) -> None:
        if not self.port_open:
            self.port_open, self.opened_at = True, now


@dataclass(frozen=True, kw_only=True)
class End:
    """A limit of a run: the Unix time at which it is reached (`inf`: never), and its figure."""

    at: float
    limit: float = 0.0
    warning: str | None = None
    """For a limit that is near, and should be said."""


@dataclass(kw_only=True)
class AttemptState:
    """State of a run attempt; its times are those of its tasks, except for the Unix times below."""

    config: ClusterConfig
    tasks: Mapping[str, TaskView]
    started: float
    ends: dict[CauseKind, End] = field(default_factory=dict)
    """Limits at which the tasks are ended, by the cause that the run then fails by."""
    first_failure: float | None = None
    first_port: float | None = None
    formed_after: float | None = None
    """Seconds until all tasks that serve had opened their ports; None: they have not yet."""
    collectives: Collectives | None = None
    """`grpc` once the user has been warned of it, in any attempt of the run."""
    succeeded_at: float | None = None
    evaluator_given: float | None = None
    """When the evaluator got the checkpoint that the chief left at its success."""
    stop_asked: bool = False
    warned: set[str] = field(default_factory=set)
    tolerated: list[str] = field(default_factory=list)
    """Tasks that failed and without which the run went on."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Task → how often it was restarted alone, over all attempts of the run."""

    def opened(self, view: TaskView, now: float) -> None:
        """See that the task has opened its port."""
        view.opened(now)
        if self.first_port is None:
            self.first_port = now


def serves(state: AttemptState, task: Task) -> bool:
    """True if TensorFlow opens the task's port."""
    return task.name in serving_tasks(
        tuple(view.task for view in state.tasks.values()), state.config
    )


def has_joined(state: AttemptState, view: TaskView) -> bool | None:
    """True if the cluster had formed with this task in it, so that a chief may do without it. None:
    its port was open, but not yet those of all others. Unknown counts as joined."""
    if not serves(state, view.task) or state.formed_after is not None:
        return True
    if view.task.name in state.warned:  # the run goes on without it already
        return True
    if never_served(state, view) or (view.lost is not None and not view.port_open):
        return False
    if view.ended:
        return None if view.port_open and not_joined_yet(state) else True
    return state.first_port is None


def not_joined_yet(state: AttemptState) -> bool:
    """True for a running task on a reachable node that has still not opened its port."""
    return any(
        not (view.port_open or view.ended) and view.unreachable_since is None
        for view in state.tasks.values()
        if serves(state, view.task)
    )


def never_served(state: AttemptState, view: TaskView) -> bool:
    """True if the task certainly ended without having opened its port. One that listened elsewhere
    may have a cluster of its own, if no other has opened its port either."""
    if view.served is None or view.served.never is None or view.port_open:
        return False
    return not (view.served.elsewhere and state.first_port is None)


# ── whether the tasks formed a cluster ─────────────────────────────────────────


TOO_SHORT = 2.0
"""Seconds: a task that ended sooner cannot have imported TensorFlow, let alone have trained."""


def detect_formation(state: AttemptState, now: float) -> bool:
    """Record the moment at which all serving tasks have their port open for the first time."""
    views = [view for view in state.tasks.values() if serves(state, view.task)]
    if state.formed_after is not None or not views:
        return False
    if not all(view.port_open for view in views):
        return False
    last = max(view.opened_at or now for view in views)
    if any(view.ended_at is not None and view.ended_at + JOINED_LATE < last for view in views):
        return False
    after = [view.served.after for view in views if view.served and view.served.after is not None]
    state.formed_after = max(after) if len(after) == len(views) else now - state.started
    return True


def trained_as_one(state: AttemptState) -> bool | None:
    """True if the tasks trained as one; None if unknown or not applicable."""
    if state.formed_after is not None:
        return True
    alone = [view for view in state.tasks.values() if serves(state, view.task)]
    lives = [
        view.served.never
        for view in alone
        if view.served and view.served.never is not None and never_served(state, view)
    ]
    return False if any(life >= TOO_SHORT for life in lives) else None


def separate_trainings_failure(state: AttemptState) -> Cause | None:
    """Failure of tasks that all succeeded, but trained separate models."""
    if trained_as_one(state) is not False:
        return None
    count = sum(view.task.role != "evaluator" for view in state.tasks.values())
    facts = CAUSES["not_clustered"]
    text = facts.words.format(count=count)
    return Cause(task="", node="", kind="not_clustered", text=text, hint=facts.hint)


def separate_trainings_note(state: AttemptState) -> str | None:
    """Note on a successful run whose ports do not show whether it trained as one cluster."""
    views = [view for view in state.tasks.values() if serves(state, view.task)]
    if trained_as_one(state) is not None or not views:
        return None
    if not all(view.served is not None and view.served.never is not None for view in views):
        return None
    if any(view.served is not None and view.served.elsewhere for view in views):
        return (
            "no task opened its TF_CONFIG port, but some listened on others: it is unknown whether "
            "they trained as one cluster (set `train.tf_config: false` if that is intended)"
        )
    return (
        "no task opened its TF_CONFIG port, and they ended too soon to have trained: it is unknown "
        "whether they formed one cluster"
    )


# ── what an evaluator has scored ────────────────────────────────────────────────


QUIET = 20.0
"""Seconds without a line or computing after a score, in which an Estimator's evaluator exports."""

STILL_AFTER = 60.0
"""The same of an evaluator that does not say which checkpoint it has scored."""

_SAVED = re.compile(rb"Saving checkpoints for (\d+) into")
_SCORED = re.compile(rb"Saving dict for global step (\d+)")
"""Lines of TensorFlow 1 and of Estimators (basic_session_run_hooks.py, estimator.py, to 2.15)."""


def has_scored_last(state: AttemptState, view: TaskView, now: float) -> bool:
    """True if the evaluator has scored the last checkpoint and waits for another one.

    Either both logs name the step, or it has worked since it got the checkpoint that the chief left
    (`evaluator_given`) and stands still. An Estimator's evaluator may sleep for ten minutes before
    it scores: it has not worked then. With GPUs, a processor that rests says nothing."""
    quiet = now - view.moved_at
    first = state.tasks[first_task(tuple(each.task for each in state.tasks.values())).name]
    saved, scored = _SAVED.findall(first.tail), _SCORED.findall(view.tail)
    if saved and scored:
        return int(scored[-1]) >= int(saved[-1]) and quiet >= QUIET
    group = state.config.nodes.get("evaluator")
    given = state.evaluator_given
    if given is None or group is None or group.accelerator is not None:
        return False
    return view.moved_at > given and quiet >= STILL_AFTER
