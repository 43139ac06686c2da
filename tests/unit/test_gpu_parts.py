"""A folder in parts is the same on another machine, and lacks only what its GPU does not run."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.test_gpu_code import LIBRARY, PLAIN, container, entry
from tools import fatbin
from tools.gpu_parts import chunk, slim, there


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes, and blocks of a size that files of a test fill."""
    monkeypatch.setattr(chunk, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(chunk, "BLOCK", 70_000)
    monkeypatch.setattr(slim, "SMALLEST", 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "packages"
    (made / "nvidia/lib").mkdir(parents=True)
    made.joinpath("nvidia/lib/libbig.so.1").write_bytes(random.Random(1).randbytes(200_000))
    made.joinpath("nvidia/lib/libbig.so").symlink_to("libbig.so.1")
    made.joinpath("blank.bin").write_bytes(bytes(300_000) + b"end")
    made.joinpath("tool").write_text("#!/bin/sh\n")
    made.joinpath("tool").chmod(0o755)
    made.joinpath("empty.py").touch()
    return made


def contents(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode & 0o777,
            str(path.readlink()) if path.is_symlink() else path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
        if (path.is_file() or path.is_symlink()) and chunk.DONE not in path.parts
    }


def test_parts_in_any_order_and_twice_make_the_same_folder(folder: Path, tmp_path: Path) -> None:
    index = chunk.pack(folder, tmp_path / "parts", 100_000, ["tool", "nvidia/*"])
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) >= 3
    assert chunk.complete_with(index, "tool") == 1
    assert chunk.complete_with(index, "nvidia/*") <= chunk.complete_with(index, "blank*")
    there = tmp_path / "there"
    for part in (parts[0], *reversed(parts)):
        assert chunk.unpack(part, there) == []
    assert chunk.missing(there) == ([], [])
    assert contents(there) == contents(folder)


def test_what_is_damaged_or_did_not_come_is_named(folder: Path, tmp_path: Path) -> None:
    chunk.pack(folder, tmp_path / "parts", 100_000)
    parts = sorted((tmp_path / "parts").iterdir())
    there = tmp_path / "there"
    (hurt, *_) = sorted(parts[0].glob("*.xz"))
    whole = hurt.read_bytes()
    hurt.write_bytes(whole[:-40])
    (said,) = chunk.unpack(parts[0], there)
    assert said.startswith(f"block {int(hurt.stem)}: ")
    lacking, names = chunk.missing(there)
    assert lacking[0] == 1
    assert names
    hurt.write_bytes(whole)
    for part in parts:
        assert chunk.unpack(part, there) == []
    assert contents(there) == contents(folder)


OWN = entry(fatbin.MACHINE_CODE, 90, b"own")
OTHER = entry(fatbin.MACHINE_CODE, 80, b"other")


def test_code_of_other_gpus_is_blanked_and_what_the_gpu_runs_stays() -> None:
    both = container(OTHER, OWN, entry(fatbin.PTX, 90, PLAIN))
    ptx = container(OTHER, entry(fatbin.PTX, 75, b"older"), entry(fatbin.PTX, 90, PLAIN))
    data = bytearray(b"cpu" + both + b"code" + ptx)
    blank = slim.blanked(data, 90, lean=False)
    left = [
        (each.kind, bytes(data[each.start : each.end]).strip(b"\0"))
        for entries in fatbin.containers(data)
        for each in entries
    ]
    assert [text for _, text in left] == [b"", b"own", b"", b"", b"", PLAIN]
    assert blank == len(b"other") * 2 + len(PLAIN) + len(b"older")
    assert data[:3] == b"cpu"
    lean = bytearray(ptx)
    slim.blanked(lean, 90, lean=True)
    assert PLAIN not in lean


def test_what_nothing_opens_is_left_out_and_links_to_it_too(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    (packages / "nvidia/lib").mkdir(parents=True)
    (packages / "nvidia/lib/libcurand.so.10").write_bytes(b"x" * 50)
    (packages / "nvidia/lib/libother.so").symlink_to("libcurand.so.10")
    (packages / "tensorflow").mkdir()
    (packages / "tensorflow/libtensorflow_cc.so.2").write_bytes(LIBRARY)
    copied = slim.copy(packages, tmp_path / "out", 90)
    assert contents(tmp_path / "out").keys() == {"tensorflow/libtensorflow_cc.so.2"}
    assert copied.left_out == 50
    assert copied.blank > 0


def test_what_has_not_arrived_is_taken_from_the_machine_and_cudnn_as_a_whole() -> None:
    names = ("libcublas.so.13", "libcufft.so.12", "libcudnn.so.9", "libcudnn_ops.so.9")
    machine = {name: Path("/opt/nvidia", name) for name in names}
    lacking = ["nvidia/cublas/lib/libcublas.so.12", "nvidia/nccl/lib/libnccl.so.2", "numpy/a.py"]
    assert there.replacements(lacking, machine) == {
        "libcublas.so.12": machine["libcublas.so.13"],
        "libnccl.so.2": None,
    }
    assert there.replacements(["nvidia/cudnn/lib/libcudnn.so.9"], machine) == {
        name: machine[name] for name in names[2:]
    }
