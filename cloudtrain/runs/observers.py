"""Observers of a running attempt: what costs calls to nodes, provider or store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from posixpath import basename, normpath

from cloudtrain.artifacts.checkpoint_parts import STATE
from cloudtrain.artifacts.checkpoints import landed_checkpoint, put_checkpoints
from cloudtrain.artifacts.land import land_so_far, take_checkpoint
from cloudtrain.artifacts.run_index import store_record
from cloudtrain.cluster.session import Session
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Artifact
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import ALONE_LOST_AFTER, LOST_AFTER, PROVIDER_SILENT
from cloudtrain.core.run_record import CauseKind, Run
from cloudtrain.runs.attempt_state import AttemptState, TaskView, serves
from cloudtrain.runs.limits import LIMITS
from cloudtrain.runs.node_agents import last_sync, start_agents, task_stop
from cloudtrain.runs.tail import listening_ports
from cloudtrain.runs.tasks import landing_of, log_files, nodes_of


@dataclass(kw_only=True)
class Watched:
    """The session and the run of a running attempt; both change when a task is restarted alone."""

    session: Session
    run: Run
    restarts: int = 0
    started: Run = field(init=False)
    """The run without the attempts that are recorded, and not started yet."""

    def __post_init__(self) -> None:
        self.started = self.run

    def restarted(self, session: Session) -> None:
        """Go on with the session that has the node of a task that was restarted."""
        self.session, self.started, self.restarts = session, self.run, self.restarts + 1


class Observer:
    """Looks at a running attempt, in each turn of the monitor. It is made from a `Watched` and
    holds nothing else, so that after a restart no observer works on connections to lost nodes."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._restarts = watched, -1
        self._thread: threading.Thread | None = None

    @property
    def session(self) -> Session:
        return self._watched.session

    @property
    def run(self) -> Run:
        return self._watched.run

    def look(self, state: AttemptState) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """The attempt is decided."""

    def is_anew(self) -> bool:
        """True at the first call, and at the first one after each restart."""
        before, self._restarts = self._restarts, self._watched.restarts
        return before != self._restarts

    def start(self, work: Callable[[], None]) -> None:
        """Do in a thread what costs calls to nodes, provider or store."""
        self._thread = threading.Thread(target=work, name=type(self).__name__, daemon=True)
        self._thread.start()

    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()


RETRY = 60.0
"""Seconds before a retry after a failure."""


EVALUATOR_EVERY = 30.0
"""Seconds between checks for a new checkpoint if `artifacts.every` is not set."""


def report_lifetime_end(session: Session, run: Run) -> None:
    """Report when the nodes end, and that what exists is landed before."""
    config = session.config
    end = min(node.expires for node in session.nodes if node.expires is not None)
    stop = min(task_stop(config, node, run.created) for node in session.nodes)
    then = f"; its tasks get SIGTERM at {utc(stop)}" if stop < end else ""
    session.console.warn(
        f"the lifetime of {config.name} ends at {utc(end)} (limits.max_lifetime): landing what "
        f"exists{then}"
    )


