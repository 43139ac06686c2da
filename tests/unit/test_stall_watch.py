"""That nothing moves in a run is said once, with where each task waits, and nothing is ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.core.events import nothing_moves
from cloudtrain.core.metrics import GpuSample, Sample
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Train
from cloudtrain.core.protocols import Completed
from cloudtrain.core.retry import CLOCK
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.runs.attempt_state import AttemptState, TaskView
from cloudtrain.runs.observers import Watched
from cloudtrain.runs.stall_watch import (
    PEER_GONE,
    STILL,
    StallWatch,
    busy,
    described,
    resting_gpus,
    still,
    waits_in,
)
from cloudtrain.runs.task_commands import Process
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard

STACKS = Path(__file__).parents[1] / "data" / "failures"
EVALUATES = (STACKS / "mirrored_worker0_evaluates_alone.worker0.stacks").read_bytes()
SLEEPS = (
    b"== 7 bash, state S, 0 ticks, waits in do_wait\n"
    b"== 8 python, state S, 40 ticks, waits in hrtimer_nanosleep\n"
    b"Current thread 0x00007f (most recent call first):\n"
    b'  File "/h/.cloudtrain/m/runs/r/worker1/code/train.py", line 19 in <module>\n'
    b"source 19 /h/.cloudtrain/m/runs/r/worker1/code/train.py:     time.sleep(1000)\n"
)


def attempt(*names: str, strategy: str = "multi_worker_mirrored") -> AttemptState:
    tasks = [
        Task(role=n[:-1], index=int(n[-1]), node=f"mnist-{n}", port=1, attempt=1) for n in names
    ]
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy=strategy,
        nodes={task.role: NodeGroup() for task in tasks},
        train=Train(command="x"),
    )
    views = {task.name: TaskView(task=task) for task in tasks}
    return AttemptState(config=config, tasks=views, started=0.0)


def ticks(pid: int, count: int) -> tuple[Process, ...]:
    return (Process(pid=pid, state="S", ticks=count, name="python"),)


# ── Whether anything moves ───────────────────────────────────────────────────


def test_nothing_moves_once_no_task_has_written_or_computed_for_five_minutes() -> None:
    state = attempt("chief0", "worker0")
    assert still(state, STILL - 1) is None
    found = still(state, STILL)
    assert found is not None
    assert (found.since, [task.name for task in found.tasks]) == (0.0, ["chief0", "worker0"])


@pytest.mark.parametrize("line", [b"step 7\n", b"\rbar", b"CreateSession failed\n"])
def test_a_line_of_one_task_is_a_movement_of_the_run(line: bytes) -> None:
    state = attempt("chief0", "worker0")
    state.tasks["worker0"].saw(line, 100.0)
    assert still(state, STILL + 99) is None
    assert still(state, STILL + 100) is not None


def test_that_it_waits_for_a_worker_is_no_movement_however_often_it_says_so() -> None:
    state = attempt("chief0", "worker0")
    waits = b"CreateSession still waiting for response from worker: /job:worker/replica:0/task:0\n"
    state.tasks["chief0"].saw(waits, STILL - 5)
    assert still(state, STILL) is not None
    assert state.tasks["chief0"].last_byte == STILL - 5, "train.stall_timeout counts every line"


def test_processor_time_is_a_movement_but_not_that_of_waiting() -> None:
    view = attempt("chief0").tasks["chief0"]
    for beat in range(100):
        view.beats(ticks(5, beat), 5.0 * beat)
    assert view.moved_at == 0.0, "0.2 % of a core, as TensorFlow takes while it waits"
    view.beats(ticks(5, 99 + 50), 500.0)
    assert view.moved_at == 500.0
    view.beats(ticks(6, 0), 505.0)
    assert view.moved_at == 505.0, "a new process"


@pytest.mark.parametrize("fact", ["unreachable_since", "stopped_since"])
def test_of_a_task_that_is_not_seen_nothing_is_said(fact: str) -> None:
    state = attempt("chief0", "worker0")
    setattr(state.tasks["worker0"], fact, 10.0)
    assert still(state, 10 * STILL) is None


def test_an_evaluator_that_waits_after_the_success_is_no_hang() -> None:
    state = attempt("chief0", "evaluator0")
    state.succeeded_at = 1.0
    assert still(state, 10 * STILL) is None


def test_a_peer_that_has_ended_with_0_makes_it_a_matter_of_one_minute() -> None:
    state = attempt("chief0", "worker0", "ps0", strategy="parameter_server")
    gone = state.tasks["worker0"]
    gone.exit_code, gone.ended_at = 0, 30.0
    assert still(state, 30 + PEER_GONE - 1) is None
    found = still(state, 30 + PEER_GONE)
    assert found is not None
    assert described(found, {"chief0": SLEEPS}, 30 + 8 * 60) == (
        "chief0 waits for worker0, which ended with 0 8 min ago, in time.sleep (train.py:19)"
    )


# ── Where it waits ───────────────────────────────────────────────────────────


def test_a_stack_names_the_call_in_the_users_code_and_its_line() -> None:
    assert waits_in(EVALUATES) == "in evaluate, in a collective (train.py:26)"
    assert waits_in(SLEEPS) == "in time.sleep (train.py:19)"


@pytest.mark.parametrize(
    "stacks",
    [
        b"",
        b"== 3 bash, state S, 0 ticks, waits in do_wait\n",
        b"== 3 python3, state S, 0 ticks, waits in 0\n",
        b"== 3 python3, state R, 9 ticks, waits in 0\n",
        b"== 3 python\nThread 0x1 (most recent call first):\n  <no Python frame>\n",
        b'== 3 python\nThread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/a.py", '
        b"line 1 in f\n",
        b"\xff\xfe",
    ],
)
def test_a_stack_without_the_users_code_says_nothing(stacks: bytes) -> None:
    assert waits_in(stacks) is None


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ("hrtimer_nanosleep", "in a sleep (python3)"),
        ("futex_wait_queue", "for a lock or a thread (python3)"),
        ("inet_csk_accept", "for a connection (python3)"),
        ("poll_schedule_timeout.constprop.0", "for a connection or a file (python3)"),
    ],
)
def test_of_a_program_without_a_stack_there_is_what_the_kernel_says(waits: str, words: str) -> None:
    shell = "== 3 bash, state S, 0 ticks, waits in do_wait\n"
    stacks = f"{shell}== 4 python3, state S, 7 ticks, waits in {waits}\n"
    assert waits_in(stacks.encode()) == words


def test_tasks_that_wait_in_one_place_are_named_together() -> None:
    found = still(attempt("worker0", "worker1", "worker2"), STILL)
    assert found is not None
    stacks = {"worker0": EVALUATES, "worker1": SLEEPS, "worker2": EVALUATES}
    assert described(found, stacks, STILL) == (
        "worker0, worker2 wait in evaluate, in a collective (train.py:26), "
        "worker1 waits in time.sleep (train.py:19)"
    )


# ── Devices ──────────────────────────────────────────────────────────────────


def sample(time: float, **facts: Any) -> Sample:
    gpu = facts.pop("gpu", None)
    gpus = () if gpu is None else (GpuSample(utilization=gpu, memory_used=0, memory_total=1),)
    zero = dict.fromkeys(("received", "sent", "disk_read", "disk_written", "cpu"), 0.0)
    return Sample(time=time, memory_used=0, memory_total=1, gpus=gpus, **{**zero, **facts})


def test_a_node_that_computes_downloads_or_reads_is_busy() -> None:
    assert not busy(
        [sample(1.0, gpu=0.0), sample(3.0, gpu=2.0, received=900.0)], whole_machine=True
    )
    assert busy([sample(1.0, gpu=80.0), sample(3.0, gpu=0.0)], whole_machine=False)
    assert busy([sample(1.0, received=3e6)], whole_machine=True)
    assert busy([sample(1.0, disk_read=5e6)], whole_machine=True)
    assert not busy([sample(1.0, received=3e6)], whole_machine=False), "of others here"


def test_gpus_are_idle_only_if_none_computed_for_the_whole_time() -> None:
    rest = [sample(2.0 * n, gpu=0.0) for n in range(200)]
    assert resting_gpus({"chief0": rest, "ps0": [sample(1.0)]}) == ("chief0",)
    assert resting_gpus({"chief0": rest, "worker0": [*rest[:-1], sample(398.0, gpu=60.0)]}) == ()
    assert resting_gpus({"chief0": rest[-20:]}) == (), "not known for long enough"
    assert resting_gpus({"chief0": []}) == ()


# ── What is said ─────────────────────────────────────────────────────────────

RUN = Run(
    id="20261123-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1),),
    state="running",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0),),
)


class Nodes:
    """Answers as nodes do: a changed file, and stacks."""

    def __init__(self) -> None:
        self.changed = b""

    def run(self, node: object, command: Any, **_: object) -> Completed:
        verb = command.arguments[4]
        return Completed(
            exit_code=0, stdout=SLEEPS if verb == "stacks" else self.changed, stderr=b""
        )


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    plan, provider, records = make_plan(workers=0), FakeProvider(), Records("mnist")
    provider.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    records.create()
    records.save_run(RUN)
    return Session(
        plan=plan,
        records=records,
        provider=provider,
        store=None,  # type: ignore[arg-type]
        console=Heard(),
        identity=adopt_identity(records, plan, ()),
        transport=Nodes(),  # type: ignore[arg-type]
        host_keys=None,  # type: ignore[arg-type]
        nodes=provider.nodes("mnist"),
        clock=replace(CLOCK, now=lambda: 0.0, awake=lambda: 0.0),
    )


def looked(watch: StallWatch, state: AttemptState, *, at: float) -> None:
    """Look at that time, until the nodes have answered, and once more."""
    clock = replace(CLOCK, now=lambda: at, awake=lambda: at)
    watch._watched.session = replace(watch.session, clock=clock)
    watch.look(state)
    if watch._thread is not None:
        watch._thread.join()
    watch.look(state)


def test_it_is_said_once_and_again_when_the_run_moves(session: Session) -> None:
    state, watch = attempt("chief0"), StallWatch(Watched(session=session, run=RUN))
    for moment in (STILL - 1, STILL, STILL + 60):
        looked(watch, state, at=moment)
    heard: Any = session.console
    assert heard.warned == [
        "nothing has moved for 5 min: chief0 waits in time.sleep (train.py:19); `cloudtrain "
        "stop-run mnist`, or `train.stall_timeout: 10m`, ends it"
    ]
    last = nothing_moves(session.records.events(), RUN.id)
    assert last is not None
    assert last.text == "chief0 waits in time.sleep (train.py:19)"
    state.tasks["chief0"].saw(b"step 8\n", STILL + 100)
    looked(watch, state, at=STILL + 100)
    assert heard.said == ["the run moves again, after 7 min"]
    assert nothing_moves(session.records.events(), RUN.id) is None


def test_a_file_that_changes_is_a_movement_and_is_asked_for_again_later(session: Session) -> None:
    nodes: Any = session.transport
    nodes.changed = b"changed work/output/model.h5\n"
    state, watch = attempt("chief0"), StallWatch(Watched(session=session, run=RUN))
    looked(watch, state, at=STILL)
    nodes.changed = b""
    looked(watch, state, at=STILL + 1)
    heard: Any = session.console
    assert heard.warned == []
    looked(watch, state, at=STILL + 100)
    assert len(heard.warned) == 1


def test_what_a_process_that_is_gone_has_said_is_not_shown_for_ever(session: Session) -> None:
    state = attempt("chief0")
    looked(StallWatch(Watched(session=session, run=RUN)), state, at=STILL)
    assert nothing_moves(session.records.events(), RUN.id) is not None
    StallWatch(Watched(session=session, run=RUN))
    assert nothing_moves(session.records.events(), RUN.id) is None


def test_idle_gpus_are_said_once_while_the_tasks_run(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(session.plan), "accelerator", lambda *_: Accelerator(kind="T4"))
    path = session.records.metrics_path(RUN.id, "chief0", 1)
    idle = (
        '{"time": %d, "cpu": 90, "memory": [1, 2], "gpus": [[0, 1, 2]], "network": [0, 0], '
        '"disk": [0, 0]}\n'
    )
    path.write_text("".join(idle % second for second in range(0, 400, 2)))
    state, watch = attempt("chief0"), StallWatch(Watched(session=session, run=RUN))
    for moment in (10.0, 50.0, 90.0):
        state.tasks["chief0"].moved_at = moment
        looked(watch, state, at=moment)
    heard: Any = session.console
    assert heard.warned == [
        "no GPU of chief0 has computed anything for 5 min, while the tasks run: they load data, or "
        "the script uses the CPU alone"
    ]


def test_the_end_of_the_attempt_ends_it(session: Session) -> None:
    watch = StallWatch(Watched(session=session, run=RUN))
    looked(watch, attempt("chief0"), at=STILL)
    watch.end()
    assert nothing_moves(session.records.events(), RUN.id) is None
