"""The newest release's real CUDA wheels: TensorFlow sees the GPUs of a pretended driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloudtrain.catalog import cuda, gpus
from cloudtrain.core.model import Accelerator
from tests.support import wheel_trial

NEWEST = cuda.LIBRARIES[-1]


@pytest.fixture
def folder(tmp_path: Path) -> object:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.sweep(0)
@pytest.mark.gpu_wheels
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc libc6-dev")
def test_the_newest_release_sees_every_gpu(folder: Path) -> None:
    made = wheel_trial.trial(NEWEST.patch, Accelerator(kind="T4", count=2), folder)
    assert made.gpus == ("NVIDIA T4 7.5", "NVIDIA T4 7.5")
    assert made.tensorflow == NEWEST.patch
    wanted = (line.split("==") for line in NEWEST.packages)
    named = {name[7:].rpartition("-")[0]: version for name, version in wanted}
    assert made.libraries == named, "each of CUDA's libraries is the one that the table names"
    code = gpus.DEVICE_CODE[-1]
    binary = {"sm_{}{}".format(*each) for each in code.binary}
    assert set(made.code) <= binary | {"compute_{}{}".format(*code.ptx)}


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=9_400_000_000))
    with pytest.raises(OSError, match=r"9\.4 GB are free in .*, a trial needs 10 GB"):
        wheel_trial.trial("2.21", Accelerator(kind="T4"), tmp_path)
    assert list(tmp_path.iterdir()) == []
