"""The nvidia playbook's decisions: where a driver is needed, and which one."""

from __future__ import annotations

import pytest

from cloudtrain.catalog.cuda import TOOLKITS, toolkit
from cloudtrain.core.model import Accelerator, ClusterConfig
from cloudtrain.playbooks import nvidia
from tests.support.nodes_here import node
from tests.support.nvidia_parts import config

# ── as values ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wanted",
    [
        config(kind=None),
        config(provider="local"),
        config(provider="hosts"),
        config(strategy="tpu"),
    ],
)
def test_nothing_is_done_where_no_gpu_should_be_or_the_machine_is_not_rented(
    wanted: ClusterConfig,
) -> None:
    assert nvidia.steps(wanted, node()) == ()


def test_a_machines_own_gpus_count_without_being_named() -> None:
    assert nvidia.wanted(config(kind=None, provider="aws", machine="g5.12xlarge"), node()) == (
        Accelerator(kind="A10G", count=4)
    )


@pytest.mark.parametrize(
    ("kind", "modules"),
    [("P100", ""), ("V100", ""), ("T4", "-open"), ("A100", "-open"), ("H100", "-open")],
)
def test_the_modules_follow_the_gpu(kind: str, modules: str) -> None:
    driver, _ = nvidia.steps(config(kind), node())
    assert driver.run.arguments[8:10] == ("580-server", modules)
    assert driver.reboots


@pytest.mark.parametrize(
    ("version", "cuda"),
    [
        ("1.15.5", ("10.0", "410.48")),
        ("2.11", ("11.2", "450.80.02")),
        ("2.14.1", ("11.8", "450.80.02")),
        ("2.15", ("12.2", "525.60.13")),
        ("2.17", ("12.3", "525.60.13")),
        ("2.21", ("12.5", "525.60.13")),
        ("2.30", (TOOLKITS[-1].cuda, TOOLKITS[-1].driver)),
    ],
)
def test_the_oldest_driver_follows_the_release(version: str, cuda: tuple[str, str]) -> None:
    row = toolkit(version)
    assert (row.cuda, row.driver) == cuda
    driver, _ = nvidia.steps(config(tensorflow=version), node())
    assert driver.unless
    assert driver.unless.arguments[-1] == cuda[1]


@pytest.mark.parametrize(
    ("version", "kind", "oldest"),
    [
        ("2.21", "H100", "555"),
        ("2.20.0", "H200", "555"),
        ("2.19", "GH200", "555"),
        ("2.18", "H100", "545"),
        ("2.17.1", "H100", "545"),
        ("2.16", "H100", "525.60.13"),
        ("2.14", "A100", "455"),
        ("2.9", "L4", "450.80.02"),
        ("2.21", "L4", "525.60.13"),
        ("2.22", "H100", "555"),
        ("2.21", "T9000", "525.60.13"),
        ("1.14", "V100", "410.48"),
    ],
)
def test_code_that_the_driver_compiles_needs_a_newer_one(
    version: str, kind: str, oldest: str
) -> None:
    driver, _ = nvidia.steps(config(kind, tensorflow=version), node())
    assert driver.unless
    assert driver.unless.arguments[-1] == oldest
