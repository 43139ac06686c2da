"""How busy the nodes of a run are: by role, and which of them differ."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cli.run_lines import utilization_lines
from cloudtrain.core.metrics import GpuSample, Sample
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs.run_progress import (
    LatestUse,
    Utilization,
    task_use,
    utilization_in,
    utilization_of,
)
from cloudtrain.state import Records


def sample(time: float, *gpus: float | None, cpu: float = 20.0) -> Sample:
    return Sample(
        time=time,
        cpu=cpu,
        memory_used=1,
        memory_total=4,
        gpus=tuple(GpuSample(utilization=each, memory_used=8, memory_total=16) for each in gpus),
        received=0.0,
        sent=0.0,
        disk_read=0.0,
        disk_written=0.0,
    )


def minutes(*gpus: float | None, seconds: int = 200) -> list[Sample]:
    return [sample(float(second), *gpus) for second in range(0, seconds, 2)]


def use(task: str, gpu: float | None, cpu: float = 20.0) -> LatestUse:
    return LatestUse(
        task=task, cpu=cpu, memory=25.0, gpu=gpu, gpu_memory=None if gpu is None else 50
    )


def lines(**roles: Sequence[LatestUse]) -> list[str]:
    return list(utilization_lines(utilization_in(roles)))


def test_figures_are_means_of_the_last_half_minute() -> None:
    samples = [sample(0.0, 0.0, cpu=0.0), sample(100.0, 80.0, cpu=10.0), sample(110.0, 90.0)]
    found = task_use("worker0", samples)
    assert (found.gpu, found.cpu, found.memory, found.gpu_memory) == (85.0, 15.0, 25.0, 50.0)


def test_a_gpu_that_computes_nothing_for_two_minutes_is_named() -> None:
    worker = task_use("worker1", minutes(90.0, 0.0))
    assert worker.resting_gpus == (1,)
    found = utilization_in({"worker": [task_use("worker0", minutes(90.0, 91.0)), worker]})
    assert found.notes == ("1 idle GPU for 2 min: worker1 (GPU 1)",)


def test_a_gpu_that_has_just_begun_or_does_not_say_is_not_called_idle() -> None:
    assert task_use("worker1", minutes(0.0, seconds=60)).resting_gpus == ()
    assert task_use("worker1", minutes(None)).resting_gpus == ()
    assert task_use("worker1", [*minutes(0.0), sample(200.0, 60.0)]).resting_gpus == ()


def test_without_gpus_processors_are_shown() -> None:
    assert lines(ps=[use("ps0", None)]) == ["ps: CPU 20 %, memory 25 %"]


def test_a_role_is_one_line_with_its_least_busy_task() -> None:
    uses = [use(f"worker{index}", 91.0) for index in range(126)]
    shown = lines(chief=[use("chief0", 90.0)], worker=[*uses, use("worker126", 70.0)])
    assert shown == [
        "chief: GPU 90 %, its memory 50 %, CPU 20 %",
        "worker: GPU 91 % (worker126 70 %), its memory 50 %, CPU 20 %",
    ]


def test_a_task_far_from_the_others_is_named_and_many_are_counted() -> None:
    uses = [use(f"worker{index}", 91.0) for index in range(30)]
    one = utilization_in({"worker": [*uses, use("worker30", 12.0)]})
    assert one.notes == ("GPU of worker30 12 %; the median of the others is 91 %",)
    many = utilization_in({"worker": [*uses, *(use(f"worker{30 + n}", 12.0) for n in range(9))]})
    assert many.notes[0].startswith("GPU of worker30 12 %, worker31 12 %, worker32 12 %, worker33")
    assert " and 5 more; " in many.notes[0]


def test_of_two_tasks_neither_is_the_exception() -> None:
    assert utilization_in({"worker": [use("worker0", 90.0), use("worker1", 10.0)]}).notes == ()


def run_of(records: Records, *tasks: str) -> Run:
    listed = tuple(
        Task(role="worker", index=index, node=f"n{index}", port=1, attempt=1)
        for index, _ in enumerate(tasks)
    )
    return Run(id="r1", cluster="c", command="x", created=1.0, state="running", tasks=listed)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    return Records("c")


def write(records: Records, task: str, now: float) -> None:
    path = records.metrics_path("r1", task, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"time": 5, "cpu": 50, "memory": [1, 4], "gpus": [], "network": [0, 0], "disk": [0, 0]}
    path.write_text(json.dumps(facts) + "\n")
    os.utime(path, (now, now))


def test_samples_that_have_arrived_here_are_shown_and_old_ones_are_not(records: Records) -> None:
    run = run_of(records, "worker0", "worker1", "worker2")
    assert utilization_of(records, run, 1000.0) is None
    write(records, "worker0", now=1000.0)
    write(records, "worker1", now=900.0)
    found = utilization_of(records, run, 1000.0)
    assert isinstance(found, Utilization)
    assert [(role.tasks, role.cpu) for role in found.roles] == [(1, 50.0)]
    assert utilization_of(records, run, 1100.0) is None
    assert utilization_of(records, replace(run, ended=990.0), 1000.0) is None
