"""What GPU code a wheel has is read out of it, and which driver that needs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from cloudtrain.catalog import cuda, gpus
from cloudtrain.node import gpus_seen
from tests.support.pretended_driver import CUDA_OF
from tests.support.releases import NEXT
from tools import fatbin, gpu_code

PLAIN = b"//\n.version 8.5\n.target sm_90a\n.address_size 64\n.visible .entry Add_GPU_F32("
LETTERS = len(PLAIN) - 15
PACKED = bytes([0xF0, LETTERS]) + PLAIN


def entry(kind: int, architecture: int, payload: bytes, packed: int = 0) -> bytes:
    head = fatbin.ENTRY.pack(kind, 0, 64, len(payload), packed, 0, 5, 8, architecture)
    return head.ljust(64, b"\0") + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return fatbin.HEADER.pack(0xBA55ED50, 1, 16, len(body)) + body


ELSEWHERE = struct.pack("<I", 0xBA55ED50) + b"a constant in the program that reads containers"
LIBRARY = b"".join(
    [
        b"\x7fELF" + bytes(33),
        ELSEWHERE,
        container(
            entry(fatbin.MACHINE_CODE, 80, b"code"),
            entry(fatbin.PTX, 90, PACKED, packed=len(PACKED)),
        ),
        container(
            entry(fatbin.MACHINE_CODE, 80, b"code"),
            entry(fatbin.MACHINE_CODE, 90, b"code"),
            entry(fatbin.PTX, 90, PLAIN.replace(b"90a", b"90")),
        ),
        container(entry(fatbin.PTX, 90, b".version 8.5\n.target sm_90\n")),
        container(entry(fatbin.MACHINE_CODE, 80, b"cut"))[:-1],
    ]
)


def test_the_containers_of_a_library_are_read_with_the_targets_of_their_ptx() -> None:
    assert list(gpu_code.in_library(LIBRARY)) == [
        gpu_code.Kernels(((8, 0),), (("sm_90a", (8, 5)),)),
        gpu_code.Kernels(((8, 0), (9, 0)), (("sm_90", (8, 5)),)),
    ]


def row(capability: str) -> Sequence[str]:
    found = list(gpu_code.in_library(LIBRARY))
    return next(row[2:] for row in gpu_code.table("2.99.0", found) if row[1] == capability)


def test_what_a_driver_must_compile_is_counted_for_each_capability() -> None:
    assert row("7.5") == ["2", "0", "2", "", ""]
    assert row("8.9") == ["2", "0", "0", "", ""]
    assert row("9.0") == ["2", "1", "0", "8.5", "sm_90a"]
    assert row("12.0") == ["2", "1", "1", "8.5", "sm_90"], "sm_90a is for no other"


def test_every_release_of_the_page_of_versions_was_read() -> None:
    lines = gpu_code.TABLE.read_text("utf-8").splitlines()[2:]
    assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == gpu_code.releases()


@pytest.mark.parametrize("row", gpus.GPUS, ids=lambda row: row.kind)
def test_the_code_in_the_wheels_is_what_the_table_of_fits_says(row: gpus.Gpu) -> None:
    for version in gpu_code.releases():
        fit, code = gpus.fit(row.kind, version), cuda.code(version, row.kind)
        assert code, "run: make gpu-code"
        if fit in ("own", "older"):
            assert code.compiled < code.kernels
            assert not code.absent
        elif fit == "ptx":
            assert code.compiled >= code.kernels - 9, "NCCL has no PTX up to 2.15"
        elif fit == "none" and row.capability < gpus.FIRST_WITHOUT:
            assert code.absent == code.kernels


@pytest.mark.parametrize("kind", ["V100", "T4", "A100", "L4", "H100"])
@pytest.mark.parametrize("driver", CUDA_OF)
def test_a_driver_is_too_old_on_the_node_where_the_table_says_so(kind: str, driver: int) -> None:
    for version in (each for each in gpu_code.releases() if each > "2.16"):
        needed = {release: [*pair] for release, pair in cuda.needed(kind).items()}
        old = gpus_seen.too_old(version, needed, CUDA_OF[driver])
        code = cuda.code(version, kind)
        assert bool(old) == bool(code and code.ptx and cuda.PTX[code.ptx][1] > driver), version


def test_the_hint_names_the_driver_and_the_newest_release_that_runs_without_it() -> None:
    needed = {release: [*pair] for release, pair in cuda.needed("H100").items()}
    assert gpus_seen.too_old("2.21.0", needed, (12, 2)).splitlines() == [
        "the driver's CUDA is 12.2; TensorFlow 2.21.0 has code for this GPU that the driver "
        "compiles, and that is of CUDA 12.5",
        'hint: install driver 555 or newer on the machine, or set `setup.tensorflow: "2.16"`',
    ]
    assert "2.18" in gpus_seen.too_old("2.20.0", needed, (12, 4))
    assert gpus_seen.too_old(f"{NEXT}.0", needed, (12, 2)) == "", "nothing is known of it"
    assert gpus_seen.too_old("2.21.0", needed, (0, 0)) == ""
