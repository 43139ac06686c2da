"""What of a config is rehearsed on local nodes, and what a rehearsal reads in logs and records."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import pytest

from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.cluster.lease import LASTS
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.rehearse import chosen
from cloudtrain.config import load
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.metrics import (
    LogLine,
    counts,
    has_reached,
    last_loss,
    repeated,
    span_of,
    training,
    unit_of,
)
from cloudtrain.core.model import Artifact, ClusterConfig, Limits, NodeGroup, Setup, Train
from cloudtrain.core.retry import ALONE_LOST_AFTER, NODE_SILENT, Clock
from cloudtrain.core.run_record import Cause, Doubt, Run, RunAttempt, Task
from cloudtrain.rehearsal.fault_trial import Trial, local_config, name_of_rehearsal, not_rehearsed
from cloudtrain.rehearsal.faults import (
    CLIENT,
    FAULTS,
    JUMPS,
    LocalNodes,
    free_disk,
    given_up,
    jumping_clock,
    longest_silence,
)
from cloudtrain.rehearsal.report import (
    Compared,
    Fault,
    FaultOutcome,
    Rehearsal,
    Saving,
    compared,
    judged,
    saving_in,
    table,
)
from cloudtrain.script.program import ModuleEntry, read_program
from cloudtrain.state import Records

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
STORE = "file:///tmp/rehearsal"
FAULT = Fault(kind="kill", task="chief0", share=0.5)


def lines(*texts: str, begin: float = 0.0) -> list[LogLine]:
    """One line a second."""
    return [LogLine(task="chief0", seen=begin + n, text=text) for n, text in enumerate(texts)]


def config(**train: object) -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="multi_worker_mirrored",
        nodes={"chief": NodeGroup(), "worker": NodeGroup(count=2)},
        train=Train(command="python t.py", **train),  # type: ignore[arg-type]
        source="/nowhere/mnist.yaml",
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_can_be_rehearsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TOKEN", "unused")
    original = load(path)
    local = local_config(original, STORE, setup_run=False)
    plan = make_plan(local)
    assert (local.provider, local.artifacts.store) == ("local", STORE)
    assert local.name != original.name
    assert {role: group.count for role, group in local.nodes.items()} == {
        role: group.count for role, group in original.nodes.items()
    }
    assert len(plan.nodes) == len(make_plan(original).nodes)
    assert local.train == original.train


def test_each_limit_is_rehearsed_or_left_out_on_purpose() -> None:
    given = Limits(
        max_lifetime=61.0,
        idle=62.0,
        idle_gpu=65.0,
        max_price=1.0,
        budget=2.0,
        wait=63.0,
        give_back=64.0,
    )
    same = [each.name for each in fields(Limits) if getattr(given, each.name) == each.default]
    assert same == [], "give it a value above; runs/rehearsal keeps or leaves it out"
    local = local_config(replace(config(), limits=given), STORE, setup_run=False).limits
    left_out = ("idle", "idle_gpu", "max_price", "budget")
    kept = {each.name for each in fields(Limits) if getattr(local, each.name) is not None}
    assert {each.name for each in fields(Limits)} - kept == {*left_out}
    assert local == replace(given, **dict.fromkeys(left_out))


def test_the_lines_of_setup_run_are_run_here_only_if_that_was_asked() -> None:
    setup = Setup(run=("sudo apt-get install -y libsndfile1",))
    asked = replace(config(), setup=setup)
    assert local_config(asked, STORE, setup_run=False).setup.run == ()
    assert local_config(asked, STORE, setup_run=True).setup.run == setup.run
    assert any("setup.run: 1 lines" in text for text in not_rehearsed(asked, setup_run=False))
    assert not any("setup.run" in text for text in not_rehearsed(asked, setup_run=True))


@pytest.mark.parametrize("name", ["a", "mnist", "a-name-of-thirty-characters-ab", "x" * 19 + "-y"])
def test_a_rehearsal_has_a_valid_name_of_its_own(name: str) -> None:
    found = name_of_rehearsal(name)
    assert found.endswith("-rehearsal")
    assert len(found) <= 30
    assert "--" not in found


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("step 120", "step", [120]),
        ("Global_step = 7, loss 0.2", "step", [7]),
        ("I0101 Step: 3", "step", [3]),
        ("10 steps per second", "step", []),
        ("Epoch 3/10", "epoch", [3]),
        ("epoch: 2", "epoch", [2]),
        ("epochs done", "epoch", []),
    ],
)
def test_steps_and_epochs_are_read_as_scripts_print_them(
    text: str, unit: str, number: list[int]
) -> None:
    assert counts(lines(text), unit) == number  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("12/50 [==>...] - ETA: 1s - loss: 0.5123 - accuracy: 0.9", 0.5123),
        ("loss: 0.5 - val_loss: 0.7", 0.5),
        ("final loss 0.123456", 0.123456),
        ("step 3 loss=1.5e-3", 0.0015),
        ("glossary 5", None),
    ],
)
def test_the_loss_is_that_of_training(text: str, loss: float | None) -> None:
    assert last_loss(lines(text)) == loss


def test_without_steps_every_line_counts_as_training() -> None:
    assert unit_of(lines("begun", "done")) is None
    assert training(lines("begun", "done"), None) == lines("begun", "done")
    assert training(lines("begun", "step 1"), "step") == lines("begun", "step 1")[1:]


def test_steps_that_were_trained_twice_are_counted() -> None:
    before = lines("step 1", "step 2", "step 3")
    assert repeated(before, lines("step 3", "step 4"), "step") == 1
    assert repeated(before, lines("step 4"), "step") == 0
    assert repeated(before, lines("step 1"), "step") == 3
    assert repeated(before, lines("no number"), "step") is None


def run(*attempts: RunAttempt, state: str = "succeeded") -> Run:
    return Run(
        id="20261123-090000-abcd",
        cluster="mnist-rehearsal",
        command="python t.py",
        state=state,  # type: ignore[arg-type]
        created=0.0,
        tasks=(),
        attempts=attempts,
    )


KILLED = Cause(task="chief0", node="n", kind="signal", text="killed by SIGKILL", exit_code=-9)


def test_a_run_that_resumed_came_through_with_what_it_repeated() -> None:
    log = [*lines("step 1", "step 2"), *lines("step 2", "step 3 loss: 0.5", begin=10.0)]
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    found = judged(config(max_restarts=1, checkpoints="ckpt"), FAULT, both, log, 2.0, None)
    assert (found.verdict, found.attempts) == ("came through", 2)
    assert (found.repeated, found.unit, found.recovered_after) == (1, "step", 8.0)
    assert (found.loss, found.change) == (0.5, ())


def test_a_script_that_begins_again_is_told_how_to_resume() -> None:
    log = [*lines("step 1", "step 2"), *lines("step 1", begin=10.0)]
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    found = judged(config(max_restarts=1), FAULT, both, log, 2.0, None)
    assert found.verdict == "came through"
    assert "train.checkpoints" in found.change[0]


def test_a_run_that_may_not_restart_is_told_so() -> None:
    once = run(RunAttempt(number=1, started=0.0, cause=KILLED), state="failed")
    found = judged(config(), FAULT, once, lines("step 1"), 0.5, None)
    assert found.verdict == "failed"
    assert found.cause == "chief0 on n: killed by SIGKILL"
    assert found.change == ("set train.max_restarts above 0",)


def test_a_fault_that_came_too_late_is_no_proof() -> None:
    once = run(RunAttempt(number=1, started=0.0))
    found = judged(config(), FAULT, once, lines("step 1"), None, None)
    assert found.verdict == "no fault"
    report = Rehearsal(
        name="m", seed=1, store=STORE, not_rehearsed=(), seconds=3.0, loss=None, outcomes=(found,)
    )
    assert not report.came_through


def test_the_table_fits_a_terminal() -> None:
    outcome = FaultOutcome(
        fault="preempt",
        task="worker12",
        after=123.4,
        verdict="came through",
        run="r",
        attempts=2,
        repeated=120,
        unit="step",
        loss=0.123456,
        recovered_after=122.5,
    )
    report = Rehearsal(
        name="m", seed=7, store=STORE, not_rehearsed=(), seconds=60.0, loss=0.1, outcomes=(outcome,)
    )
    shown = table(report)
    assert all(len(line) <= 80 for line in shown)
    assert re.split(" {2,}", shown[2]) == [
        "preempt",
        "worker12",
        "123.4 s",
        "came through",
        "120 steps",
        "0.123456",
        "122.5 s",
    ]


def test_a_seed_repeats_the_choices() -> None:
    local = local_config(config(), STORE, setup_run=False)
    first = chosen(local, ("kill", "cut"), (), None, 3, random.Random(5))
    assert first == chosen(local, ("kill", "cut"), (), None, 3, random.Random(5))
    assert [fault.kind for fault in first] == ["kill"] * 3 + ["cut"] * 3
    only = chosen(local, ("kill",), ("worker1",), 0.5, 1, random.Random(5))
    assert only == [Fault(kind="kill", task="worker1", share=0.5)]


@pytest.mark.parametrize(("kinds", "roles"), [(("explode",), ()), (("kill",), ("ps",))])
def test_an_unknown_fault_or_role_is_refused(
    kinds: tuple[str, ...], roles: tuple[str, ...]
) -> None:
    local = local_config(config(), STORE, setup_run=False)
    with pytest.raises(UsageError):
        chosen(local, kinds, roles, None, 1, random.Random(5))


def test_all_faults_are_all_but_for_what_takes_one_node_five_minutes() -> None:
    several = local_config(config(), STORE, setup_run=False)
    every = chosen(several, ("all",), (), None, 1, random.Random(5))
    assert [fault.kind for fault in every] == [kind for kind in FAULTS if kind != "lid"]
    one = replace(several, strategy="mirrored", nodes={"chief": NodeGroup()})
    alone = chosen(one, ("all",), (), None, 1, random.Random(5))
    assert [fault.kind for fault in alone] == [
        kind for kind in FAULTS if kind not in ("away", "lid")
    ]
    named = chosen(one, ("away",), (), None, 1, random.Random(5))
    assert [fault.kind for fault in named] == ["away"]


def test_a_fault_of_the_client_is_of_no_task_and_outlasts_every_silence() -> None:
    local = local_config(config(stall_timeout=1000.0), STORE, setup_run=False)
    both = chosen(local, ("lid", "clock"), ("worker",), 0.5, 1, random.Random(5))
    assert [(fault.kind, fault.task) for fault in both] == [("lid", CLIENT), ("clock", CLIENT)]
    assert longest_silence(config().train) > max(ALONE_LOST_AFTER, NODE_SILENT, LASTS)
    assert longest_silence(local.train) > 1000


def test_a_clock_that_jumps_is_read_by_libraries_and_moves_no_moment_of_ours() -> None:
    before = time.time()
    with jumping_clock() as jump:
        for wrong in JUMPS:
            jump(wrong)
            assert abs(time.time() - before - wrong) < 60
            assert abs(moments.wall() - before - wrong) < 60
            assert abs(time.time_ns() / 1e9 - before - wrong) < 60
            assert abs(moments.now() - before) < 60
    assert abs(time.time() - before) < 60


def test_an_exit_code_that_is_not_retried_is_named_instead_of_more_restarts() -> None:
    full = Cause(
        task="chief0",
        node="n",
        kind="exit",
        text="exit code 1: OSError: No space left on device",
        exit_code=1,
        hint="give the node more disk",
    )
    once = run(RunAttempt(number=1, started=0.0, cause=full), state="failed")
    found = judged(config(max_restarts=2), FAULT, once, lines("step 1"), 0.5, None)
    assert found.change == (
        "give the node more disk",
        "exit code 1 is not retried: add it to train.retry_exit_codes if another attempt would "
        "succeed",
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("tf.keras.callbacks.EarlyStopping()", "as the script saves no checkpoint"),
        ("tf.keras.callbacks.ModelCheckpoint('x')", "saves checkpoints (t.py:2: ModelCheckpoint)"),
    ],
)
def test_a_script_that_begins_again_is_told_what_it_saves(source: str, expected: str) -> None:
    text = f"import tensorflow as tf\n{source}\n"
    facts = read_program(ModuleEntry(path="t.py", root="."), {"t.py": text}.get)
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    log = [*lines("step 1", "step 2"), *lines("step 1", begin=10.0)]
    found = judged(config(max_restarts=1), FAULT, both, log, 2.0, None, saving=saving_in(facts))
    (change,) = found.change
    assert expected in change


def test_a_script_without_numbers_in_its_log_that_saves_nothing_is_told_so() -> None:
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    log = [*lines("hello"), *lines("hello", begin=10.0)]
    settings = config(max_restarts=1)
    found = judged(settings, FAULT, both, log, 2.0, None, saving=Saving(use=None))
    assert "saves no checkpoint" in found.change[0]
    assert (
        judged(settings, FAULT, both, log, 2.0, None, saving=Saving(use="t.py:1: x")).change == ()
    )
    alone = run(RunAttempt(number=1, started=0.0, restarted=(KILLED,)))
    assert judged(settings, FAULT, alone, log, 2.0, None, saving=Saving(use=None)).change == ()


def test_a_node_that_came_back_and_ran_on_is_a_failure_of_any_run() -> None:
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    wrong = "the node came back, and its old chief0 ran beside a later attempt"
    found = judged(config(max_restarts=1), FAULT, both, lines("step 1"), 0.5, None, orphan=wrong)
    assert (found.verdict, found.cause) == ("failed", wrong)


def test_an_attempt_is_given_up_when_it_ends_or_its_task_is_restarted_alone() -> None:
    task = Task(role="worker", index=0, node="n", port=1, attempt=1)
    first = RunAttempt(number=1, started=0.0)
    before = run(first, state="running")
    other = replace(KILLED, task="worker1")
    own = replace(KILLED, task="worker0")
    assert not given_up(before, before, task)
    assert not given_up(before, run(replace(first, restarted=(other,)), state="running"), task)
    assert given_up(before, run(replace(first, restarted=(own,)), state="running"), task)
    assert given_up(before, run(replace(first, ended=9.0), state="running"), task)
    assert given_up(before, run(first, RunAttempt(number=2, started=9.0)), task)
    assert given_up(before, None, task)


def test_a_fault_comes_by_what_the_script_counts_if_that_is_sooner_than_the_clock() -> None:
    span = span_of(lines("epoch 1", "epoch 2", "epoch 5"), "epoch")
    assert span == (1, 5)
    assert not has_reached(lines("epoch 1", "epoch 2"), "epoch", span, 0.5)
    assert has_reached(lines("epoch 3"), "epoch", span, 0.5)
    assert not has_reached(lines("hello"), None, None, 0.0)
    assert span_of(lines("epoch 1"), "epoch") is None


def test_a_fault_that_comes_after_its_task_has_ended_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while an evaluator scores: seen as a killed worker without which the run "went on"."""
    going = replace(run(state="running"), tasks=(Task(role="chief", index=0, node="n", port=1),))
    monkeypatch.setattr(Records, "active_run", lambda _: going)
    settings = local_config(config(), STORE, setup_run=False)

    def never(_: object) -> Run:
        raise AssertionError

    trial = Trial(settings, LoggingConsole(), never, never, FAULT, lines=lines("step 1"))
    trial._hit(threading.Event())
    assert trial.hit is None


