"""The examples and scripts of other people on a real TensorFlow, with TF_CONFIG set by hand.

Nothing of cloudtrain takes part: what fails here is TensorFlow's or the script's. `make test` has
the same examples in test_training.py, with cloudtrain.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.sweep(0),
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STRANGERS = ROOT / "tests" / "strangers"
LIMIT = 600.0
"""Seconds for one job: about 8 on a quiet machine with two cores."""


@dataclass
class Job:
    """The processes of one job, each with a work folder of its own."""

    folder: Path
    python: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, counts: Mapping[str, int], script: Path, *arguments: str) -> None:
        cluster = addresses(counts)
        for role, index in ((r, i) for r, n in counts.items() for i in range(n)):
            task = {"cluster": cluster, "task": {"type": role, "index": index}}
            alone = {} if sum(counts.values()) == 1 else {"TF_CONFIG": json.dumps(task)}
            work = self.work(f"{role}{index}")
            work.mkdir(parents=True, exist_ok=True)
            with (work / "log").open("wb") as log:
                self.processes[f"{role}{index}"] = subprocess.Popen(
                    [self.python, script, *arguments],
                    cwd=work,
                    env={**environment(), **alone},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def work(self, task: str) -> Path:
        return self.folder / task

    def log(self, task: str) -> str:
        return (self.work(task) / "log").read_text(errors="replace")

    def finish(self, *tasks: str) -> None:
        """Wait until these tasks, or all, have exited 0."""
        for task in tasks or tuple(self.processes):
            code = self.processes[task].wait(LIMIT)
            assert code == 0, f"{task} ended with {code}:\n{self.log(task)[-3000:]}"

    def await_(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.02)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def loss(self, task: str) -> str:
        found = re.search(r"final loss (\d+\.\d{6})", self.log(task))
        assert found, self.log(task)[-3000:]
        return found[1]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = {"KERAS_HOME": tempfile.gettempdir()}  # else it writes into the user's home
    return {**kept, **own, "TF_USE_LEGACY_KERAS": "1", "PYTHONUNBUFFERED": "1"}


def addresses(counts: Mapping[str, int]) -> dict[str, list[str]]:
    """A free port for each task."""
    ports = itertools.count(free_ports(sum(counts.values())))
    return {
        role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items()
    }


@pytest.fixture
def job(tmp_path: Path, tensorflow_python: Path) -> Iterator[Callable[[str], Job]]:
    jobs: list[Job] = []

    def make(name: str) -> Job:
        jobs.append(Job(folder=tmp_path / name, python=tensorflow_python))
        return jobs[-1]

    yield make
    for made in jobs:
        made.kill()


def test_the_loss_is_the_same_on_one_process_two_devices_and_three_nodes(
    job: Callable[[str], Job],
) -> None:
    one, devices, nodes = job("one"), job("devices"), job("nodes")
    one.start({"chief": 1}, EXAMPLES / "multi_worker_mirrored.py")
    one.finish()
    devices.start({"chief": 1}, EXAMPLES / "mirrored.py")
    devices.finish()
    nodes.start({"chief": 1, "worker": 2}, EXAMPLES / "multi_worker_mirrored.py")
    nodes.finish()
    assert one.loss("chief0") == devices.loss("chief0") == nodes.loss("chief0")
    assert nodes.loss("worker0") == nodes.loss("worker1") == nodes.loss("chief0")
    for made in (one, devices, nodes):
        assert (made.work("chief0") / "output" / "model" / "saved_model.pb").is_file()
    assert not (nodes.work("worker0") / "output").exists()


def test_a_job_whose_worker_was_killed_resumes_to_the_loss_of_an_unbroken_one(
    job: Callable[[str], Job],
) -> None:
    script, epochs = EXAMPLES / "multi_worker_mirrored.py", ("--epochs", "12")
    unbroken, broken = job("unbroken"), job("broken")
    unbroken.start({"chief": 1}, script, *epochs)
    unbroken.finish()

    broken.start({"chief": 1, "worker": 1}, script, *epochs)
    broken.await_(lambda: "Epoch 4/12" in broken.log("chief0"))
    broken.processes["worker0"].send_signal(signal.SIGKILL)
    assert broken.processes["chief0"].wait(LIMIT) == 1
    assert "errors_impl.UnavailableError" in broken.log("chief0")
    broken.processes["worker0"].wait(LIMIT)

    shutil.rmtree(broken.work("worker0"))
    shutil.copytree(broken.work("chief0") / "ckpt", broken.work("worker0") / "ckpt")
    broken.start({"chief": 1, "worker": 1}, script, *epochs)
    broken.finish()
    assert "Epoch 1/12" not in broken.log("chief0")
    assert broken.loss("chief0") == broken.loss("worker0") == unbroken.loss("chief0")


def test_parameter_servers_train_resume_and_keep_all_files_on_the_chief(
    job: Callable[[str], Job],
) -> None:
    script, counts = EXAMPLES / "parameter_server.py", {"chief": 1, "worker": 2, "ps": 1}
    first = job("ps")
    first.start(counts, script, "--epochs", "3")
    first.finish("chief0")
    first.kill()
    assert float(first.loss("chief0")) < 1.0
    assert (first.work("chief0") / "output" / "model" / "saved_model.pb").is_file()
    assert {path.name for path in first.work("ps0").iterdir()} == {"log"}

    first.start(counts, script, "--epochs", "4")
    first.finish("chief0")
    assert "Epoch 3/4" not in first.log("chief0")
    assert "Epoch 4/4" in first.log("chief0")


STRANGE = [
    ("keras_fit_experimental.py", {"chief": 1, "worker": 2}, (), "output/keras-model"),
    (
        "ai_platform_trainer.py",
        {"chief": 1, "worker": 1},
        ("--job-dir", "output", "--master-type=n1-standard-8"),
        "output/keras_export",
    ),
    ("custom_loop.py", {"chief": 1, "worker": 1}, (), "output/ckpt/checkpoint"),
    ("parameter_server_v2.py", {"chief": 1, "worker": 1, "ps": 1}, (), "output/accuracy.txt"),
    ("mirrored_notebook.py", {"chief": 1}, (), "output/saved_model/saved_model.pb"),
]


@pytest.mark.parametrize(("script", "counts", "arguments", "made"), STRANGE)
def test_a_strangers_script_runs_as_it_is(
    job: Callable[[str], Job],
    script: str,
    counts: dict[str, int],
    arguments: tuple[str, ...],
    made: str,
) -> None:
    strange = job("strange")
    strange.start(counts, STRANGERS / script, *arguments)
    strange.finish("chief0")
    assert (strange.work("chief0") / made).exists()


def test_an_estimator_script_fails_with_the_message_that_has_a_hint(
    job: Callable[[str], Job],
) -> None:
    strange = job("estimator")
    strange.start({"chief": 1}, STRANGERS / "estimator.py")
    assert strange.processes["chief0"].wait(LIMIT) == 1
    assert "module 'tensorflow' has no attribute 'estimator'" in strange.log("chief0")
