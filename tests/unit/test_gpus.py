"""What fits what: GPUs, their generation, and the TensorFlow releases that have code for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cloudtrain import catalog
from cloudtrain.catalog import availability, cuda, gpus, table
from cloudtrain.catalog.bandwidth import bandwidth
from cloudtrain.cluster.plan import make_plan, plan_notes
from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.providers.aws import quota
from cloudtrain.providers.gcp import machine_types
from tests.support.releases import NEXT, NUMBER
from tests.unit.test_config_page import ROOT, generate

NOT_FOUND = {
    "catalog/gpus.py: the rate of P40",
    "catalog/gpus.py: the rate of T4G",
    "providers/azure/bandwidth.csv: Standard_ND96amsr_A100_v4",
    "providers/azure/bandwidth.csv: Standard_ND96isr_H200_v5",
    "providers/gcp/family_traits.csv: g4",
    "providers/gcp/gpus.csv: B200",
    "providers/gcp/gpus.csv: H200",
    "providers/gcp/gpus.csv: RTXPRO6000",
}
"""What no document says, or this program cannot ask for."""


def test_a_new_gpu_family_is_in_each_table_that_has_facts_of_it() -> None:
    """The tables are those of docs/internals/architecture.md, "Strategies, scripts, machines"."""
    lacking = set()
    for cloud in clouds():
        for row in table.packaged(cloud.name).rows:
            kind, family = row.accelerator, re.split(r"[.-]", row.machine)[0]
            if kind is None or not availability.is_sold(cloud, row.machine):
                continue
            if gpus.gpu(kind.kind) is None:
                lacking.add(f"catalog/gpus.py: {kind.kind}")
            built_in = not catalog.takes_accelerators(cloud, row.machine)
            if built_in and not availability.named_for_gpus(cloud, row.machine):
                lacking.add(f"providers/{cloud.name}/facts.py: {family} in gpu_machines")
            if built_in and bandwidth(cloud.name, row.machine, private=False) is None:
                lacking.add(f"providers/{cloud.name}/bandwidth.csv: {family}")
            if cloud.name == "aws" and quota.quota_of(row.machine, spot=False) is None:
                lacking.add(f"providers/aws/quota.py: {family}")
            if cloud.name == "gcp" and built_in and family not in machine_types.COMPACT:
                lacking.add(f"providers/gcp/family_traits.csv: {family}")
            known = machine_types.QUOTAS if built_in else machine_types.ATTACHABLE
            if cloud.name == "gcp" and kind.kind not in known:
                lacking.add(f"providers/gcp/gpus.csv: {kind.kind}")
    for gpu in gpus.GPUS:
        if gpu.rate is None and gpus.fit(gpu.kind, "{}.{}".format(*gpus.NEWEST)) != "none":
            lacking.add(f"catalog/gpus.py: the rate of {gpu.kind}")
    assert lacking == NOT_FOUND, "add it to the file that is named"


def test_the_memory_by_which_gpus_of_aws_are_told_apart_is_that_of_their_rows() -> None:
    kinds = vars(generate("catalog"))["AWS_KINDS"]
    for memory_mib, kind in (each for sizes in kinds.values() for each in sizes.items()):
        row = gpus.gpu(kind)
        assert row is not None, kind
        assert memory_mib == row.memory_gb * 1024, kind


def test_every_row_has_its_source_and_the_day_on_which_it_was_read() -> None:
    families = [row for cloud in clouds() for row in cloud.families]
    for row in (*gpus.GPUS, *gpus.DEVICE_CODE, *families):
        assert row.source
        assert row.read.year >= 2026
    assert len({row.kind for row in gpus.GPUS}) == len(gpus.GPUS)
    assert [row.capability for row in gpus.GPUS] == sorted(row.capability for row in gpus.GPUS)


@pytest.mark.parametrize(
    ("kind", "version", "fit"),
    [
        ("T4", "2.21", "own"),
        ("T4", "2.11.1", "own"),
        ("V100", "2.21", "own"),
        ("P4", "2.20", "own"),
        ("A10G", "2.21", "own"),
        ("A100-80GB", "2.15", "own"),
        ("L4", "2.17", "own"),
        ("L40S", "2.15.1", "older"),
        ("L4", "2.16", "older"),
        ("H100", "2.16", "own"),
        ("nvidia-h100-80gb", "2.15", "ptx"),
        ("H200", "2.12", "ptx"),
        ("B200", "2.21", "none"),
        ("RTX PRO Server 6000", "2.16.2", "none"),
        ("GB200", "2.21.0", "none"),
        ("M60", "2.21", "none"),
        ("B200", NEXT, None),
        ("T9000", "2.21", None),
        ("T4", "1.15", None),
    ],
)
def test_a_release_has_code_for_a_gpu_or_has_not(kind: str, version: str, fit: str | None) -> None:
    assert gpus.fit(kind, version) == fit


def test_the_tables_of_the_page_are_current() -> None:
    page = ROOT / "docs" / "machines.md"
    text = page.read_text(encoding="utf-8")
    assert text == generate().machines(text), "run: python tools/generate_docs.py"


def test_generations_are_told_apart() -> None:
    assert [kind for kind in ("P4", "V100-32GB", "T4", "A10") if gpus.is_older(kind, "Turing")] == [
        "P4",
        "V100-32GB",
    ]
    assert not gpus.is_older("unheard of", "Turing")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("RTX PRO Server 6000", "RTXPRO6000"),
        ("nvidia-rtx-pro-6000", "RTXPRO6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
        ("rtxpro6000", "RTXPRO6000"),
        ("RTXPRO6000BSE", "RTXPRO6000"),
        ("RTX-PRO-4500", "RTXPRO4500"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("nvidia-h100-80gb", "H100"),
        ("nvidia-h200-141gb", "H200"),
        ("nvidia-tesla-t4", "T4"),
        ("NVIDIA A10-24Q", "A10"),
        ("nvidia-b200", "B200"),
        ("nvidia-gb200", "GB200"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("nvidia-a100-80gb", "A100-80GB"),
        ("A100-SXM4-40GB", "A100"),
        ("B300 SXM6 AC", "B300"),
        ("L40S", "L40S"),
    ],
)
def test_an_accelerator_is_known_by_whatever_name_it_goes(said: str, kind: str) -> None:
    row = gpus.gpu(said)
    assert row is not None
    assert row.kind == kind


def test_every_release_with_cuda_on_the_index_has_a_set_of_its_libraries() -> None:
    on_the_index = [(2, number) for number in range(11, NUMBER[1] + 1)]
    assert [row.release for row in cuda.LIBRARIES] == on_the_index, "a row of catalog/cuda.py"
    for row in cuda.LIBRARIES:
        named = dict(line.split("==") for line in row.packages)
        assert len(named) in (10, 12)
        assert row.source
        assert row.read.year >= 2026


def test_only_the_gpus_before_turing_get_another_cudnn() -> None:
    for version in ("2.20", "2.21.0"):
        differ = {
            row.kind for row in gpus.GPUS if cuda.pins(version, row.kind) != cuda.pins(version, "")
        }
        assert differ == {row.kind for row in gpus.GPUS if row.capability < (7, 5)}
    assert cuda.pins("2.19", "V100") == cuda.bounds("2.19", "V100") == ()
    assert cuda.pins(NEXT, "T4") == ()


def told(**changes: Any) -> str:
    """Remarks of the plan of a GPU node with these."""
    top = {key: changes.pop(key) for key in ("image", "provider") if key in changes}
    version = changes.pop("tensorflow", "2.21")
    group = NodeGroup(**{"accelerator": Accelerator(kind="T4"), **changes})
    config = ClusterConfig(
        **{"name": "mnist", "provider": "gcp", "strategy": "one_device", **top},
        nodes={"chief": group},
        setup=Setup(tensorflow=version),
    )
    return "\n".join(plan_notes(make_plan(config)))


def test_an_image_of_ones_own_must_bring_the_driver_or_be_an_ubuntu() -> None:
    assert "nodes.chief: image ml/base is your own: it must have NVIDIA's driver" in told(
        image="ml/base"
    )
    for known in ("auto", "ubuntu-24.04", "deeplearning"):
        assert "is your own" not in told(image=known)
    assert "is your own" not in told(image="ml/base", accelerator=None)


def test_a_disk_that_is_small_for_cuda_is_remarked_on() -> None:
    assert "nodes.chief.disk_gb: 40 GB may be too little" in told(disk_gb=40)
    assert "disk_gb" not in told(disk_gb=100)
    assert "disk_gb" not in told()
    assert "disk_gb" not in told(disk_gb=40, accelerator=None)


def test_a_release_whose_cudnn_for_old_gpus_nobody_has_tried_is_remarked_on() -> None:
    p100 = Accelerator(kind="P100")
    assert 'tensorflow: "2.19" is the safe choice' in told(accelerator=p100)
    assert "2.19" not in told(accelerator=p100, tensorflow="2.18")
    assert "2.19" not in told()
