"""Tables and stand-ins of AWS contradict nothing that EC2 was recorded to answer.

The recordings: DescribeInstanceTypes of every type in moto, the types that botocore's model of EC2
names, and the prices in libcloud. gpuhunt ships no catalogue with its package.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader

from cloudtrain.catalog import gpus as gpus_of
from cloudtrain.catalog import table
from cloudtrain.catalog.gpus import is_same_accelerator
from cloudtrain.catalog.table import MachineRow
from tests.standins import aws_data

ROWS = table.packaged("aws").rows


@cache
def packaged(package: str, path: str) -> Any:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    data = (Path(spec.origin).parent / path).read_bytes()
    return json.loads(gzip.decompress(data) if path.endswith("gz") else data)


def recorded() -> dict[str, Any]:
    types: dict[str, Any] = packaged("moto", "ec2/resources/instance_types.json.gz")
    return types


def test_each_machine_of_the_table_is_as_ec2_describes_it() -> None:
    sold = set(Loader().load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"])
    for row in ROWS:
        assert row.machine in sold, row.machine
        facts = recorded()[row.machine]
        assert row.vcpus == facts["VCpuInfo"]["DefaultVCpus"], row.machine
        assert row.memory_gib == facts["MemoryInfo"]["SizeInMiB"] / 1024, row.machine
        gpus = facts.get("GpuInfo", {}).get("Gpus", [])
        assert [gpu["Count"] for gpu in gpus] == (
            [row.accelerator.count] if row.accelerator else []
        )
        for gpu in gpus:
            assert row.accelerator is not None
            assert is_same_accelerator(gpu["Name"], row.accelerator.kind), row.machine
            assert gpus_of.gpu(row.accelerator.kind) is not None, row.machine


def test_the_table_has_what_ec2_sells_for_training() -> None:
    """All whole GPUs of NVIDIA on x86-64, and what an account on the Free plan may launch."""
    names = {row.machine for row in ROWS}
    for name, facts in recorded().items():
        gpus = facts.get("GpuInfo", {}).get("Gpus", [])
        whole = [g for g in gpus if g["Manufacturer"] == "NVIDIA" and g["Count"]]
        x86 = "x86_64" in facts["ProcessorInfo"]["SupportedArchitectures"]
        retired = any(name.startswith(family) for family in ("p2.", "g3.", "g3s.", "g2."))
        if x86 and whole and not retired:
            assert name in names
    free = {name for name, facts in recorded().items() if facts.get("FreeTierEligible")}
    assert {"m7i-flex.large", "c7i-flex.large", "t3.small"} <= free & names


def test_a_stand_in_adds_types_and_replaces_none() -> None:
    types = json.loads(json.dumps(recorded()))
    offers = {"region": {}, "availability-zone": {}, "availability-zone-id": {}}
    for by_region in offers.values():
        by_region.update({region: [] for region in aws_data.REGIONS})
    aws_data.add_machines(types, offers)
    assert {name: types[name] for name in recorded()} == recorded()
    with pytest.raises(AssertionError, match="recorded"):
        aws_data.add_machines(types, offers)


def per_size(one: MachineRow, other: MachineRow) -> float | None:
    """How many of `one` are in `other`, by all that a size has; None if these differ."""
    if one.machine.split(".")[0] != other.machine.split(".")[0] or one.spot != other.spot:
        return None
    gpus = [row.accelerator.count if row.accelerator else 0 for row in (one, other)]
    ratios = {other.vcpus / one.vcpus, other.memory_gib / one.memory_gib}
    if gpus[0]:
        ratios.add(gpus[1] / gpus[0])
    return ratios.pop() if len(ratios) == 1 else None


def test_a_size_doubled_costs_twice_as_much() -> None:
    compared = 0
    for one, other in permutations(ROWS, 2):
        times = per_size(one, other)
        if times is None:
            continue
        for region in set(one.prices) & set(other.prices):
            if one.dates.get(region) == other.dates.get(region):
                compared += 1
                expected = pytest.approx(times * one.prices[region], rel=0.02)
                assert other.prices[region] == expected, (one.machine, other.machine, region)
    assert compared > 4000


def test_a_price_without_a_day_of_its_own_is_that_of_libcloud_and_none_is_computed() -> None:
    listed = packaged("libcloud", "data/pricing.json")["compute"]["ec2_linux"]
    undated = [(row, region) for row in ROWS for region in row.prices.keys() - row.dates.keys()]
    assert len(undated) > 500
    for row, region in undated:
        own = pytest.approx(listed[row.machine][region], rel=1e-5)
        assert row.prices[region] == own, (row.machine, region)


def test_no_price_is_above_what_was_listed() -> None:
    """libcloud has the price of shared tenancy or, 6 to 10 % above, that of dedicated tenancy."""
    listed = packaged("libcloud", "data/pricing.json")["compute"]["ec2_linux"]
    compared = 0
    for row in ROWS:
        for region, price in row.prices.items():
            known = (listed.get(row.machine) or {}).get(region)
            if known:
                compared += 1
                assert price <= known * 1.003, (row.machine, region, price, known)
                cut = row.machine.startswith(("p4", "p5"))
                assert cut or price >= known * 0.85, (row.machine, region, price, known)
    assert compared > 1000


def test_the_desk_has_a_price_in_every_large_region() -> None:
    (desk,) = table.packaged("aws").by_name["t3.medium"]
    for region in ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1"):
        assert region in desk.prices
        assert desk.dates[region].year >= 2025
    assert desk.prices["ap-south-1"] == 0.0448