def landed(*files: tuple[str, int]) -> Manifest:
    return Manifest(
        run="r", files={path: Artifact(path=path, size=size, sha256="") for path, size in files}
    )


UNDISTURBED = landed(
    ("chief0/ckpt/ckpt-12.index", 5000),
    ("chief0/ckpt/ckpt-14.index", 5000),
    ("chief0/tb/events.out.tfevents.1732.node.88.0.v2", 90_000),
    ("chief0/_temp_3f9c0a1b2d/part-00000", 10),
    ("chief0/model/weights.h5", 80_000),
    ("chief0/history.csv", 4000),
    ("worker0/out.txt", 10),
    ("logs/chief0-1.log", 4000),
    ("report.html", 9000),
)


def test_what_landed_is_compared_by_names_without_numbers_and_by_half_the_size() -> None:
    restarted = landed(
        ("chief0/ckpt/ckpt-16.index", 5000),
        ("chief0/tb/events.out.tfevents.1799.node.99.0.v2", 100),
        ("chief0/_temp_77aa00ff11/part-00000", 1),
        ("chief0/model/weights.h5", 80_001),
        ("chief0/history.csv", 1900),
        ("worker0/out.txt", 3),
    )
    assert compared(UNDISTURBED, restarted) == Compared(
        smaller=("chief0/history.csv: 1.9 kB instead of 4.0 kB",)
    )
    less = restarted.without(["worker0/out.txt"]).with_files(
        [Artifact(path="chief0/model/weights.h5", size=0, sha256="")]
    )
    missing = compared(UNDISTURBED, less).missing
    assert missing == ("chief0/model/weights.h5", "worker0/out.txt")
    assert compared(UNDISTURBED, less, without={"worker0"}).missing == missing[:1]
    everything = compared(UNDISTURBED, None).missing
    assert len(everything) == 6
    assert "chief0/ckpt/ckpt-12.index" in everything
    assert compared(None, None) == Compared()


