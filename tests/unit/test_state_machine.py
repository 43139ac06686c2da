"""What follows from what is seen of an attempt: pure, on a clock of numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from cloudtrain.core.model import ClusterConfig, Limits, NodeGroup, Train
from cloudtrain.core.retry import JOINED_LATE
from cloudtrain.core.run_record import CAUSES, CauseKind, Task
from cloudtrain.runs.attempt_state import (
    QUIET,
    STILL_AFTER,
    AttemptState,
    End,
    TaskView,
    detect_formation,
    separate_trainings_failure,
    separate_trainings_note,
    trained_as_one,
)
from cloudtrain.runs.limits import LIMITS
from cloudtrain.runs.root_cause import sentence, tolerated_failures
from cloudtrain.runs.state_machine import (
    FROZEN_AFTER,
    OTHERS_GRACE,
    SETTLE,
    WINDOW,
    Decision,
    decide,
    is_retryable,
)
from cloudtrain.runs.task_commands import PortState

COLLATERAL = b"tensorflow UnavailableError: Collective ops is aborted by: peer is unhealthy\n"


def attempt(strategy: str = "multi_worker_mirrored", **train: Any) -> AttemptState:
    roles = {
        "multi_worker_mirrored": ["chief0", "worker0", "worker1"],
        "parameter_server": ["chief0", "worker0", "worker1", "ps0", "evaluator0"],
    }[strategy]
    tasks = [Task(role=n[:-1], index=int(n[-1]), node=f"m-{n}", port=1) for n in roles]
    config = ClusterConfig(
        name="m",
        provider="local",
        strategy=strategy,
        nodes={task.role: NodeGroup() for task in tasks},
        train=Train(command="x", **train),
    )
    return AttemptState(config=config, tasks={t.name: TaskView(task=t) for t in tasks}, started=0.0)


def ended(state: AttemptState, name: str, code: int, at: float, tail: bytes = b"") -> None:
    view = state.tasks[name]
    view.exit_code, view.ended_at = code, at
    view.saw(tail, at)


def test_a_run_without_news_goes_on() -> None:
    assert decide(attempt(), 1000.0).verdict == "go_on"


def test_a_run_in_which_no_task_opens_its_port_is_warned_of_once() -> None:
    run = attempt(start_timeout=10.0)
    assert decide(run, 9.0).warnings == ()
    (warning,) = decide(run, 10.0).warnings
    assert "no task has opened its port after 10 s" in warning
    assert decide(run, 11.0).warnings == ()


def test_the_chiefs_success_gives_the_others_their_grace_and_then_ends_them() -> None:
    run = attempt()
    ended(run, "chief0", 0, 10.0)
    assert decide(run, 10.0).verdict == "go_on"
    assert decide(run, 10.0 + OTHERS_GRACE - 1).verdict == "go_on"
    assert decide(run, 10.0 + OTHERS_GRACE).verdict == "done"


def test_when_all_have_ended_nobody_waits() -> None:
    run = attempt()
    for name in run.tasks:
        ended(run, name, 0, 10.0)
    assert decide(run, 10.0).verdict == "done"


def test_a_workers_failure_after_the_chiefs_success_is_a_warning() -> None:
    run = attempt()
    ended(run, "chief0", 0, 10.0)
    ended(run, "worker0", 1, 11.0)
    ended(run, "worker1", 0, 11.0)
    decision = decide(run, 11.0)
    assert decision.verdict == "done"
    assert decision.warnings == ("worker0 failed after the run was decided: exit code 1",)


def test_a_worker_that_lacked_the_chief_after_its_success_is_told_why() -> None:
    run = attempt()
    ended(run, "chief0", 0, 10.0)
    ended(run, "worker0", 1, 22.0, COLLATERAL)
    ended(run, "worker1", 0, 11.0)
    (warning,) = decide(run, 22.0).warnings
    assert "exit code 1: chief0, worker1 had finished (exit 0, 11 to 12 s before)" in warning
    assert warning.endswith("or give every rank as many batches")


def test_a_worker_that_is_held_by_a_collective_is_named_when_it_is_stopped() -> None:
    run = attempt()
    ended(run, "chief0", 0, 10.0)
    ended(run, "worker1", 0, 11.0)
    decide(run, 10.0)
    (warning,) = decide(run, 10.0 + OTHERS_GRACE).warnings
    assert warning.startswith("worker0 still ran 60 s after the run had succeeded")


def test_parameter_servers_are_ended_at_once_and_the_evaluator_after_its_grace() -> None:
    run = attempt("parameter_server", evaluator_grace=30.0)
    ended(run, "chief0", 0, 10.0)
    assert set(decide(run, 10.0).stop) == {"worker0", "worker1", "ps0"}
    for name in ("worker0", "worker1", "ps0"):
        ended(run, name, -15, 11.0)
    decision = decide(run, 39.0)
    assert decision.verdict == "go_on"
    assert decision.warnings == (), "we ended them"
    assert decide(run, 40.0).verdict == "done"


def succeeded_with_evaluator() -> AttemptState:
    """A run whose chief has succeeded at 10 s, and of which only the evaluator is left."""
    run = attempt("parameter_server", evaluator_grace=600.0, checkpoints="ckpt")
    ended(run, "chief0", 0, 10.0, b"INFO:tensorflow:Saving checkpoints for 300 into m/ckpt.\n")
    for name in ("worker0", "worker1", "ps0"):
        ended(run, name, -15, 11.0)
    decide(run, 10.0)
    return run


def test_an_estimators_evaluator_is_ended_once_it_has_scored_the_last_step() -> None:
    run = succeeded_with_evaluator()
    evaluator = run.tasks["evaluator0"]
    evaluator.saw(b"Saving dict for global step 200: loss = 1\n", 20.0)
    assert decide(run, 100.0).verdict == "go_on"
    evaluator.saw(b"Saving dict for global step 300: loss = 1\n", 110.0)
    assert decide(run, 110.0 + QUIET - 1).verdict == "go_on", "it may export"
    assert decide(run, 110.0 + QUIET).verdict == "done"


def test_an_evaluator_that_has_worked_on_the_last_checkpoint_and_stands_still_is_ended() -> None:
    run = succeeded_with_evaluator()
    run.tasks["chief0"].tail = b""
    evaluator = run.tasks["evaluator0"]
    evaluator.moved_at = 12.0
    assert decide(run, 300.0).verdict == "go_on", "it has not got it yet"
    run.evaluator_given = 300.0
    assert decide(run, 500.0).verdict == "go_on", "it sleeps before it scores"
    evaluator.moved_at = 510.0
    assert decide(run, 510.0 + STILL_AFTER - 1).verdict == "go_on"
    assert decide(run, 510.0 + STILL_AFTER).verdict == "done"


def test_an_evaluator_that_was_given_nothing_is_not_waited_for() -> None:
    run = attempt("parameter_server")
    run.config = replace(run.config, provider="gcp")
    ended(run, "chief0", 0, 10.0)
    decision = decide(run, 10.0)
    assert decision.verdict == "done"
    assert decision.warnings == (
        "evaluator0 got no checkpoint (train.checkpoints is not set): not waiting for it",
    )
    for train in (Train(checkpoints="ckpt"), Train(evaluator_grace=30.0)):
        run = attempt("parameter_server")
        run.config = replace(run.config, provider="gcp", train=train)
        ended(run, "chief0", 0, 10.0)
        assert decide(run, 10.0).verdict == "go_on"
        assert "evaluator0" not in decide(run, 10.0).stop


def test_a_death_by_signal_is_the_cause_as_soon_as_it_has_settled() -> None:
    run = attempt()
    ended(run, "worker1", -9, 10.0)
    assert decide(run, 10.0).verdict == "go_on"
    decision = decide(run, 10.0 + SETTLE)
    assert decision.verdict == "failed"
    assert decision.cause is not None
    assert decision.cause.task == "worker1"


def test_collateral_exits_wait_for_their_cause() -> None:
    run = attempt()
    ended(run, "chief0", 1, 10.0, COLLATERAL)
    decide(run, 10.0)
    assert decide(run, 10.0 + WINDOW - 1).verdict == "go_on"
    ended(run, "worker1", 1, 25.0, b"ValueError: bad data\n")
    decision = decide(run, 25.0 + SETTLE)
    assert decision.cause is not None
    assert decision.cause.task == "worker1"
    assert set(decision.cause.collateral) == {"chief0"}


def test_a_frozen_task_is_the_cause_of_the_collateral_exits_of_others() -> None:
    run = attempt()
    run.tasks["worker1"].stopped_since = 5.0
    ended(run, "chief0", 1, 15.0, COLLATERAL)
    ended(run, "worker0", 1, 15.0, COLLATERAL)
    decide(run, 15.0)
    decision = decide(run, 15.0 + WINDOW)
    assert decision.cause is not None
    assert (decision.cause.task, decision.cause.kind) == ("worker1", "frozen")


def test_a_task_that_is_only_frozen_ends_the_attempt_too() -> None:
    run = attempt()
    run.tasks["worker1"].stopped_since = 5.0
    assert decide(run, 5.0 + FROZEN_AFTER - 1).verdict == "go_on"
    decide(run, 5.0 + FROZEN_AFTER)
    assert decide(run, 5.0 + FROZEN_AFTER + SETTLE).verdict == "failed"


def test_a_parameter_server_job_goes_on_without_one_worker_but_not_without_any() -> None:
    run = attempt("parameter_server")
    ended(run, "worker0", -9, 10.0)
    decision = decide(run, 12.0)
    assert decision.verdict == "go_on"
    assert decision.warnings == (
        "worker0 has failed: killed by signal 9; the run continues without it",
    )
    assert decide(run, 13.0).warnings == ()
    ended(run, "worker1", -9, 20.0)
    decide(run, 20.0)
    assert decide(run, 20.0 + SETTLE).verdict == "failed"


def test_a_frozen_worker_of_a_parameter_server_job_is_ended_so_that_the_job_goes_on() -> None:
    run = attempt("parameter_server")
    run.tasks["worker0"].stopped_since = 5.0
    decision = decide(run, 5.0 + FROZEN_AFTER)
    assert (decision.verdict, decision.stop) == ("go_on", ("worker0",))


def test_an_evaluator_never_decides() -> None:
    run = attempt("parameter_server")
    ended(run, "evaluator0", 1, 10.0)
    assert decide(run, 100.0).verdict == "go_on"


def test_an_evaluator_that_failed_is_recorded_with_its_words_and_a_hint() -> None:
    run = attempt("parameter_server")
    words = b'ValueError: If "cluster" is set in TF_CONFIG, it must have one "chief" node.\n'
    ended(run, "evaluator0", 1, 10.0, words)
    decide(run, 11.0)
    ended(run, "chief0", 0, 20.0)
    assert decide(run, 20.0).verdict == "done"
    (failure,) = tolerated_failures(run)
    assert (failure.task, failure.kind, failure.exit_code) == ("evaluator0", "exit", 1)
    assert 'must have one "chief" node' in failure.text
    assert "train.tf_config: estimator" in str(failure.hint)


def test_tasks_that_were_ended_after_the_success_are_no_failures() -> None:
    run = attempt("parameter_server")
    ended(run, "chief0", 0, 10.0)
    decide(run, 10.0)
    for name in ("worker0", "worker1", "ps0"):
        ended(run, name, -15, 11.0)
    ended(run, "evaluator0", 0, 12.0)
    assert decide(run, 12.0).verdict == "done"
    assert tolerated_failures(run) == ()


def test_a_killed_parameter_server_is_the_cause_of_the_chiefs_exit() -> None:
    run = attempt("parameter_server")
    ended(run, "ps0", -9, 10.0)
    ended(run, "chief0", 1, 11.0, COLLATERAL)
    decide(run, 11.0)
    decision = decide(run, 11.0 + SETTLE)
    assert decision.cause is not None
    assert decision.cause.task == "ps0"


def test_a_worker_that_the_run_went_on_without_is_not_the_cause_of_what_fails_later() -> None:
    run = attempt("parameter_server")
    ended(run, "worker0", -9, 10.0)
    decide(run, 11.0)
    ended(run, "ps0", -9, 60.0)
    ended(run, "chief0", 1, 61.0, COLLATERAL)
    decide(run, 61.0)
    decision = decide(run, 61.0 + SETTLE)
    assert decision.cause is not None
    assert (decision.cause.task, decision.cause.collateral) == ("ps0", ("chief0",))


def test_who_does_not_open_its_port_is_named_after_the_first_peer_did() -> None:
    run = attempt(start_timeout=10.0)
    assert decide(run, 1000.0).verdict == "go_on", "nobody is ready: data may be on its way"
    run.first_port = 1000.0
    run.tasks["chief0"].port_open = run.tasks["worker0"].port_open = True
    assert decide(run, 1009.0).verdict == "go_on"
    decision = decide(run, 1010.0)
    assert decision.cause is not None
    assert (decision.cause.task, decision.cause.kind) == ("worker1", "not_started")


# ── Who never joined ─────────────────────────────────────────────────────────


def left_outside(state: AttemptState, name: str, code: int, at: float, **served: Any) -> None:
    """The task has ended, and its node never saw its port open."""
    ended(state, name, code, at)
    state.tasks[name].served = PortState(never=at, **served)


def test_a_task_that_ends_well_without_having_served_ends_the_attempt() -> None:
    run = attempt()
    left_outside(run, "worker1", 0, 10.0)
    assert decide(run, 10.0 + JOINED_LATE - 1).verdict == "go_on"
    decision = decide(run, 10.0 + JOINED_LATE)
    assert decision.cause is not None
    assert (decision.cause.task, decision.cause.kind) == ("worker1", "not_started")
    assert decision.cause.text.startswith("ended with exit code 0 before it joined the cluster")
    assert not is_retryable(decision.cause)


def test_a_worker_of_a_parameter_server_job_is_only_done_without_once_it_has_joined() -> None:
    for code, kind in ((1, "not_started"), (-9, "signal")):
        run = attempt("parameter_server")
        left_outside(run, "worker0", code, 10.0)
        decide(run, 10.0)
        decision = decide(run, 10.0 + SETTLE)
        assert decision.cause is not None
        assert (decision.cause.task, decision.cause.kind) == ("worker0", kind)
        assert "before it joined the cluster" in decision.cause.text
        assert is_retryable(decision.cause) == (code == -9)


def test_a_worker_that_served_and_fell_before_the_others_did_is_waited_for_by_the_chief() -> None:
    run = attempt("parameter_server")
    run.tasks["worker0"].opened(5.0)
    run.first_port = 5.0
    ended(run, "worker0", 1, 10.0)
    assert decide(run, 10.0 + JOINED_LATE - 1).verdict == "go_on"
    decide(run, 10.0 + JOINED_LATE)
    decision = decide(run, 10.0 + JOINED_LATE + SETTLE)
    assert decision.cause is not None
    assert decision.cause.task == "worker0"


def test_where_a_node_is_silent_nobody_is_said_to_be_outside() -> None:
    run = attempt("parameter_server")
    run.tasks["worker0"].opened(5.0)
    run.first_port = 5.0
    for name in ("worker1", "ps0"):
        run.tasks[name].unreachable_since = 5.0
    ended(run, "worker0", 1, 10.0)
    assert decide(run, 60.0).verdict == "go_on"


def test_a_worker_lost_with_its_node_before_it_joined_ends_the_attempt() -> None:
    run = attempt("parameter_server")
    run.tasks["worker0"].lost, run.tasks["worker0"].ended_at = "its node is gone", 10.0
    decide(run, 10.0)
    decision = decide(run, 10.0 + SETTLE)
    assert decision.cause is not None
    assert (decision.cause.task, decision.cause.kind) == ("worker0", "lost")


def test_the_cluster_has_formed_once_all_that_serve_are_open_together() -> None:
    run = attempt("parameter_server")
    run.tasks["worker0"].opened(3.0)
    run.tasks["ps0"].opened(4.0)
    assert not detect_formation(run, 5.0)
    run.tasks["worker1"].opened(6.0)
    assert detect_formation(run, 6.5)
    assert (run.formed_after, trained_as_one(run)) == (6.5, True)
    assert not detect_formation(run, 7.0), "told once"


def test_ports_that_were_open_one_after_the_other_are_no_cluster() -> None:
    run = attempt()
    run.tasks["chief0"].opened(3.0)
    ended(run, "chief0", 0, 4.0)
    for name in ("worker0", "worker1"):
        run.tasks[name].opened(4.0 + JOINED_LATE + 1)
    assert not detect_formation(run, 20.0)


def test_the_nodes_own_figures_tell_when_the_cluster_formed() -> None:
    run = attempt()
    for seconds, view in enumerate(run.tasks.values(), start=2):
        view.served = PortState(after=seconds)
        view.opened(50.0)
    assert detect_formation(run, 50.0)
    assert run.formed_after == 4


def test_trainings_that_each_end_well_alone_are_no_cluster() -> None:
    run = attempt()
    for name in run.tasks:
        left_outside(run, name, 0, 10.0)
    assert decide(run, 10.0).verdict == "done"
    cause = separate_trainings_failure(run)
    assert cause is not None
    assert cause.kind == "not_clustered"
    assert cause.text == "the tasks never formed a cluster: 3 separate trainings"
    assert (cause.task, cause.node, trained_as_one(run)) == ("", "", False)


def test_tasks_of_a_moment_and_those_that_listen_elsewhere_are_not_judged_but_told_of() -> None:
    for at, elsewhere, words in ((0.5, False, "too soon"), (60.0, True, "listened on others")):
        run = attempt()
        for name in run.tasks:
            left_outside(run, name, 0, at, elsewhere=elsewhere)
        assert (separate_trainings_failure(run), trained_as_one(run)) == (None, None)
        assert words in (separate_trainings_note(run) or "")


def test_without_tf_config_nothing_is_said_of_clusters() -> None:
    run = attempt(tf_config=False)
    for name in run.tasks:
        left_outside(run, name, 0, 10.0)
    assert (separate_trainings_failure(run), separate_trainings_note(run), trained_as_one(run)) == (
        None,
        None,
        None,
    )


def test_stall_is_off_until_asked_for() -> None:
    assert decide(attempt(), 1e6).verdict == "go_on"
    stalled = decide(attempt(stall_timeout=60.0), 60.0)
    assert stalled.cause is not None
    assert stalled.cause.kind == "stalled"


def test_a_stop_that_was_asked_for_goes_before_everything() -> None:
    run = attempt()
    ended(run, "worker0", 1, 1.0)
    run.stop_asked = True
    assert decide(run, 2.0).verdict == "stopped"


def test_a_node_that_was_given_notice_is_preempted_however_its_task_ended() -> None:
    for code in (42, 143, 1):
        run = attempt()
        run.tasks["worker1"].notice = 1732170244.0
        for name in run.tasks:
            ended(run, name, code, 1.0)
        cause = decide(run, 100.0).cause
        assert cause is not None
        assert (cause.task, cause.kind) == ("worker1", "lost")
        assert cause.text == "its node m-worker1 was preempted (notice at 06:24:04 UTC)"
        assert is_retryable(cause)


def test_a_node_that_was_shut_down_is_replaced_and_one_at_the_end_of_its_life_is_not() -> None:
    for announced, text in (
        ("shutdown", "its node m-worker1 was shut down (notice at 06:24:04 UTC)"),
        ("lifetime", "the lifetime of its node m-worker1 ends (notice at 06:24:04 UTC)"),
    ):
        run = attempt()
        run.tasks["worker1"].notice = 1732170244.0
        run.tasks["worker1"].announced = announced
        for name in run.tasks:
            ended(run, name, 42, 1.0)
        cause = decide(run, 100.0).cause
        assert cause is not None
        assert cause.text == text
        assert is_retryable(cause, (42,)) is (announced == "shutdown")


ENDED: dict[CauseKind, tuple[str, bool]] = {
    "deadline": ("chief0 on m-chief0: the run took longer than 7 s (train.deadline)", True),
    "expired": ("chief0 on m-chief0: the lifetime of its node m-chief0 ends", False),
    "budget": ("limits.budget of 7 $ is spent", False),
}


def test_each_limit_of_a_run_is_tried_and_each_cause_that_names_a_limit_is_one() -> None:
    named = {kind for kind, facts in CAUSES.items() if "{limit" in facts.words}
    assert set(LIMITS) <= set(CAUSES), "add it to CAUSES and CauseKind of core/run_record.py"
    assert named <= set(LIMITS), "add it to LIMITS of runs/limits.py"
    assert set(ENDED) == set(LIMITS), "add what is said of it to ENDED"


def test_each_field_of_limits_ends_a_run_or_does_something_else_on_purpose() -> None:
    others = {"limits.idle", "limits.idle_gpu", "limits.max_price", "limits.wait"}
    others |= {"limits.give_back"}
    limits = {f"limits.{item.name}" for item in fields(Limits)}
    known = limits | {f"train.{item.name}" for item in fields(Train)}
    ends = {limit.field for limit in LIMITS.values()}
    assert limits - others == ends & limits, "add it to LIMITS of runs/limits.py, or to `others`"
    assert ends <= known, "a row names a field that the config does not have"


@pytest.mark.parametrize("kind", ENDED)
def test_tasks_that_train_on_are_ended_at_each_limit_of_the_run(
    kind: CauseKind,
) -> None:
    run, (text, retried) = attempt(), ENDED[kind]
    run.ends[kind] = End(at=100.0, limit=7.0)
    assert decide(run, 1e6, moment=99.0).verdict == "go_on", "the limit is in Unix time"
    cause = decide(run, 1.0, moment=100.0).cause
    assert cause is not None
    assert (cause.kind, sentence(cause)) == (kind, text)
    assert is_retryable(replace(cause, exit_code=9), (9,)) is retried


def test_a_task_that_ends_well_under_notice_has_ended_well() -> None:
    run = attempt()
    run.tasks["chief0"].notice = 1732170244.0
    for name in run.tasks:
        ended(run, name, 0, 1.0)
    assert decide(run, 2.0).verdict == "done"


# ── A worker that is restarted alone ─────────────────────────────────────────


def formed(**train: Any) -> AttemptState:
    """A parameter server job whose cluster has formed."""
    run = attempt("parameter_server", **train)
    for name in ("worker0", "worker1", "ps0"):
        run.tasks[name].opened(3.0)
    run.first_port, run.formed_after = 3.0, 3.0
    return run


def restarted(run: AttemptState, name: str, now: float) -> None:
    """As the monitor does it, up to the new attempt's start."""
    view = run.tasks[name]
    view.begin_again(replace(view.task, attempt=view.task.attempt + 1), now)
    view.begun, view.restarted_at = False, now
    run.restarts[name] = run.restarts.get(name, 0) + 1


