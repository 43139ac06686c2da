"""Supervises one run to its end: start, monitor, judge, restart, land.

Everything it needs is in the run's record and on the nodes, so that any process that holds the
cluster's lock and keys can take over at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from cloudtrain.checks.own_code_hints import with_own_code
from cloudtrain.cluster.plan import deciding_tasks
from cloudtrain.cluster.session import Session
from cloudtrain.core import errors, moments
from cloudtrain.core.events import DownFailed, runs_begun
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, OUTAGE, Clock, Retry
from cloudtrain.core.run_record import Cause, Run
from cloudtrain.money.estimate import estimate
from cloudtrain.money.prices import dollars
from cloudtrain.runs import root_cause as causes
from cloudtrain.runs.attempt_state import trained_as_one
from cloudtrain.runs.finish import finish_run
from cloudtrain.runs.monitor import monitor, new_attempt_state
from cloudtrain.runs.node_agents import start_agents
from cloudtrain.runs.node_replacement import await_nodes_gone
from cloudtrain.runs.own_ends import ended_nodes, told_ends
from cloudtrain.runs.root_cause import observation, root_cause_of, tolerated_failures
from cloudtrain.runs.start import start_attempt
from cloudtrain.runs.state_machine import may_restart_run, pause_before_attempt
from cloudtrain.runs.state_table import of_run
from cloudtrain.runs.task_commands import exit_code_of
from cloudtrain.runs.tasks import nodes_of, save_run, stop_tasks, with_attempt
from cloudtrain.state import Records


def supervise_run(session: Session, run: Run) -> Run:
    """Supervise a run to its end and return it, landed. Raises RunFailed with its cause, NotLanded
    or StoreError. An interrupt leaves the tasks running and the record as it is: call it again to
    continue."""
    while True:
        session, run = end_attempts(session, run)
        run = finished_at_last(session, run, restarts=begins_again)
        if run.state != "starting":
            return run


def finished_at_last(
    session: Session,
    run: Run,
    *,
    failed_by: errors.CloudtrainError | None = None,
    restarts: Callable[[Session, Run, Cause], bool] | None = None,
) -> Run:
    """`finish_run`, tried again while a store or the cloud is away."""
    return retry_outage(
        lambda: finish_run(session, run, failed_by=failed_by, restarts=restarts),
        session.records,
        lambda: session.plan,
        session.console,
        clock=session.clock,
    )


def end_attempts(session: Session, run: Run) -> tuple[Session, Run]:
    """Supervise a run until its last attempt is over, which leaves it to be landed."""
    session, run = without_own_ends(session, run)
    with end_run_on_error(session, run):
        while of_run("attend", run) == "supervise":
            session, run = run_attempt(session, run)
    return session, run


def end_with_its_nodes(session: Session) -> Run | None:
    """The active run as it ended, if its nodes ended themselves after it; None if not, or if there
    is none. Raises RunFailed, NotLanded or StoreError."""
    active = session.records.active_run()
    if active is None:
        return None
    session, run = without_own_ends(session, active)
    over = run.state == "landing" and not nodes_of(session, run)
    return finished_at_last(session, run) if over else None


def ended_with_everything_landed(session: Session) -> bool:
    """True if every node ended itself once all that it held had landed; ends their active run."""
    try:
        end_with_its_nodes(session)
    except errors.RunFailed as error:
        session.console.warn(error.message)
    begun = runs_begun(session.records.events())
    last = next((run for run in reversed(session.records.runs()) if run.id in begun), None)
    if last is None or session.records.active_run() is not None:
        return False
    return not without_own_ends(session, last)[0].nodes


def without_own_ends(session: Session, run: Run) -> tuple[Session, Run]:
    """The session without nodes that ended themselves, with everything landed; and the run, which
    is over then, as none ends before all deciding tasks have: no node is replaced, though others
    have not ended themselves yet, or stay."""
    session, ends = ended_nodes(session, run)
    if not ends or run.state != "running":  # one that is about to begin again does
        return session, run
    deciding = deciding_tasks(run.tasks, session.config)
    if not deciding <= ends.keys():
        ends = {**told_ends(session, run), **ends}
    if not deciding <= ends.keys():
        return session, run
    session.console.say(
        f"run {run.id} has ended, and its nodes have ended themselves since nobody attended to them"
    )
    stop_tasks(session, run, [task for task in run.tasks if session.node(task.node) is not None])
    exits = {task: exit_code_of(mark.exit) for task, mark in ends.items() if mark.exit is not None}
    state = new_attempt_state(session, run)
    for task, code in exits.items():
        state.tasks[task].exit_code, state.tasks[task].ended_at = code, session.clock.awake()
    for task in deciding - exits.keys():
        state.tasks[task].lost = "its process vanished, and left no exit code"
    seen = [observation(state, state.tasks[task]) for task in sorted(deciding)]
    ended = max(ends[task].ended for task in deciding)
    run = with_attempt(run, ended=ended, exits=exits, cause=root_cause_of(state, seen))
    return session, save_run(session, replace(run, state="landing"))


def start_detached(session: Session, run: Run) -> Run:
    """Start the first attempt, for another process to supervise. Raises as `attend` does."""
    with end_run_on_error(session, run):
        session, run = start_attempt(session, run)
        start_agents(session, run)
        return run


@contextmanager
def end_run_on_error(session: Session, run: Run) -> Iterator[None]:
    """On an error that is not a task's, end the run: stop its tasks and land what exists."""
    try:
        yield
    except errors.CloudtrainError as error:
        run = session.records.run(run.id)
        stop_tasks(session, run, run.tasks)
        if run.attempts:  # for whoever lands it later
            node = error.node if isinstance(error, errors.NodeError | errors.PreflightError) else ""
            task = next((task.name for task in run.tasks if task.node == node), "")
            text = error.text if node else error.message
            cause = Cause(task=task, node=node, kind="not_started", text=text, hint=error.hint)
            run = with_attempt(run, ended=moments.now(), cause=cause)
        run = save_run(session, replace(run, state="landing"))
        try:
            finished_at_last(session, run, failed_by=error)
        except errors.CloudtrainError as second:
            raise errors.NodesError({"run": error, "landing": second}) from error
        raise


