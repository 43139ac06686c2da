"""What a cloud reports of its machine types wins over the packaged table."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain import catalog
from cloudtrain.catalog import reported, table
from cloudtrain.core.model import ON_DEMAND, SPOT, Accelerator, NodeGroup, NodePlan
from cloudtrain.core.protocols import MachineFacts

T4, TWO = Accelerator(kind="T4", count=1), Accelerator(kind="T4", count=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path))
    return tmp_path


def facts(
    name: str = "g4dn.xlarge",
    vcpus: int = 4,
    memory_gib: float = 16.0,
    accelerator: Accelerator | None = T4,
    arm: bool = False,
    scratch_gb: int | None = 125,
) -> MachineFacts:
    return MachineFacts(
        name=name,
        vcpus=vcpus,
        memory_gib=memory_gib,
        accelerator=accelerator,
        arm=arm,
        scratch_gb=scratch_gb,
    )


def node(machine: str, accelerator: Accelerator | None = None, spot: bool = False) -> NodePlan:
    return NodePlan(
        name="n",
        role="worker",
        index=0,
        port=8900,
        machine=machine,
        accelerator=accelerator,
        provisioning=SPOT if spot else ON_DEMAND,
    )


def test_an_answer_like_the_table_is_no_news_and_adds_the_local_disks() -> None:
    assert reported.learn("aws", [facts()]) == ()
    known = catalog.machine_type("aws", "g4dn.xlarge")
    assert known
    assert (known.accelerator, known.scratch_gb) == (T4, 125)


def test_another_answer_is_told_once_with_both_figures_and_wins() -> None:
    day = table.packaged("aws").date
    (text,) = reported.learn("aws", [facts(accelerator=TWO, vcpus=8)])
    assert text == (f"g4dn.xlarge: AWS says T4:2, 8 vCPUs; the table of {day} said T4:1, 4")
    assert reported.learn("aws", [facts(accelerator=TWO, vcpus=8)]) == ()
    group = catalog.resolve_group("aws", NodeGroup(machine="g4dn.xlarge"), ("us-east-1",))
    assert group.accelerator == TWO


def test_a_later_answer_is_compared_with_the_earlier_one() -> None:
    reported.learn("aws", [facts(accelerator=TWO)])
    told = table.read_if_valid(table.learned_path("aws"))
    assert told
    (text,) = reported.learn("aws", [facts()])
    assert text == f"g4dn.xlarge: AWS says T4:1; its answer of {told.date} said T4:2"


def test_a_machine_without_the_gpus_of_the_table_is_planned_without_and_keeps_its_price() -> None:
    before = catalog.price("aws", node("g4dn.xlarge", T4), "us-east-1a")
    assert before
    reported.learn("aws", [facts(accelerator=None)])
    group = catalog.resolve_group("aws", NodeGroup(machine="g4dn.xlarge"), ())
    assert group.accelerator is None
    assert catalog.price("aws", node("g4dn.xlarge"), "us-east-1a") == before


def test_the_cheapest_machine_with_an_accelerator_is_one_that_has_it() -> None:
    chosen = catalog.cheapest("aws", T4, regions=("us-east-1",))
    assert chosen
    assert chosen.name == "g4dn.xlarge"
    reported.learn("aws", [facts(accelerator=None)])
    other = catalog.cheapest("aws", T4, regions=("us-east-1",))
    assert other
    assert other.name == "g4dn.2xlarge"


def test_what_was_refused_by_the_table_is_allowed_by_the_cloud() -> None:
    assert catalog.unavailable_reason("aws", node("g4dn.xlarge", TWO))
    reported.learn("aws", [facts(accelerator=TWO)])
    assert catalog.unavailable_reason("aws", node("g4dn.xlarge", TWO)) is None


def test_a_kind_that_the_cloud_names_less_exactly_stays_that_of_the_table() -> None:
    eight = Accelerator(kind="A100", count=8)
    known = catalog.machine_type("aws", "p4de.24xlarge")
    assert known
    told = facts("p4de.24xlarge", vcpus=known.vcpus, memory_gib=known.memory_gib, accelerator=eight)
    assert reported.learn("aws", [told]) == ()
    after = catalog.machine_type("aws", "p4de.24xlarge")
    assert after
    assert after.accelerator == Accelerator(kind="A100-80GB", count=8)


def test_accelerators_are_still_attached_to_a_machine_that_has_none_built_in() -> None:
    told = facts("n1-standard-8", vcpus=8, memory_gib=30.0, accelerator=None, scratch_gb=0)
    assert reported.learn("gcp", [told]) == ()
    known = catalog.machine_type("gcp", "n1-standard-8")
    assert known
    assert T4 in known.attachable
    assert catalog.price("gcp", node("n1-standard-8", T4), "us-central1-a")
    assert catalog.price("gcp", node("n1-standard-8", T4), "us-central1-a") != catalog.price(
        "gcp", node("n1-standard-8"), "us-central1-a"
    )


@pytest.mark.parametrize(
    ("provider", "machine"),
    [("aws", "m7g.xlarge"), ("gcp", "t2a-standard-4"), ("azure", "Standard_D4ps_v5")],
)
def test_an_arm_machine_is_refused_offline_once_the_cloud_has_said_so(
    provider: str, machine: str
) -> None:
    assert catalog.unavailable_reason(provider, node(machine)) is None
    assert reported.learn(provider, [facts(machine, accelerator=None, arm=True)]) == ()
    reason = catalog.unavailable_reason(provider, node(machine))
    assert reason == f"{machine} is an ARM machine, but cloudtrain's images are x86-64"


def test_a_file_of_an_earlier_version_is_read_and_completed(cache: Path) -> None:
    file = table.learned_path("aws")
    file.parent.mkdir()
    file.write_text(
        "# 2026-11-20 told by aws\n"
        "machine,vcpus,memory_gib,accelerator,count,market\n"
        "g9.4xlarge,16,128,L4,1,on-demand\n"
    )
    known = catalog.machine_type("aws", "g9.4xlarge")
    assert known
    assert (known.vcpus, known.scratch_gb, known.arm) == (16, None, False)
    reported.learn("aws", [facts(arm=True)])
    rows = table.learned_machines("aws")
    assert rows
    assert [(row.machine, row.scratch_gb, row.arm) for row in rows.rows] == [
        ("g9.4xlarge", None, False),
        ("g4dn.xlarge", 125, True),
    ]


def test_the_same_answer_is_not_written_again(cache: Path) -> None:
    reported.learn("aws", [facts()])
    before = table.learned_path("aws").stat().st_mtime_ns
    reported.learn("aws", [facts()])
    assert table.learned_path("aws").stat().st_mtime_ns == before