def test_a_worker_that_was_killed_is_restarted_alone_after_a_pause() -> None:
    run = formed(max_restarts=2)
    ended(run, "worker0", -9, 10.0)
    decision = decide(run, 10.0)
    assert (decision.verdict, decision.restart) == ("go_on", ())
    assert decision.warnings == (
        "worker0 has failed: killed by signal 9; restarting it alone in 2 s (1 of 2), "
        "the run continues",
    )
    assert decide(run, 11.9) == Decision(verdict="go_on")
    assert decide(run, 12.0).restart == ("worker0",)
    restarted(run, "worker0", 12.0)
    assert decide(run, 13.0) == Decision(verdict="go_on")
    assert tolerated_failures(run) == ()


def test_each_worker_counts_its_own_restarts_and_waits_longer_each_time() -> None:
    run = formed(max_restarts=2)
    for pause, at in ((2.0, 10.0), (4.0, 20.0)):
        ended(run, "worker0", -9, at)
        decide(run, at)
        assert decide(run, at + pause - 0.1).restart == ()
        assert decide(run, at + pause).restart == ("worker0",)
        restarted(run, "worker0", at + pause)
        run.tasks["worker0"].opened(at + pause)
        decide(run, at + pause)
    ended(run, "worker0", -9, 40.0)
    decision = decide(run, 60.0)
    assert (decision.verdict, decision.restart) == ("go_on", ())
    assert decision.warnings == (
        "worker0 has failed: killed by signal 9; the run continues without it",
    )
    assert [cause.task for cause in tolerated_failures(run)] == ["worker0"]