def run_attempt(session: Session, run: Run) -> tuple[Session, Run]:
    """Start the attempt, or join it if it is running, and monitor it to its end."""
    if session.records.stop_asked(run.id) and run.state == "starting":
        return session, save_run(session, replace(run, state="landing"))
    if run.state == "starting":
        try:
            session, run = start_attempt(session, run)
        except errors.CloudtrainError as error:
            return session, restarted_without_node(session, run, error)
        if run.state == "landing":
            return session, run
    run, state, cause = monitor(session, run)
    if cause is not None:
        cause = with_own_code(session.config, run, cause)
    views = state.tasks.values()
    run = with_attempt(
        run,
        ended=moments.now(),
        exits={view.task.name: view.exit_code for view in views if view.exit_code is not None},
        cause=cause,
        clustered=trained_as_one(state) if cause is None or cause.facts.formed else False,
        formed_after=None if state.formed_after is None else round(state.formed_after, 1),
        collectives=state.collectives,
        tolerated=tolerated_failures(state),
    )
    if cause is not None and cause.kind == "lost":  # while this machine slept, perhaps
        session, run = without_own_ends(session, run)
        if run.state == "landing":
            return session, run
    if cause is None or not begins_again(session, run, cause):
        return session, save_run(session, replace(run, state="landing"))
    await_nodes_gone(session, {view.task.node for view in views if view.notice is not None})
    return session, save_run(session, replace(run, state="starting"))


def restarted_without_node(session: Session, run: Run, error: errors.CloudtrainError) -> Run:
    """Give up an attempt that could not be started as a node was lost meanwhile, for another one.
    Raises the error if it has another reason, or no restart is left."""
    run = session.records.run(run.id)
    if not run.attempts or run.attempts[-1].ended is not None:
        raise error
    states: dict[str, str] = {task.node: "unknown" for task in run.tasks}
    with suppress(errors.CloudtrainError):
        states = {node.name: node.state for node in session.refreshed().nodes}
    gone = (task for task in run.tasks if states.get(task.node, "gone") in ("gone", "stopped"))
    lost = next(gone, None)
    if lost is not None:
        text = f"its node was lost while the attempt started: {error.message}"
        cause = Cause(task=lost.name, node=lost.node, kind="lost", text=text)
        run = with_attempt(run, ended=moments.now(), cause=cause)
        if begins_again(session, run, cause):
            return save_run(session, replace(run, state="starting"))
    raise error


def begins_again(session: Session, run: Run, cause: Cause) -> bool:
    """True if the run is to have another attempt, once that is reported and its pause is over."""
    train, number = session.config.train, run.attempts[-1].number
    if session.records.stop_asked(run.id) or not may_restart_run(run, cause, train):
        return False
    session.console.warn(
        f"attempt {number} failed: {causes.sentence(cause)}; "
        f"restarting ({number} of {train.max_restarts})"
    )
    session.clock.sleep(pause_before_attempt(run))
    return True


# ── while a store or a cloud is away ───────────────────────────────────────────


TRIES = Retry(pause=10.0, backoff=1.5, longest=120.0, within=OUTAGE, at_least=1)

EVERY = 60.0
"""Seconds between two lines about the same wait."""

T = TypeVar("T")


def passes(error: BaseException | None) -> bool:
    """True for an error that is over once a store or a cloud answers again. What only a user can
    mend never passes: a bucket that does not exist, credentials, a file that cannot be read, what
    is more than `artifacts.limit`; nor does a node that does not answer."""
    if isinstance(error, errors.NodesError):
        return all(map(passes, error.failures.values()))
    if isinstance(
        error, errors.StoreAway | errors.TransientError | errors.RateError | errors.BusyError
    ):
        return True
    if not isinstance(error, errors.NotLanded | errors.StoreError):
        return False
    return passes(error.__cause__)


def retry_outage(
    work: Callable[[], T],
    records: Records,
    plan: Callable[[], Plan],
    console: Console,
    *,
    clock: Clock = CLOCK,
    tries: Retry = TRIES,
) -> T:
    """The result of `work`, tried again while its errors are such as pass by themselves, for
    `OUTAGE` seconds. Raises its last error."""
    end, said = clock.now() + tries.within, -EVERY

    def wait(error: errors.CloudtrainError, pause: float, taken: float) -> None:
        nonlocal said
        records.journal(DownFailed(why=error.message, again=clock.now() + pause))
        if taken - said < EVERY:
            return
        said = taken
        price = None
        with suppress(errors.CloudtrainError):  # it can no longer be planned
            found = estimate(plan())
            price = None if found is None else found.most
        console.warn(
            f"{error.message}\ntrying again in {pause:.0f} s, until "
            f"{time.strftime('%H:%M UTC', time.gmtime(end))}"
            + (
                f"; the nodes cost at most {dollars(price)}/hour meanwhile"
                if price is not None
                else ""
            )
        )

    return tries.call(
        work,
        on=errors.CloudtrainError,
        unless=lambda error: not passes(error),
        before_pause=wait,
        clock=clock,
    )