def test_a_success_that_lacks_what_the_undisturbed_run_landed_has_not_come_through() -> None:
    both = run(RunAttempt(number=1, started=0.0, cause=KILLED), RunAttempt(number=2, started=9.0))
    less = Compared(missing=("chief0/model/weights.h5",), smaller=("chief0/a.csv: 1 B",))
    found = judged(config(max_restarts=1), FAULT, both, lines("step 1"), 0.5, None, landed=less)
    assert found.verdict == "failed"
    said = "it succeeded without what the undisturbed run landed: chief0/model/weights.h5"
    assert found.cause == said
    report = Rehearsal(
        name="m", seed=1, store=STORE, not_rehearsed=(), seconds=3.0, loss=None, outcomes=(found,)
    )
    assert f"    {said}" in table(report)
    assert "    landed: chief0/a.csv: 1 B" in table(report)


def test_a_doubtful_reference_proves_nothing_and_a_new_doubt_is_a_failure() -> None:
    doubt = Doubt(task="chief0", kind="error", text="chief0 exited with 0 after NotFoundError")
    both = replace(run(RunAttempt(number=1, started=0.0)), doubts=(doubt,))
    new = judged(config(), FAULT, both, lines("step 1"), 0.5, None)
    assert (new.verdict, new.cause) == ("failed", f"it succeeded, but {doubt.text}")
    same = judged(config(), FAULT, both, lines("step 1"), 0.5, None, doubted=[doubt.text])
    assert same.verdict == "came through"
    report = Rehearsal(
        **{"name": "m", "seed": 1, "store": STORE, "not_rehearsed": (), "seconds": 3.0},  # type: ignore[arg-type]
        loss=None,
        outcomes=(same,),
        doubts=(doubt.text,),
    )
    assert not report.came_through
    assert replace(report, outcomes=()).came_through
    assert f"    its success may be none: {doubt.text}" in table(report)