def test_what_would_fail_again_is_not_restarted() -> None:
    for code, tail in ((1, b"ModuleNotFoundError: No module named 'x'\n"), (2, b"")):
        run = formed(max_restarts=2)
        ended(run, "worker0", code, 10.0, tail)
        decision = decide(run, 100.0)
        assert (decision.verdict, decision.restart) == ("go_on", ())
        assert "the run continues without it" in decision.warnings[0]


def test_a_lost_preempted_or_frozen_worker_and_a_code_to_retry_are_restarted() -> None:
    for what in ("lost", "frozen", "143", "7"):
        run = formed(max_restarts=1, retry_exit_codes=(7,))
        view = run.tasks["worker1"]
        if what == "lost":
            view.lost, view.ended_at = "its node is gone", 10.0
        elif what == "frozen":
            view.stopped_since = 10.0 - FROZEN_AFTER
        else:
            ended(run, "worker1", int(what), 10.0)
        decide(run, 10.0)
        decision = decide(run, 12.0)
        assert (decision.verdict, decision.restart, decision.stop) == ("go_on", ("worker1",), ())


def test_a_worker_that_thaws_before_its_restart_is_left_alone() -> None:
    run = formed(max_restarts=1)
    run.tasks["worker1"].stopped_since = 10.0 - FROZEN_AFTER
    decide(run, 10.0)
    run.tasks["worker1"].stopped_since = None
    assert decide(run, 12.0) == Decision(verdict="go_on")