def utc(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


class PeriodicSync(Observer):
    """Syncs every `artifacts.every`, one sync at a time, in its own thread; stores the record at
    once, so that other machines can see the run.

    An evaluator reads the checkpoints that the chief writes on another node: the landed ones are
    copied to it, the last one at once, as it has only its grace to score it. Everything that the
    others have made lands at once, too: their nodes wait as long as the evaluator."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        session, run = watched.session, watched.run
        folder = session.config.train.checkpoints
        self._folder = normpath(folder) if folder else None
        self._evaluators = [task for task in run.tasks if task.role == "evaluator" and folder]
        self._every = session.config.artifacts.every
        self._pause = self._every or (EVALUATOR_EVERY if self._evaluators else float("inf"))
        self._next = session.clock.now() + self._pause
        self._knows_the_beginning = self._knows_the_end = False
        self._noticed: set[str] = set()
        self._lifetime_ends = False
        self._given: Mapping[str, Artifact] = {}
        self._given_at: float | None = None
        self._end_given: float | None = None

    def look(self, state: AttemptState) -> None:
        state.evaluator_given = self._end_given
        if self.is_anew():
            self._noticed, self._knows_the_beginning = set(), False
        if self.is_busy():
            return
        if not self._knows_the_beginning:
            self._knows_the_beginning = True
            self.start(self._store_record)
            return
        if self._evaluators and state.succeeded_at is not None and not self._knows_the_end:
            self._knows_the_end, self._next = True, 0.0
        noticed = {view.task.name for view in state.tasks.values() if view.notice is not None}
        if noticed - self._noticed:  # before the cloud takes the nodes
            self._noticed, self._next = noticed, 0.0
        now = self.session.clock.now()
        syncs = (last_sync(node, self.run.created) for node in self.session.nodes)
        if not self._lifetime_ends and now >= min(syncs, default=float("inf")):
            self._lifetime_ends, self._next = True, 0.0
            report_lifetime_end(self.session, self.run)
        if now < self._next:
            return
        self._next = now + self._pause
        self.start(self._work)

    def end(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _store_record(self) -> None:
        try:
            store_record(self.run, self.session.store, self.session.clock.now())
        except CloudtrainError as error:
            self.session.console.warn(f"cannot store the run's record yet: {error}")

    def _work(self) -> None:
        try:
            at_end = self._knows_the_end
            if at_end:  # before all else, as it has its grace for it
                self._give()
                self._end_given = self._given_at
            if self._every or self._noticed or self._lifetime_ends or at_end:
                session, run = self.session, self.run
                logs = log_files(session, run)
                land_so_far(landing_of(session), run, nodes_of(session, run), logs)
                store_record(run, session.store, session.clock.now())
            if not at_end:
                self._give()
        except CloudtrainError as error:
            self.session.console.warn(f"cannot land artifacts yet: {error}")

    def _give(self) -> None:
        """Copy the chief's checkpoint to evaluators if it differs from the last one."""
        folder = self._folder
        if not self._evaluators or not folder:
            return
        session, run = self.session, self.run
        if session.config.shared is not None and not self._knows_the_end:
            return  # they read it where it is written
        nodes = nodes_of(session, run)
        take_checkpoint(landing_of(session), run, nodes)
        landed = landed_checkpoint(run.id, folder, session.store)
        if session.config.shared is not None:
            saved = [file.mtime / 1e9 for path, file in landed.items() if basename(path) == STATE]
            self._given_at = max(saved, default=session.clock.now())
            return
        if landed == self._given:
            return
        held = {task.name: nodes[task.name] for task in self._evaluators if task.name in nodes}
        put_checkpoints(run, held, folder, session.transport, session.store)
        self._given, self._given_at = landed, session.clock.now()


LIMITS_EVERY = 15.0
"""Seconds between two looks at the limits."""


class LimitWatch(Observer):
    """Tells a running attempt when each limit ends it, and warns once of one that is near."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._next = 0.0
        self._warned: set[CauseKind] = set()

    def look(self, state: AttemptState) -> None:
        now = self.session.clock.now()
        if now < self._next:
            return
        self._next = now + LIMITS_EVERY
        for kind, limit in LIMITS.items():
            if (end := limit.end(self.session, self.run)) is None:
                continue
            state.ends[kind] = end
            if end.warning is not None and kind not in self._warned:
                self._warned.add(kind)
                self.session.console.warn(end.warning)


class Probes(Observer):
    """Probes that cost a call: which ports are open, and whether a silent node still exists."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._next_ports = 0.0
        self._next_lost = 0.0

    def look(self, state: AttemptState) -> None:
        now = self.session.clock.awake()
        waiting = [
            view
            for view in state.tasks.values()
            if not (view.port_open or view.ended or view.is_prepared) and serves(state, view.task)
        ]
        if waiting and now >= self._next_ports:
            self._ports(state, waiting, now)
            self._next_ports = self.session.clock.awake() + 1.0
        silent = [
            view for view in state.tasks.values() if view.unreachable_since and not view.ended
        ]
        if silent and now >= self._next_lost:
            self._lost(state, silent, now)
            self._next_lost = self.session.clock.awake() + 3.0

    def _ports(self, state: AttemptState, waiting: list[TaskView], now: float) -> None:
        def ask(view: TaskView) -> bool:
            node = self.session.node(view.task.node)
            if node is None or view.unreachable_since is not None:
                return False
            try:
                return view.task.name in listening_ports([view.task], node, self.session.transport)
            except CloudtrainError:
                return False

        for view, is_open in zip(
            waiting, fan_out(waiting, ask, name=lambda view: view.task.name), strict=True
        ):
            if is_open:
                state.opened(view, now)

    def _lost(self, state: AttemptState, silent: list[TaskView], now: float) -> None:
        try:
            existing = {node.name: node for node in self.session.refreshed().nodes}
        except CloudtrainError as error:
            self.session.console.warn(f"the provider does not answer: {error}")
            for view in silent:
                quiet = now - (view.unreachable_since or now)
                if quiet >= PROVIDER_SILENT:
                    view.lost = f"neither its node nor the provider answered for {quiet:.0f} s"
                    view.ended_at = now
            return
        others_answer = len(silent) < sum(not view.ended for view in state.tasks.values())
        for view in silent:
            node = existing.get(view.task.node)
            quiet = now - (view.unreachable_since or now)
            if node is None or node.state == "gone":
                view.lost = "its node is gone"
            elif node.state == "stopped":
                view.lost = "its node was stopped"
            elif quiet >= (LOST_AFTER if others_answer else ALONE_LOST_AFTER):
                why = f": {node.fault}" if node.fault else ""
                view.lost = f"its node has not answered for {quiet:.0f} s{why}"
            if view.lost is not None:
                view.ended_at = now


class NodeAgents(Observer):
    """Keeps agents running during a supervised run; works in a thread of its own."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._next = 0.0

    def look(self, state: AttemptState) -> None:
        now = self.session.clock.now()
        if self.is_anew():  # a task that was restarted is in another attempt, with a new agent
            self._next = 0.0
        if now < self._next or self.is_busy():
            return
        self._next = now + RETRY
        self.start(self._keep)

    def _keep(self) -> None:
        restarts = self._watched.restarts
        after = start_agents(self.session, self._watched.started)
        if restarts == self._watched.restarts:
            self._next = self.session.clock.now() + after
