"""Machines and prices: the packaged tables, what is refused, what a refresh changes."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import gpuhunt
import pytest

from cloudtrain import catalog
from cloudtrain.catalog import availability, table
from cloudtrain.catalog.bandwidth import Bandwidth, bandwidth
from cloudtrain.catalog.refresh import refresh, rows_of, save
from cloudtrain.cli.plan import as_document
from cloudtrain.cli.plan import text as plan_text
from cloudtrain.cluster.plan import make_plan, plan_errors, plan_notes
from cloudtrain.commands.plan import plan_report
from cloudtrain.core.cloud import Cloud, clouds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.model import (
    ON_DEMAND,
    SPOT,
    Accelerator,
    ClusterConfig,
    NodeGroup,
    NodePlan,
    Plan,
)
from cloudtrain.money.estimate import estimate
from tests.support.gpuhunt_catalog import T4, item, publish
from tools import catalog as written

FOLDER = Path(written.__file__).parents[1] / "providers"

PACKAGED = date(2025, 3, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


CLOUDS = [cloud.name for cloud in clouds()]


def gpus(text: str) -> Accelerator:
    kind, _, count = text.partition(":")
    return Accelerator(kind=kind, count=int(count or 1))


def node(machine: str | None = None, has: str | None = None, *, spot: bool = False) -> NodePlan:
    accelerator = gpus(has) if has else None
    return NodePlan(
        name="n",
        role="worker",
        index=0,
        port=1,
        machine=machine,
        accelerator=accelerator,
        provisioning=SPOT if spot else ON_DEMAND,
    )


def planned(provider: str, *placement: str, **groups: NodeGroup) -> Plan:
    return make_plan(
        ClusterConfig(
            name="mnist", provider=provider, strategy="custom", nodes=groups, placement=placement
        )
    )


# ── the packaged tables ──────────────────────────────────────────────────────


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_row_is_a_machine_with_prices_that_can_be(cloud: str) -> None:
    rows = table.packaged(cloud).rows
    known = Counter((row.machine, row.accelerator, row.spot) for row in rows)
    twice = sorted({machine for (machine, *_), count in known.items() if count > 1})
    assert twice == [], "in tools/catalog.py twice: remove it from AWS_UNPRICED or GCP_UNPRICED"
    for row in rows:
        assert row.vcpus > 0, row
        assert row.memory_gib > 0, row
        assert all(0 < price < 200 for price in row.prices.values()), row
        on_demand = table.packaged(cloud).row(row.machine, row.accelerator, spot=False)
        assert on_demand is not None
        for region, price in row.prices.items():
            assert price <= on_demand.prices.get(region, price), f"{row.machine} spot, {region}"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_more_of_an_accelerator_never_costs_less(cloud: str) -> None:
    for row in table.packaged(cloud).rows:
        for other in table.packaged(cloud).by_name[row.machine.lower()]:
            if row.accelerator and other.accelerator and row.spot == other.spot:
                same = row.accelerator.kind == other.accelerator.kind
                if same and row.accelerator.count < other.accelerator.count:
                    for region in row.prices.keys() & other.prices.keys():
                        assert row.prices[region] < other.prices[region]


@pytest.mark.parametrize(
    ("cloud", "place", "machine", "has", "dollars"),
    [
        # as the vendors' public price pages have them
        ("aws", "us-east-1", "g4dn.xlarge", "T4", 0.526),
        ("aws", "us-west-2b", "g5.xlarge", "A10G", 1.006),
        ("aws", "eu-west-1", "g5.48xlarge", "A10G:8", 18.18),
        ("aws", "us-east-1", "p5.48xlarge", "H100:8", 55.04),
        ("aws", "eu-west-1", "g4dn.4xlarge", "T4", 1.342),
        ("aws", "us-east-1", "m5.large", None, 0.096),
        ("gcp", "us-central1", "n1-standard-4", None, 0.19),
        ("gcp", "us-central1-a", "n1-standard-8", "T4", 0.73),
        ("gcp", "us-central1", "a2-highgpu-1g", "A100", 3.6734),
        ("gcp", "us-central1", "a3-highgpu-8g", "H100:8", 88.49),
        ("gcp", "us-central1", "g2-standard-4", "L4", 0.7068),
        ("gcp", "asia-northeast1", "g2-standard-4", "L4", 0.18851 + 0.7192),
        ("gcp", "us-central1", "e2-standard-4", None, 0.134),
        ("gcp", "us-central1", "n1-highcpu-16", None, 0.5668),
        ("gcp", "us-east1-b", "n1-highcpu-4", "T4", 0.1417 + 0.35),
        ("azure", "eastus", "Standard_NC4as_T4_v3", "T4", 0.526),
        ("azure", "eastus-1", "Standard_NC24ads_A100_v4", "A100-80GB", 3.673),
        ("azure", "westeurope", "Standard_D2s_v3", None, 0.12),
    ],
)
def test_known_prices_are_right(
    cloud: str, place: str, machine: str, has: str | None, dollars: float
) -> None:
    assert catalog.price(cloud, node(machine, has), place) == pytest.approx(dollars, rel=0.005)


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
def test_twice_the_machine_costs_twice_as_much(cloud: str) -> None:
    """Within a family without GPUs; Azure rounds to 0.5 %. AWS: test_recordings.py."""
    per_gib: dict[tuple[str, bool, str], dict[str, float]] = defaultdict(dict)
    for row in table.packaged(cloud).rows:
        if row.accelerator is None:
            family = re.sub(r"-\d+$|(?<=_[DF])\d+", "", row.machine)
            for region, price in row.prices.items():
                per_gib[family, row.spot, region][row.machine] = price / row.memory_gib
    assert max(map(len, per_gib.values())) > 4
    for place, prices in per_gib.items():
        assert max(prices.values()) < 1.01 * min(prices.values()), (place, prices)


def test_the_tables_are_those_that_the_tool_writes() -> None:
    """pyproject.toml pins the two packages whose tables the tool reads: with new ones it is run."""
    for name, text in written.tables():
        assert text == (FOLDER / name).read_text("utf-8"), "run: tools/catalog.py"


def test_a_price_of_aws_has_the_day_on_which_it_was_read_and_the_later_one_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    earlier, later = {"g5.xlarge": {"us-east-1": 9.0}}, {"p5e.48xlarge": {"us-east-1": 39.8}}
    days = {**written.AWS_READ, "2099-01-01": later, "2025-01-01": earlier}
    monkeypatch.setattr(written, "AWS_READ", days)
    found = {name: prices for name, *_, prices in written.aws({})}
    assert found["p5e.48xlarge"] == {"us-east-1": (39.8, "2099-01-01")}
    assert found["g5.xlarge"]["us-east-1"] == (1.006, written.AWS_LISTED)


def test_the_tables_are_small_and_dated() -> None:
    files = [cloud.machines for cloud in clouds()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert {catalog.as_of(cloud) for cloud in CLOUDS} == {PACKAGED}


# ── machines ─────────────────────────────────────────────────────────────────


def test_a_machine_is_known_by_its_hardware() -> None:
    g5 = catalog.machine_type("aws", "g5.12xlarge")
    assert g5 is not None
    assert (g5.vcpus, g5.memory_gib, g5.accelerator) == (48, 192, gpus("A10G:4"))
    n1 = catalog.machine_type("gcp", "n1-standard-8")
    assert n1 is not None
    assert (n1.vcpus, n1.memory_gib, n1.accelerator) == (8, 30, None)
    assert {str(each) for each in n1.attachable if each.kind == "P100"} == {
        "P100:1",
        "P100:2",
        "P100:4",
    }
    assert catalog.machine_type("gcp", "n9-standard-8") is None
    assert catalog.machine_type("local", "n1-standard-8") is None
    dsv3 = catalog.machine_type("azure", "standard_d4s_V3")
    assert dsv3 is not None
    assert dsv3.name == "Standard_D4s_v3"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_is_chosen_for_an_accelerator_has_just_it_and_is_made_without_objection(
    cloud: str,
) -> None:
    for wanted in catalog.accelerators(cloud):
        chosen = catalog.cheapest(cloud, wanted)
        assert chosen is not None, f"{wanted.kind}: add a row to `GPUS` of catalog/gpus.py"
        assert chosen.accelerator == wanted
        assert catalog.unavailable_reason(cloud, node(chosen.name, str(wanted), spot=True)) is None
        assert chosen.vcpus >= 4 * (wanted.count if chosen.name.startswith("n1-") else 1)


@pytest.mark.parametrize(
    ("cloud", "wanted", "machine"),
    [
        ("gcp", "T4:1", "n1-standard-4"),
        ("gcp", "T4:4", "n1-standard-16"),
        ("gcp", "nvidia-tesla-v100:8", "n1-standard-32"),
        ("gcp", "A100-80:1", "a2-ultragpu-1g"),
        ("aws", "t4", "g4dn.xlarge"),
        ("aws", "L4", "g6.xlarge"),
        ("aws", "H200:8", "p5en.48xlarge"),
        ("azure", "T4", "Standard_NC4as_T4_v3"),
        ("azure", "nvidia-a100-80gb:4", "Standard_NC96ads_A100_v4"),
        ("azure", "H100:8", "Standard_ND96isr_H100_v5"),
    ],
)
def test_the_cheapest_machine_is_chosen(cloud: str, wanted: str, machine: str) -> None:
    chosen = catalog.cheapest(cloud, gpus(wanted))
    assert chosen is not None
    assert chosen.name == machine


def test_the_choice_follows_the_price_where_the_cluster_will_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = "# 2025-01-01 x\nmachine,vcpus,memory_gib,accelerator,count,market,here,there\n"
    text = (
        f"{head}big,8,8,T4,1,on-demand,1.0,3.0\nsmall,4,8,T4,1,on-demand,2.0,2.0\n"
        "big,8,8,T4,1,spot,0.9\nsmall,4,8,T4,1,spot,0.1,0.1\n"
    )
    monkeypatch.setattr(table, "packaged", lambda provider: table.parse_table(text))

    def chosen(*regions: str, spot: bool = False) -> str:
        found = catalog.cheapest(
            "aws", gpus("T4"), market="spot" if spot else "on-demand", regions=regions
        )
        assert found is not None
        return found.name

    assert chosen("here") == "big"
    assert chosen("there") == "small"
    assert chosen("nowhere", "here") == "big"
    assert chosen("nowhere") == "small", "no price is known: the smallest"
    assert chosen("here", spot=True) == "small"
    assert chosen("there", spot=True) == "small", "big has no spot price there: compared on demand"


@pytest.mark.parametrize(
    ("cloud", "machine", "has", "text"),
    [
        ("azure", "Standard_NC6", None, "Standard_NC6 is retired since "),
        ("azure", "Standard_NC24r_Promo", None, "use Standard_NC4as_T4_v3 (T4:1)"),
        ("azure", "Standard_NC12s_v2", "P100:2", "retired"),
        ("azure", "Standard_ND6s", None, "use Standard_NC24ads_A100_v4 (A100-80GB:1)"),
        ("azure", "Standard_NV6", None, "retired"),
        ("aws", "p2.xlarge", None, "use g4dn.xlarge (T4:1)"),
        ("aws", "g3s.xlarge", None, "retired"),
        ("gcp", None, "K80", "K80 is retired: use T4"),
        ("aws", "g5.xlarge", "T4", "g5.xlarge has A10G:1, not T4:1; g4dn.xlarge has T4:1"),
        ("aws", "g5.xlarge", "A10G:4", "has A10G:1, not A10G:4; g5.12xlarge has A10G:4"),
        ("aws", "m5.large", "T4", "m5.large has no accelerator; g4dn.xlarge has T4:1"),
        ("gcp", "e2-standard-4", "T4", "e2-standard-4 has no accelerator"),
        ("gcp", "c3-standard-4", "T4", "no accelerator can be attached to c3-standard-4"),
        (
            "gcp",
            "n1-standard-64",
            "T4",
            "T4:1 cannot be attached to n1-standard-64: it takes T4:4;",
        ),
        ("gcp", "n1-standard-8", "L4", "it takes no L4; g2-standard-4 has L4:1"),
        ("gcp", None, "T4:3", "no machine of gcp has T4:3; available: T4:1, T4:2, T4:4"),
        ("aws", None, "P100", "P100 is on gcp"),
        ("aws", None, "L40", "did you mean L40S?"),
    ],
)
def test_what_no_cloud_makes_is_told_with_what_it_makes(
    cloud: str, machine: str | None, has: str | None, text: str
) -> None:
    assert text in str(catalog.unavailable_reason(cloud, node(machine, has)))


@pytest.mark.parametrize(
    ("cloud", "machine", "has"),
    [
        ("gcp", "n1-custom-8-30720", "T4"),
        ("gcp", "n1-highmem-8", "V100"),
        ("gcp", "z9-brandnew-4", None),
        ("aws", "g4dn.metal", "T4:8"),
        ("aws", "g9.xlarge", "RTX9000"),
        ("aws", "g8.xlarge", "L4"),
        ("gcp", "a3-novelgpu-8g", "H100:8"),
        ("azure", "Standard_NC8ads_T9_v7", "T4"),
        ("local", None, "T4:3"),
        ("hosts", None, None),
    ],
)
def test_what_the_table_does_not_know_is_let_pass(
    cloud: str, machine: str | None, has: str | None
) -> None:
    assert catalog.unavailable_reason(cloud, node(machine, has)) is None


@pytest.mark.parametrize(
    ("cloud", "place", "region"),
    [
        ("gcp", "us-east4-c", "us-east4"),
        ("gcp", "us-east4", "us-east4"),
        ("gcp", "northamerica-northeast1-a", "northamerica-northeast1"),
        ("aws", "us-east-1a", "us-east-1"),
        ("aws", "us-east-1", "us-east-1"),
        ("aws", "us-gov-west-1b", "us-gov-west-1"),
        ("azure", "eastus", "eastus"),
        ("azure", "eastus2", "eastus2"),
        ("azure", "eastus2-3", "eastus2"),
        ("local", "here-a", "here-a"),
    ],
)
def test_a_zone_has_a_region(cloud: str, place: str, region: str) -> None:
    assert catalog.region_of(cloud, place) == region


# ── in a plan ────────────────────────────────────────────────────────────────


def test_a_plan_names_machine_and_accelerator_of_every_node() -> None:
    plan = planned(
        "aws",
        "us-east-1",
        chief=NodeGroup(machine="g5.xlarge"),
        worker=NodeGroup(count=2, accelerator=gpus("nvidia-tesla-t4"), provisioning=SPOT),
        ps=NodeGroup(),
    )
    assert [(n.name, n.machine, str(n.accelerator or "")) for n in plan.nodes] == [
        ("mnist-chief0", "g5.xlarge", "A10G:1"),
        ("mnist-worker0", "g4dn.xlarge", "T4:1"),
        ("mnist-worker1", "g4dn.xlarge", "T4:1"),
        ("mnist-ps0", "m6i.xlarge", ""),
    ]
    assert plan_notes(plan) == (
        "nodes.worker: no machine is set: using g4dn.xlarge, the cheapest with T4:1",
        "nodes.ps: no machine is set: using m6i.xlarge, the default",
    )


def test_nothing_is_chosen_where_nothing_is_rented() -> None:
    plan = planned("local", worker=NodeGroup(count=1, accelerator=gpus("T4:3")))
    assert plan.nodes[0].machine is None
    assert (plan_errors(plan), plan_notes(plan), estimate(plan)) == ((), (), None)


def test_misfits_are_told_once_for_each_role_and_do_not_keep_a_plan_from_being_made() -> None:
    plan = planned(
        "azure",
        chief=NodeGroup(machine="Standard_NC6"),
        worker=NodeGroup(count=3, accelerator=gpus("T4:2")),
    )
    assert [text.partition(":")[0] for text in plan_errors(plan)] == ["nodes.chief", "nodes.worker"]


def test_a_machine_that_is_going_is_remarked_on_and_refused_from_its_last_day_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned("azure", worker=NodeGroup(machine="Standard_NC6s_v3"))
    monkeypatch.setattr(availability, "today", lambda: date(2025, 9, 29))
    assert "Microsoft retires it on 2025-09-30" in plan_notes(plan)[0]
    assert plan_errors(plan) == ()
    monkeypatch.setattr(availability, "today", lambda: date(2025, 9, 30))
    assert plan_notes(plan) == ()
    assert plan_errors(plan) == (
        "nodes.worker: Standard_NC6s_v3 is retired since 2025-09-30: the cloud no longer "
        "offers it; use Standard_NC24ads_A100_v4 (A100-80GB:1)",
    )


@pytest.mark.parametrize(
    ("cloud", "machine", "has", "spot", "text"),
    [
        ("gcp", None, "H100:1", False, "Google does not sell a3-highgpu-1g on demand: only spot"),
        ("gcp", "a3-highgpu-4g", None, False, "only spot or flex-start; set `spot: true`"),
        ("gcp", None, "H200:8", False, "only spot, flex-start or reservation; set `spot: true`"),
        ("gcp", "a4-highgpu-8g", "B200:8", False, "does not sell a4-highgpu-8g on demand"),
        ("gcp", "a4x-highgpu-4g", None, True, "is an ARM machine, but cloudtrain's images are x86"),
        ("gcp", None, "H100:8", False, None),
        ("gcp", None, "H100:2", True, None),
        ("gcp", "a3-ultragpu-8g", None, True, None),
        ("aws", "g5g.xlarge", None, False, "ARM"),
        ("aws", "g6f.large", "L4", False, "a share of one L4, which needs NVIDIA's GRID driver"),
        ("aws", "g4ad.xlarge", None, False, "GPUs are AMD's"),
        ("azure", None, "A10:1", False, "cannot be used: Azure's A10 are shares of one"),
        ("azure", "Standard_NV6ads_A10_v5", None, False, "need NVIDIA's GRID driver; use"),
        ("azure", None, "V100:1", False, "Standard_NC6s_v3 is retired"),
        ("azure", None, "P40", False, "P40 is retired: use A100-80GB"),
        ("azure", "Standard_NV12s_v3", None, False, "is retired since 2026-09-30"),
        ("azure", "Standard_ND40rs_v2", None, False, "is retired since 2025-09-30"),
        ("azure", "Standard_NC24rs_v3", None, False, "is retired since 2025-03-31"),
        ("azure", "Standard_ND128isr_NDR_GB200_v6", None, False, "ARM"),
        ("aws", None, "V100", False, "V100 is retired"),
        ("aws", "p3.2xlarge", None, False, "p3.2xlarge is retired"),
        ("gcp", None, "V100", False, None),
        ("aws", "g7e.12xlarge", "RTX PRO Server 6000:2", False, None),
        ("aws", "p6-b300.48xlarge", "B300:8", False, None),
        ("gcp", "g4-standard-96", "nvidia-rtx-pro-6000:2", False, None),
        ("gcp", "a3-megagpu-8g", "nvidia-h100-mega-80gb:8", False, None),
        ("aws", "g7e.12xlarge", "RTXPRO6000:1", False, "has RTXPRO6000:2, not RTXPRO6000:1"),
    ],
)
def test_what_is_sold_otherwise_or_no_more_is_refused_with_the_way_out(
    cloud: str, machine: str | None, has: str | None, spot: bool, text: str | None
) -> None:
    wanted = gpus(has) if has else None
    group = NodeGroup(machine=machine, accelerator=wanted, provisioning=SPOT if spot else ON_DEMAND)
    found = plan_errors(planned(cloud, worker=group))
    assert not found if text is None else text in found[0]


@pytest.mark.parametrize(
    ("cloud", "machine"),
    [
        ("aws", "g9e.2xlarge"),
        ("aws", "gr9.4xlarge"),
        ("aws", "p9-b900.48xlarge"),
        ("gcp", "a3-novelgpu-8g"),
        ("gcp", "a5-highgpu-4g"),
        ("gcp", "g5-standard-48"),
        ("azure", "Standard_NC64ads_RTX9_v9"),
        ("azure", "standard_nd96_x_v9"),
    ],
)
def test_an_unknown_machine_that_is_named_like_those_with_gpus_is_no_cpu_node(
    cloud: str, machine: str
) -> None:
    (found,) = plan_errors(planned(cloud, worker=NodeGroup(machine=machine)))
    assert "add `accelerator: KIND:COUNT`" in found
    assert not plan_errors(
        planned(cloud, worker=NodeGroup(machine=machine, accelerator=gpus("T4")))
    )


def test_an_image_of_ones_own_may_have_the_driver_that_the_cloud_s_lack() -> None:
    group = NodeGroup(machine="Standard_NV36ads_A10_v5")
    plan = planned("azure", worker=group)
    assert plan_errors(plan)
    assert not plan_errors(
        replace(plan, config=replace(plan.config, image="my-gallery/grid/1.0.0"))
    )


def test_a_bill_is_that_of_the_dearest_placement() -> None:
    worker = NodeGroup(count=2, machine="n1-standard-8", accelerator=gpus("T4"))
    cheap = estimate(planned("gcp", "us-central1-a", worker=worker))
    dear = estimate(planned("gcp", "us-central1-a", "southamerica-east1", worker=worker))
    assert cheap is not None
    assert dear is not None
    assert cheap.machines == pytest.approx(2 * 0.73)
    assert cheap.disks == pytest.approx(2 * 100 * 0.10 / 730)
    assert cheap.addresses == pytest.approx(2 * 0.005)
    assert cheap.per_hour == pytest.approx(cheap.machines + cheap.disks + cheap.addresses)
    assert (dear.place, dear.date) == ("southamerica-east1", PACKAGED)
    assert dear.per_hour is not None
    assert dear.per_hour > 2 * 0.73
    assert dear.disks == pytest.approx(2 * 100 * 0.15 / 730)
    assert dear.per_hour == pytest.approx(sum(node.per_hour or 0 for node in dear.nodes.values()))


def test_a_placement_without_a_known_price_makes_the_bill_unknown_never_zero() -> None:
    worker = NodeGroup(count=2, machine="n1-standard-8", accelerator=gpus("V100"))
    found = estimate(planned("gcp", "us-central1-a", "europe-west1-b", worker=worker))
    assert found is not None
    assert (found.place, found.per_hour, found.most) == ("europe-west1-b", None, None)
    assert [node.machine for node in found.nodes.values()] == [None, None]
    assert [node.per_hour for node in found.nodes.values()] == [None, None]
    assert found.unknown == ("n1-standard-8 with V100:1 in europe-west1",)


def test_a_spot_price_that_is_not_known_is_at_most_the_price_on_demand() -> None:
    found = estimate(
        planned("aws", "us-east-1", worker=NodeGroup(machine="g4dn.xlarge", provisioning=SPOT))
    )
    assert found is not None
    assert (found.per_hour, found.machines) == (None, None)
    disk = (125 * 0.08 + 375 * 0.04) / 730
    assert found.most == pytest.approx(0.526 + disk + 0.005)
    assert found.unknown == ("spot g4dn.xlarge in us-east-1",)


# ── refreshed ────────────────────────────────────────────────────────────────


A100 = {"gpu_count": 8, "gpu_name": "A100"}
ITEMS: dict[str, Sequence[gpuhunt.CatalogItem]] = {
    "aws": [
        item("g4dn.xlarge", "us-east-1", 0.4, **T4),
        item("g4dn.xlarge", "us-east-1", 0.2, spot=True, **T4),
        item("p4de.24xlarge", "us-east-1", 30.0, gpu_memory=80.0, **A100),
        item("x9.unheard-of", "us-east-1", 1.0),
        item("m5.large", "us-east-1", 0.0),
    ],
    "gcp": [
        item("n1-standard-8", "us-central1-a", 0.6, **T4),
        item("n1-standard-8", "us-central1-b", 0.7, **T4),
        item("n1-standard-8", "us-central1-a", 0.1, provider_data={"is_dws_calendar_mode": True}),
        item("a2-ultragpu-8g", "us-east4-c", 40.0, gpu_memory=80.0, **A100),
    ],
    "azure": [
        item(
            "Standard_NC40ads_H100_v5",
            "eastus",
            7.0,
            gpu_count=1,
            gpu_name="H100NVL",
            gpu_memory=94.0,
        )
    ],
}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = publish(tmp_path, ITEMS)
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", folder.as_uri())
    return folder


def test_refreshed_prices_go_before_the_packaged_ones(published: Path, cache: Path) -> None:
    files = refresh(date(2026, 11, 21))
    assert files == {cloud: cache / "prices" / f"{cloud}.csv" for cloud in CLOUDS}
    assert catalog.as_of("aws") == date(2026, 11, 20), "the day on which it was collected"
    assert catalog.price("aws", node("g4dn.xlarge", "T4"), "us-east-1") == 0.4
    assert catalog.price("aws", node("g4dn.xlarge", "T4", spot=True), "us-east-1") == 0.2
    assert catalog.price("aws", node("p4de.24xlarge", "A100-80GB:8"), "us-east-1") == 30.0
    assert catalog.price("gcp", node("n1-standard-8", "T4"), "us-central1-f") == 0.7
    assert catalog.price("gcp", node("a2-ultragpu-8g", "A100-80GB:8"), "us-east4") == 40.0
    assert catalog.price("azure", node("Standard_NC40ads_H100_v5", "H100"), "eastus") == 7.0


def test_what_is_not_in_the_refreshed_table_comes_from_the_packaged_one(published: Path) -> None:
    refresh(date(2026, 11, 21))
    assert catalog.price("aws", node("m5.large"), "us-east-1") == 0.096
    assert catalog.price("gcp", node("n1-standard-8"), "us-central1") == pytest.approx(0.38)
    groups = {"chief": NodeGroup(machine="m5.large"), "ps": NodeGroup(machine="g4dn.xlarge")}
    both = estimate(planned("aws", "us-east-1", **groups))
    assert both is not None
    assert (both.machines, both.date) == (pytest.approx(0.496), date(2026, 1, 19))


def test_a_refresh_adds_machines_with_gpus_that_the_packaged_table_lacks(cache: Path) -> None:
    pro = {"gpu_count": 2, "gpu_name": "RTXPRO6000", "gpu_memory": 96.0, "cpu": 48}
    new = [item("g9e.12xlarge", "us-east-1", 8.0, **pro), item("x9.big", "us-east-1", 1.0)]
    save("aws", date(2026, 11, 20), new)
    known = catalog.machine_type("aws", "g9e.12xlarge")
    assert known is not None
    assert (known.vcpus, known.accelerator) == (48, gpus("RTXPRO6000:2"))
    has = node("g9e.12xlarge", "RTXPRO6000:2")
    assert catalog.price("aws", has, "us-east-1") == 8.0
    assert not plan_errors(planned("aws", worker=NodeGroup(machine="g9e.12xlarge")))
    assert catalog.machine_type("aws", "x9.big") is None


def test_refreshed_prices_do_not_change_which_machine_a_cluster_gets(published: Path) -> None:
    before = catalog.cheapest("gcp", gpus("T4"))
    refresh(date(2026, 11, 21))
    assert catalog.cheapest("gcp", gpus("T4")) == before


def test_an_older_or_damaged_table_counts_for_nothing(cache: Path) -> None:
    path = save("aws", date(2024, 1, 1), ITEMS["aws"])
    assert catalog.price("aws", node("g4dn.xlarge", "T4"), "us-east-1") == 0.526
    for text in ("", "nonsense", "# 2027-01-01 x\nnot,a,table\n", "# 2027-13-01\n"):
        path.write_text(text)
        assert catalog.price("aws", node("g4dn.xlarge", "T4"), "us-east-1") == 0.526
        assert catalog.as_of("aws") == PACKAGED
    path.write_bytes(b"\xff\xfe\x00")
    assert catalog.as_of("aws") == PACKAGED


def test_a_table_is_read_as_it_was_written() -> None:
    rows = rows_of("aws", ITEMS["aws"])
    assert table.parse_table(table.format_table(PACKAGED, "x", rows)) == table.Table(
        date=PACKAGED, rows=rows
    )
    for cloud in CLOUDS:
        packaged = table.packaged(cloud)
        again = table.parse_table(table.format_table(packaged.date, "x", packaged.rows))
        assert replace(again, date=packaged.date) == packaged


@pytest.mark.parametrize("missing", ["everything", "one cloud"])
def test_offline_is_told_and_changes_nothing(
    missing: str,
    published: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if missing == "everything":
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", (published / "nowhere").as_uri())
    else:
        (published / "gcp" / "version").unlink()
    with pytest.raises(UsageError, match="cannot fetch current prices: ") as caught:
        refresh(date(2026, 11, 21))
    assert caught.value.hint == "omit --refresh-prices to use the prices on this machine"
    assert not list(cache.glob("**/*.csv"))
    assert capfd.readouterr() == ("", ""), "gpuhunt logs a traceback for each"


def test_without_gpuhunt_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(UsageError, match="gpuhunt is not installed") as caught:
        refresh(date(2026, 11, 21))
    assert caught.value.hint == install_hint("prices")


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UsageError, match=str(cache)):
        save("aws", date(2026, 11, 21), ITEMS["aws"])


# ── bandwidth ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cloud", clouds(), ids=lambda cloud: cloud.name)
def test_bandwidths_are_of_machines_in_the_table(cloud: Cloud) -> None:
    known = {machine.lower() for machine in table.packaged(cloud.name).by_name}
    with cloud.machines.with_name("bandwidth.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert {row["machine"].lower() for row in rows} <= known
    for row in rows:
        found = bandwidth(cloud.name, row["machine"], private=False)
        every = bandwidth(cloud.name, row["machine"], private=True)
        assert found is not None
        assert every is not None
        assert 1 < found.gbits <= every.gbits


def test_bandwidths_of_aws_are_those_that_ec2_describes() -> None:
    """A node with a public address has one network card."""
    assert bandwidth("aws", "p4d.24xlarge", private=False) == Bandwidth(gbits=100, up_to=False)
    assert bandwidth("aws", "p4d.24xlarge", private=True) == Bandwidth(gbits=400, up_to=False)
    assert bandwidth("aws", "G4DN.xlarge", private=True) == Bandwidth(gbits=25, up_to=True)
    assert bandwidth("aws", "z9.unknown", private=False) is None
    assert bandwidth("local", None, private=False) is None


@pytest.mark.parametrize(
    ("machines", "line"),
    [
        (("g5.xlarge", "g5.xlarge"), "  network    up to 10 Gbit/s between nodes"),
        (
            ("g5.xlarge", "g5.48xlarge"),
            "  network    g5.xlarge up to 10 Gbit/s, g5.48xlarge 100 Gbit/s between nodes",
        ),
        (("g5.xlarge",), None),
    ],
)
def test_plan_shows_the_bandwidth_between_nodes(
    machines: tuple[str, ...], line: str | None
) -> None:
    nodes = {
        role: NodeGroup(machine=machine)
        for role, machine in zip(("chief", "worker"), machines, strict=False)
    }
    config = ClusterConfig(name="m", provider="aws", strategy="multi_worker_mirrored", nodes=nodes)
    shown = plan_text(as_document(plan_report(make_plan(config))))
    assert [each for each in shown if each.startswith("  network")] == ([line] if line else [])


@pytest.mark.parametrize(
    ("provider", "machine", "said"),
    [
        ("gcp", "n1-standrd-4", "did you mean n1-standard-4?"),
        ("gcp", "p4d.24xlarge", "this is a machine of aws, not of gcp"),
        ("aws", "n1-standard-4", "this is a machine of gcp, not of aws"),
        ("gcp", "n1-standard-4", None),
        ("gcp", "n1-standard-64", None),
        ("gcp", "c9-highmem-8", None),
    ],
)
def test_a_misspelt_machine_is_noted_and_an_unknown_size_is_not(
    provider: str, machine: str, said: str | None
) -> None:
    node = NodePlan(name="m-chief0", role="chief", index=0, machine=machine, port=8900)
    found = catalog.note(provider, node)
    assert (found is None) == (said is None), found
    assert said is None or said in str(found)