def test_all_workers_at_once_are_restarted_while_the_chief_waits_for_them() -> None:
    run = formed(max_restarts=1)
    for name in ("worker0", "worker1"):
        ended(run, name, -9, 10.0)
    assert decide(run, 10.0).verdict == "go_on"
    assert decide(run, 12.0).restart == ("worker0", "worker1")


def test_nobody_is_restarted_once_another_worker_is_out_for_good() -> None:
    """TensorFlow connects to no restarted worker before all are back."""
    run = formed(max_restarts=2)
    ended(run, "worker0", 1, 10.0)
    decide(run, 10.0)
    ended(run, "worker1", -9, 20.0)
    decide(run, 20.0)
    decision = decide(run, 20.0 + SETTLE)
    assert decision.verdict == "failed"
    assert decision.cause is not None
    assert decision.cause.task == "worker1"


def test_a_worker_to_which_the_chief_cannot_connect_again_keeps_no_run_going() -> None:
    run = formed(max_restarts=1)
    ended(run, "worker0", -9, 10.0)
    decide(run, 10.0)
    restarted(run, "worker0", 12.0)
    run.tasks["worker0"].opened(13.0)
    ended(run, "worker1", 1, 12.5, b"ValueError: no\n")
    decide(run, 14.0)
    decision = decide(run, 14.0 + SETTLE)
    assert decision.verdict == "failed"
    assert decision.cause is not None
    assert decision.cause.task == "worker1"
    again = formed(max_restarts=1)
    ended(again, "worker0", -9, 10.0)
    decide(again, 10.0)
    restarted(again, "worker0", 12.0)
    again.tasks["worker0"].opened(13.0)
    decide(again, 13.5)  # both serve: TensorFlow is connected to both again
    ended(again, "worker1", 1, 14.0, b"ValueError: no\n")
    assert decide(again, 60.0).verdict == "go_on"