def test_a_fault_that_cannot_be_made_is_said_in_the_table_and_ends_no_rehearsal() -> None:
    once = run(RunAttempt(number=1, started=0.0))
    why = "the fault could not be made: no disk"
    found = judged(config(), FAULT, once, lines("step 1"), 0.5, None, unmade=why)
    assert (found.verdict, found.cause, found.change) == ("no fault", why, ())
    report = Rehearsal(
        name="m", seed=1, store=STORE, not_rehearsed=(), seconds=3.0, loss=None, outcomes=(found,)
    )
    assert f"    {why}" in table(report)


class Disk:
    """A node's, whose server has gone before its last process."""

    def __init__(self, *processes: tuple[int, ...]) -> None:
        self.left = list(processes)
        self.frees = 0

    def processes(self, _cluster: str, _node: str) -> tuple[int, ...]:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def free_disk(self, _cluster: str, _node: str, _size: int) -> None:
        self.frees += 1
        raise CloudtrainError("cannot resize the disk: no such process")


def test_the_disk_of_a_node_that_is_just_being_deleted_need_not_be_freed() -> None:
    seconds = itertools.count()
    clock = Clock(monotonic=lambda: float(next(seconds)), sleep=lambda _: None)
    dying = Disk((7, 8), (8,), ())
    free_disk(cast(LocalNodes, dying), "c", "n", 1, clock=clock)
    assert dying.frees == 3
    with pytest.raises(CloudtrainError, match="cannot resize"):
        free_disk(cast(LocalNodes, Disk((7,))), "c", "n", 1, clock=clock)
