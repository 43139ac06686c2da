"""What holds of `state_machine.decide` whatever happens to an attempt, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cluster.plan import deciding_tasks, serving_tasks
from cloudtrain.core.model import ClusterConfig, NodeGroup, Train
from cloudtrain.core.run_record import Task
from cloudtrain.runs.attempt_state import AttemptState, TaskView
from cloudtrain.runs.state_machine import (
    FROZEN_AFTER,
    OTHERS_GRACE,
    SETTLE,
    WINDOW,
    Decision,
    decide,
    has_failed,
)
from cloudtrain.runs.task_commands import PortState

COLLATERAL = b"tensorflow UnavailableError: Collective ops is aborted by: peer is unhealthy\n"
GRACE = 30.0
JOBS = {
    "multi_worker_mirrored": ("chief0", "worker0", "worker1"),
    "parameter_server": ("chief0", "worker0", "worker1", "ps0", "evaluator0"),
    "custom": ("reader0", "trainer0", "trainer1"),
    "one_device": ("chief0",),
}
LAST = max(OTHERS_GRACE, GRACE)
"""Seconds after which nothing that has succeeded goes on."""


@dataclass
class Attempt:
    """An attempt that is watched as `observe` does it: `happens`, then `decide`."""

    state: AttemptState
    now: float = 0.0
    decisions: list[Decision] = field(default_factory=list)

    @property
    def winners(self) -> frozenset[str]:
        return deciding_tasks(
            tuple(view.task for view in self.state.tasks.values()), self.state.config
        )

    @property
    def won(self) -> bool:
        return all(self.state.tasks[name].exit_code == 0 for name in self.winners)

    def happens(self, what: str, name: str) -> None:
        view, now = self.state.tasks[name], self.now
        if view.ended:
            return
        if what == "opens its port":
            view.opened(now)
            self.state.first_port = self.state.first_port or now
            tasks = tuple(each.task for each in self.state.tasks.values())
            serve = [self.state.tasks[each] for each in serving_tasks(tasks, self.state.config)]
            if serve and all(each.port_open for each in serve):
                self.state.formed_after = self.state.formed_after or now
        elif what == "freezes":
            view.stopped_since = view.stopped_since or now
        elif what == "thaws":
            view.stopped_since = None
        elif what == "is lost":
            view.lost, view.ended_at = "no answer", now
        elif what == "writes":
            view.saw(b"loss 0.5\n", now)
        else:
            self.ends(name, int(what))

    def ends(self, name: str, code: int, at: float | None = None) -> None:
        view = self.state.tasks[name]
        view.exit_code, view.ended_at = code, self.now if at is None else at
        if not view.port_open:
            view.served = PortState(never=self.now, elsewhere=False)
        if code == 1:
            view.saw(COLLATERAL, self.now)

    def decide(self) -> Decision:
        decision = decide(self.state, self.now)
        self.decisions.append(decision)
        for name in decision.stop:
            self.ends(name, -15)
        for name in decision.restart:
            self.restarts(name)
        return decision

    def restarts(self, name: str) -> None:
        view = self.state.tasks[name]
        assert view.task.role == "worker"
        assert has_failed(self.state, view, self.now)
        assert not self.won
        self.state.restarts[name] = self.state.restarts.get(name, 0) + 1
        assert self.state.restarts[name] <= self.state.config.train.max_restarts
        view.begin_again(view.task, self.now)
        view.begun, view.restarted_at = False, self.now


def attempt_of(strategy: str, restarts: int = 0) -> Attempt:
    tasks = [Task(role=n[:-1], index=int(n[-1]), node=f"m-{n}", port=1) for n in JOBS[strategy]]
    config = ClusterConfig(
        name="m",
        provider="local",
        strategy=strategy,
        nodes={task.role: NodeGroup() for task in tasks},
        train=Train(command="x", evaluator_grace=GRACE, max_restarts=restarts),
    )
    views = {task.name: TaskView(task=task) for task in tasks}
    return Attempt(state=AttemptState(config=config, tasks=views, started=0.0))


def attempts(*strategies: str) -> st.SearchStrategy[Attempt]:
    return st.builds(attempt_of, st.sampled_from(strategies or sorted(JOBS)), st.integers(0, 2))


KINDS = (
    "opens its port,opens its port,opens its port,0,0,1,2,-9,-15,42,is lost,freezes,thaws,writes"
)
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(KINDS.split(",")),
        st.integers(min_value=0, max_value=4),
        st.sampled_from([0.0, 0.25, 1.0, 5.0, 16.0, 70.0]),
    ),
    max_size=14,
)


def lived(attempt: Attempt, happenings: list[tuple[str, int, float]]) -> Decision | None:
    """The decision that ended it; None where it goes on."""
    names = list(attempt.state.tasks)
    for what, number, pause in happenings:
        attempt.now += pause
        attempt.happens(what, names[number % len(names)])
        if attempt.decide().verdict != "go_on":
            return attempt.decisions[-1]
    return None


@given(attempts(), HAPPENINGS)
def test_only_tasks_that_run_and_do_not_decide_are_ended(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    names = list(attempt.state.tasks)
    for what, number, pause in happenings:
        attempt.now += pause
        attempt.happens(what, names[number % len(names)])
        running = {name for name, view in attempt.state.tasks.items() if not view.ended}
        decision = attempt.decide()
        assert set(decision.stop) <= running - attempt.winners
        if decision.verdict != "go_on":
            return


@given(attempts(), HAPPENINGS)
def test_who_has_won_never_fails_and_is_done_after_the_grace(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    for name in attempt.winners:
        attempt.ends(name, 0)
    assert lived(attempt, happenings) is None or attempt.decisions[-1].verdict == "done"
    if not attempt.decisions or attempt.decisions[-1].verdict == "go_on":
        attempt.decide()
        attempt.now += LAST
        assert attempt.decide().verdict == "done"


@given(attempts(), HAPPENINGS)
def test_when_all_have_ended_it_is_decided_at_once(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    if lived(attempt, happenings) is not None:
        return
    for name, view in attempt.state.tasks.items():
        if not view.ended:
            attempt.ends(name, 2)
    assert attempt.decide().verdict != "go_on"


@given(attempts(), HAPPENINGS)
def test_a_failure_that_is_not_forgiven_ends_the_attempt_within_the_window(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    if lived(attempt, happenings) is not None or attempt.won:
        return
    (winner, *_) = sorted(n for n in attempt.winners if attempt.state.tasks[n].exit_code != 0)
    attempt.happens("2", winner)
    attempt.decide()
    attempt.now += WINDOW
    assert attempt.decide().verdict == "failed"


@given(attempts(), HAPPENINGS)
def test_a_failed_attempt_has_a_cause_that_is_one_of_its_tasks_and_no_collateral(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    decision = lived(attempt, happenings)
    if decision is None or decision.verdict != "failed":
        return
    cause = decision.cause
    assert cause is not None
    assert cause.task in attempt.state.tasks
    assert cause.task not in cause.collateral
    if cause.kind != "not_started":
        view = attempt.state.tasks[cause.task]
        frozen = view.stopped_since is not None and not view.ended
        assert view.lost is not None or view.exit_code not in (None, 0) or frozen


@given(attempts(), HAPPENINGS)
def test_nothing_is_said_twice_and_asking_again_changes_nothing(
    attempt: Attempt, happenings: list[tuple[str, int, float]]
) -> None:
    names = list(attempt.state.tasks)
    for what, number, pause in happenings:
        attempt.now += pause
        attempt.happens(what, names[number % len(names)])
        first = attempt.decide()
        again = decide(attempt.state, attempt.now)
        if not first.stop:
            assert (again.verdict, again.stop, again.warnings) == (first.verdict, (), ())
            assert again.cause == first.cause
        if first.verdict != "go_on":
            break
    said = [warning for decision in attempt.decisions for warning in decision.warnings]
    assert len(said) == len(set(said))


@given(
    attempts("multi_worker_mirrored", "custom"),
    st.lists(st.sampled_from([0, 1, 2, -9, -15, 42]), min_size=3, max_size=3),
    st.permutations(range(3)),
    st.permutations(range(3)),
)
def test_the_cause_does_not_depend_on_the_order_in_which_exits_are_heard_of(
    attempt: Attempt, codes: list[int], ended: list[int], heard: list[int]
) -> None:
    """All three have ended, at times of their own; their news come within a second."""
    names = list(attempt.state.tasks)
    for name in names:
        attempt.happens("opens its port", name)
    heard_in_order = Attempt(state=twin(attempt.state), now=10.0)
    attempt.now = 10.0
    for one, order in ((attempt, heard), (heard_in_order, list(range(3)))):
        for number in order:
            one.now += SETTLE / 10
            one.ends(names[number], codes[number], at=5.0 + ended[number])
            if one.decide().verdict != "go_on":
                break
    assert attempt.decisions[-1].verdict == heard_in_order.decisions[-1].verdict != "go_on"
    assert attempt.decisions[-1].cause == heard_in_order.decisions[-1].cause


def twin(state: AttemptState) -> AttemptState:
    views = {name: TaskView(task=view.task) for name, view in state.tasks.items()}
    for name, view in state.tasks.items():
        views[name].port_open, views[name].opened_at = view.port_open, view.opened_at
    return AttemptState(
        config=state.config,
        tasks=views,
        started=state.started,
        first_port=state.first_port,
        formed_after=state.formed_after,
    )


@given(attempts(), st.integers(min_value=0, max_value=4))
def test_who_is_frozen_and_thaws_in_time_has_not_failed(attempt: Attempt, number: int) -> None:
    names = list(attempt.state.tasks)
    for name in names:
        attempt.happens("opens its port", name)
    attempt.happens("freezes", names[number % len(names)])
    attempt.now = FROZEN_AFTER - 0.1
    assert attempt.decide() == Decision(verdict="go_on")
    attempt.happens("thaws", names[number % len(names)])
    attempt.now = 10 * FROZEN_AFTER
    assert attempt.decide() == Decision(verdict="go_on")
