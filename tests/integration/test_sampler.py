"""The node is sampled beside a task, by the machine's own python3 and kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core import metrics, ship
from cloudtrain.core.metrics import GpuSample, Sample
from cloudtrain.runs import task_commands
from cloudtrain.runs.task_commands import FollowReader, MetricsLine
from tests.support.fakes import eventually
from tests.support.supervising import SHELLS, Attempt, Machine

NVML = r"""
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(0x7f0000000000ul + index);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    if (((unsigned long)device & 1) == 1) return 3;
    rates->gpu = 91;
    rates->memory = 40;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 16ul << 30;
    memory->used = 12ul << 30;
    memory->free = 4ul << 30;
    return 0;
}
"""
"""Two GPUs, of which the second is split by MIG: its driver refuses its utilization. Structures
and functions as in nvml.h."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples each 0.1 s, not each 2 s."""
    program = ship.inline("sampler")
    hasty = program.replace("INTERVAL = 2.0", "INTERVAL = 0.1")
    assert hasty != program
    monkeypatch.setattr(task_commands, "inline", {"sampler": hasty}.__getitem__)


pytestmark = pytest.mark.sweep(1, over="attempt")  # one of the shells


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def attempt(request: pytest.FixtureRequest, tmp_path: Path, often: None) -> Iterator[Attempt]:
    machine = Machine(tmp_path / "home", request.param)
    yield Attempt(machine)
    machine.kill_all()


def samples(attempt: Attempt) -> list[Sample]:
    return metrics.read_samples(attempt.path / "metrics")


def samplers(attempt: Attempt) -> list[int]:
    """The shells of its watcher have the sampler's text on their command lines, too."""
    marked = attempt.machine.marked()
    return [pid for pid, line in marked.items() if "PR_SET_PDEATHSIG" in line and is_python(pid)]


def is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    return False


def followed(attempt: Attempt, measured: int = 0) -> bytes:
    command = task_commands.follow(attempt.folder, 0, measured=measured, interval=0.2)
    facts = FollowReader().feed(attempt.machine.run(command).stderr)
    lines = [one.text for one in facts if isinstance(one, MetricsLine)]
    return "".join(f"{line}\n" for line in lines).encode()


def test_a_running_task_is_sampled_and_its_sampler_ends_with_it(attempt: Attempt) -> None:
    attempt.start("while [ ! -e over ]; do sleep 0.1; done")
    eventually(lambda: len(samples(attempt)) >= 2)
    (attempt.machine.home / "work/over").touch()
    attempt.wait()
    eventually(lambda: not attempt.machine.marked())
    first, second, *_ = samples(attempt)
    assert second.time > first.time
    assert 0 <= second.cpu <= 100
    assert 0 < second.memory_used < second.memory_total
    assert (attempt.path / "metrics").stat().st_mode & 0o777 == 0o600


def test_samples_arrive_with_the_log_from_any_offset_and_each_once(attempt: Attempt) -> None:
    attempt.start("while [ ! -e over ]; do sleep 0.1; done")
    eventually(lambda: len(samples(attempt)) >= 2)
    (attempt.machine.home / "work/over").touch()
    attempt.wait()
    whole = (attempt.path / "metrics").read_bytes()
    for offset in (0, 1, len(whole) // 2, whole.index(b"\n"), len(whole) - 1, len(whole)):
        assert followed(attempt, offset) == whole[offset:], offset


def test_megabytes_of_samples_arrive_in_pieces(attempt: Attempt) -> None:
    attempt.start("true")
    attempt.wait()
    line = b'{"time":1,"cpu":1,"memory":[1,2],"gpus":[],"network":[1,2],"disk":[1,2]}\n'
    (attempt.path / "metrics").write_bytes(line * 40_000)
    assert followed(attempt) == line * 40_000


def test_a_line_that_is_not_whole_is_left_for_later(attempt: Attempt) -> None:
    attempt.start("true")
    attempt.wait()
    (attempt.path / "metrics").write_bytes(b'{"a":1}\n{"b":')
    assert followed(attempt) == b'{"a":1}\n'
    with (attempt.path / "metrics").open("ab") as file:
        file.write(b"2}\n")
    assert followed(attempt, 8) == b'{"b":2}\n'


def test_a_sampler_whose_watcher_is_killed_is_gone_at_once(attempt: Attempt) -> None:
    attempt.start("sleep 60")
    eventually(lambda: bool(samplers(attempt)))
    eventually(lambda: (attempt.path / "metrics").exists())
    watcher = int(str((attempt.path / "task").readlink()).split(":")[3])
    os.kill(watcher, signal.SIGKILL)
    eventually(lambda: not samplers(attempt))


def test_a_task_runs_where_its_metrics_cannot_be_written(attempt: Attempt) -> None:
    attempt.path.mkdir(parents=True)
    (attempt.path / "metrics").mkdir()
    attempt.start("echo done")
    assert attempt.wait().exit_code == 0
    assert attempt.log == b"done\n"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_gpus_are_sampled_by_the_drivers_own_library(attempt: Attempt, tmp_path: Path) -> None:
    library = tmp_path / "lib/libnvidia-ml.so.1"
    library.parent.mkdir()
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=NVML, text=True, check=True)
    attempt.machine.environment["LD_LIBRARY_PATH"] = str(library.parent)
    attempt.start("while [ ! -e over ]; do sleep 0.1; done")
    eventually(lambda: bool(samples(attempt)))
    (attempt.machine.home / "work/over").touch()
    attempt.wait()
    whole, split = samples(attempt)[0].gpus
    assert whole == GpuSample(utilization=91, memory_used=12 << 30, memory_total=16 << 30)
    assert split.utilization is None
    assert split.memory_used == 12 << 30