def test_a_restarted_worker_that_never_serves_is_ended_and_done_without() -> None:
    run = formed(max_restarts=3, start_timeout=30.0)
    ended(run, "worker0", -9, 10.0)
    decide(run, 10.0)
    restarted(run, "worker0", 12.0)
    assert decide(run, 41.9) == Decision(verdict="go_on")
    decision = decide(run, 42.0)
    assert (decision.verdict, decision.stop) == ("go_on", ("worker0",))
    assert "its port 1 did not open" in decision.warnings[0]


def test_no_worker_is_restarted_after_the_chief_has_ended() -> None:
    for code, verdict in ((0, "go_on"), (1, "failed")):
        run = formed(max_restarts=2, evaluator_grace=60.0)
        ended(run, "worker0", -9, 10.0)
        decide(run, 10.0)
        ended(run, "chief0", code, 11.0)
        decide(run, 11.0)
        decision = decide(run, 12.0 + SETTLE)
        assert (decision.verdict, decision.restart) == (verdict, ())
        if decision.cause is not None:
            assert decision.cause.task == "chief0"


def test_a_worker_whose_restart_was_cut_short_by_the_success_is_no_late_failure() -> None:
    run = formed(max_restarts=2, checkpoints="ckpt")
    ended(run, "worker0", -9, 10.0)
    decide(run, 10.0)
    ended(run, "chief0", 0, 11.0)
    assert decide(run, 11.0).warnings == ()
    assert [cause.task for cause in tolerated_failures(run)] == ["worker0"]


def test_a_restart_is_never_decided_while_the_run_is_stopped() -> None:
    run = formed(max_restarts=2)
    ended(run, "worker0", -9, 10.0)
    decide(run, 10.0)
    run.stop_asked = True
    assert decide(run, 20.0) == Decision(verdict="stopped")


def test_a_worker_that_cannot_return_is_done_without_and_the_reason_is_said() -> None:
    run = formed(max_restarts=2)
    view = run.tasks["worker0"]
    view.lost, view.ended_at, view.final = "its node is gone", 10.0, "it would have another address"
    (warning,) = decide(run, 10.0).warnings
    assert warning == (
        "worker0 has failed: its node is gone; the run continues without it "
        "(it would have another address)"
    )


def test_other_strategies_and_roles_restart_as_a_whole() -> None:
    mirrored = attempt(max_restarts=2)
    ended(mirrored, "worker0", -9, 10.0)
    decide(mirrored, 10.0)
    assert decide(mirrored, 10.0 + SETTLE).verdict == "failed"
    for name in ("ps0", "chief0"):
        run = formed(max_restarts=2)
        ended(run, name, -9, 10.0)
        decide(run, 10.0)
        assert decide(run, 10.0 + SETTLE).verdict == "failed"
