"""`status --watch`: a screen that does not grow with the cluster; in a pipe, a line per change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cli.live_view import Changes, screen
from cloudtrain.commands.status import ClusterStatus, StatusReport
from cloudtrain.core.errors import TransientError
from cloudtrain.core.events import AttemptStarted, NodeCreated, RunEnded, TasksJoined, UpBegun
from cloudtrain.core.model import Node
from cloudtrain.core.run_record import Cause, Run, RunAttempt
from cloudtrain.runs.run_progress import RoleUse, RunProgress, Utilization
from cloudtrain.state import Records

NOW = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    return tmp_path


def node(role: str, index: int, **other: object) -> Node:
    name = f"mnist-{role}{index}"
    facts = {"state": "running", "created": NOW - 3600, "expires": NOW + 7200, **other}
    return Node(
        name=name,
        role=role,
        index=index,
        address="10.0.0.1",
        internal="10.0.0.1",
        **facts,  # type: ignore[arg-type]
    )


def use(role: str, tasks: int, gpu: float | None = 91.0, least: float = 90.0) -> RoleUse:
    return RoleUse(
        role=role,
        tasks=tasks,
        cpu=34.0,
        memory=20.0,
        gpu=gpu,
        gpu_memory=None if gpu is None else 71.0,
        least=f"{role}33",
        least_busy=least,
    )


RUN = Run(
    id="20261123-110000-abcd",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    created=NOW - 1800,
    state="running",
    attempts=(RunAttempt(number=2, started=NOW - 600),),
)


def cluster(nodes: Sequence[Node], *runs: Run, **other: object) -> ClusterStatus:
    return ClusterStatus(
        name="mnist",
        provider="gcp",
        strategy="parameter_server",
        open=True,
        since=NOW - 3600,
        holder=None,
        nodes=tuple(nodes),
        runs=runs,
        faults=(),
        prices={each.name: 0.5 for each in nodes},
        planned=tuple(each.name for each in nodes),
        **other,  # type: ignore[arg-type]
    )


def shown(*clusters: ClusterStatus, height: int = 24) -> list[str]:
    return screen(StatusReport(clusters=clusters), NOW, height)


def large(broken: int = 0) -> ClusterStatus:
    nodes = [node("chief", 0), *(node("worker", index) for index in range(123 - broken))]
    nodes += [node("worker", 123 - broken + n, state="stopped") for n in range(broken)]
    nodes += [node("ps", index) for index in range(4)]
    roles = (use("chief", 1), use("worker", 123, least=12.0), use("ps", 4, gpu=None, least=34.0))
    return cluster(
        nodes,
        RUN,
        progress=RunProgress(
            unit="epoch", at=3, of=10, loss=0.42, rate="85.1 examples/s", left=240.0
        ),
        utilization=Utilization(roles=roles, notes=("1 idle GPU for 2 min: worker7 (GPU 1)",)),
        deadline=NOW + 3600,
    )


def test_a_cluster_of_128_nodes_fits_80_by_24() -> None:
    lines = shown(large())
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[:9] == [
        "mnist  gcp  parameter_server",
        "  128 of 128 nodes running, since 2026-11-23 11:00",
        "  64.00 $/h  ·  cost so far 64.00 $  ·  expires in 2h 00m",
        "  run  20261123-110000-abcd  running  attempt 2  30m  deadline in 1h 00m",
        "    epoch 3 of 10, loss 0.42, 85.1 examples/s, about 4m left",
        "  chief     1 running  GPU 91 %, its memory 71 %, CPU 34 %",
        "  worker    123 running  GPU 91 % (worker33 12 %), its memory 71 %, CPU 34 %",
        "  ps        4 running  CPU 34 %, memory 20 %",
        "  ! 1 idle GPU for 2 min: worker7 (GPU 1)",
    ]


def test_nodes_that_do_not_run_are_named_and_many_are_counted() -> None:
    lines = shown(large(broken=30))
    assert len(lines) <= 24
    assert "  ! worker93 stopped" in lines
    assert "  ! 25 more nodes like these" in lines


def test_three_nodes_take_no_more_lines_than_128() -> None:
    small = cluster([node("chief", 0), node("worker", 0), node("worker", 1)], RUN)
    assert len(shown(small)) <= len(shown(large()))


def test_several_clusters_are_cut_at_the_height_and_the_rest_is_counted() -> None:
    lines = shown(*(replace(large(), name=f"mnist{n}") for n in range(5)), height=24)
    assert len(lines) == 24
    assert "more lines: `cloudtrain status`" in lines[21]


def test_the_latest_events_are_below_and_single_nodes_are_none() -> None:
    records = Records("mnist")
    for event in (
        UpBegun(nodes=("mnist-chief0",)),
        NodeCreated(node="mnist-chief0", id="1", placement="z"),
        AttemptStarted(run="r1", attempt=1),
        TasksJoined(run="r1", after=4.5),
        RunEnded(run="r1", state="succeeded"),
    ):
        records.journal(event)
    told = [line.partition("  ")[2][8:].strip() for line in shown(cluster([], RUN))[-5:-2]]
    assert told == [
        "run r1: attempt 1 started",
        "run r1: cluster formed after 4.5 s",
        "run r1: succeeded",
    ]


def test_the_cause_of_a_failed_run_is_on_the_screen() -> None:
    cause = Cause(task="worker0", node="mnist-worker0", kind="signal", text="killed by signal 9")
    failed = replace(
        RUN, state="failed", attempts=(RunAttempt(number=1, started=NOW - 600, cause=cause),)
    )
    assert any("killed by signal 9" in line for line in shown(cluster([], failed)))


def test_without_a_terminal_only_changes_are_lines() -> None:
    changes, first = Changes(), large()
    changes.of(StatusReport(clusters=(first,)), NOW)
    assert changes.of(StatusReport(clusters=(first,)), NOW + 2) == []
    Records("mnist").journal(TasksJoined(run="r1", after=4.5))
    broken = large(broken=1)
    lines = changes.of(StatusReport(clusters=(broken,)), NOW + 4)
    assert [line.partition("  ")[2] for line in lines] == [
        "mnist  127 of 128 nodes running, since 2026-11-23 11:00",
        "mnist  worker122 stopped",
        "mnist  run r1: cluster formed after 4.5 s",
    ]
    assert changes.of(StatusReport(clusters=(broken,)), NOW + 6) == []


def test_progress_is_a_line_a_minute() -> None:
    changes, report = Changes(), StatusReport(clusters=(large(),))
    said = [line for second in range(0, 180, 2) for line in changes.of(report, NOW + second)]
    assert sum("epoch 3 of 10" in line for line in said) == 3


def test_a_cloud_that_does_not_answer_is_said_once() -> None:
    changes = Changes()
    silent = replace(large(), nodes=None, error=TransientError("the cloud does not answer"))
    first = changes.of(StatusReport(clusters=(silent,)), NOW)
    assert any("the cloud does not answer" in line for line in first)
    assert changes.of(StatusReport(clusters=(silent,)), NOW + 2) == []
