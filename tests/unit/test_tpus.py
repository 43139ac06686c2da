"""TPUs: their types, what a config says of them, what they cost, what their tasks are given."""

from __future__ import annotations

from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from cloudtrain import catalog
from cloudtrain.catalog import tpus
from cloudtrain.cluster.plan import make_plan, plan_notes
from cloudtrain.config import load
from cloudtrain.core.cloud import TpuFamily, cloud_of, clouds
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.money import estimate
from cloudtrain.playbooks import tensorflow, tensorflow_releases

FILE = """\
provider: {provider}
placement: [{place}]
strategy: {strategy}
nodes: {{{nodes}}}
{more}
"""


def written(
    folder: Path,
    nodes: str = "worker: {machine: v5litepod-16}",
    *,
    provider: str = "gcp",
    place: str = "us-central1",
    strategy: str = "tpu",
    more: str = "",
) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(
        FILE.format(provider=provider, place=place, strategy=strategy, nodes=nodes, more=more)
    )
    return load(path, {})


@pytest.mark.parametrize(
    ("name", "chips", "hosts"),
    [
        ("v2-8", 4, 1),
        ("v3-32", 16, 4),
        ("v4-8", 4, 1),
        ("v4-64", 32, 8),
        ("v5litepod-1", 1, 1),
        ("v5litepod-8", 8, 1),
        ("v5litepod-16", 16, 4),
        ("v5p-8", 4, 1),
        ("v5p-16", 8, 2),
        ("v6e-8", 8, 1),
        ("v6e-256", 256, 64),
    ],
)
def test_a_type_has_its_chips_and_hosts(name: str, chips: int, hosts: int) -> None:
    """Of Google's pages on each generation."""
    kind = tpus.tpu_type("gcp", name)
    assert kind is not None
    assert (kind.chips, kind.hosts) == (chips, hosts)
    assert not catalog.is_unknown_machine("gcp", name)


@pytest.mark.parametrize(
    "name", ["v4-7", "v4-0", "v5litepod-18", "v9-8", "v6e-512", "n1-standard-8"]
)
def test_what_no_slice_has_is_no_type(name: str) -> None:
    assert tpus.tpu_type("gcp", name) is None
    assert tpus.tpu_type("aws", "v4-8") is None
    assert tpus.tpu_type("local", "v4-8") is None


def test_every_field_of_a_family_is_said_with_its_source() -> None:
    for cloud in clouds():
        assert bool(cloud.tpu_end) == bool(cloud.tpus)
        for family in cloud.tpus:
            assert family.source.startswith("https://")
            assert date(2026, 1, 1) < family.read <= date.today()
            assert date(2024, 1, 1) < family.priced <= family.read
            assert family.cores_per_chip in (1, 2)
            assert family.most % family.per_host == 0
            assert family.one_host >= family.per_host
            assert family.runtime
            for zone in family.zones:
                assert cloud.region_of(zone) != zone
            for price, spot in family.prices.values():
                assert 0 < (spot or price) <= price
    assert {field.name for field in fields(TpuFamily)} >= {"prefix", "prices"}


def test_a_slice_is_a_node_for_each_host(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path))
    assert [node.name for node in plan.nodes] == [f"c-worker{index}" for index in range(4)]
    assert {node.machine for node in plan.nodes} == {"v5litepod-16"}


def test_it_costs_its_chips(tmp_path: Path) -> None:
    bill = estimate.estimate(make_plan(written(tmp_path)))
    assert bill is not None
    assert bill.machines == pytest.approx(16 * 1.2)
    assert bill.date == date(2025, 1, 17), "so that `plan` says how old they are"
    spot = "worker: {machine: v5litepod-16, spot: true}"
    bill = estimate.estimate(make_plan(written(tmp_path, spot)))
    assert bill is not None
    assert (bill.machines, bill.most) == (pytest.approx(16 * 0.6), bill.per_hour)


def test_an_unknown_price_is_said_to_be_unknown(tmp_path: Path) -> None:
    bill = estimate.estimate(make_plan(written(tmp_path, "worker: {machine: v6e-8}")))
    assert bill is not None
    assert (bill.per_hour, bill.unknown) == (None, ("v6e-8 in us-central1",))


def test_plan_says_that_it_does_not_end_by_itself_and_where_it_is_not_known(
    tmp_path: Path,
) -> None:
    notes = " ".join(plan_notes(make_plan(written(tmp_path, place="us-east4-a"))))
    assert "one TPU on demand with 16 chips on 4 hosts" in notes
    assert "it does not end by itself" in notes
    assert "us-east4-a is not known to have v5litepod" in notes
    notes = " ".join(plan_notes(make_plan(written(tmp_path, place="us-central1"))))
    assert "not known to have" not in notes


@pytest.mark.parametrize(
    ("nodes", "more", "words"),
    [
        ("worker: {}", "", "nodes.worker.machine: is missing: name the TPU type: v2-N"),
        ("worker: {machine: n1-standard-8}", "", "n1-standard-8 is no TPU type of gcp"),
        ("worker: {machine: v5litepod-16, count: 2}", "", "v5litepod-16 has 4 hosts: leave"),
        ("worker: {machine: v2-8, accelerator: T4}", "", "worker.accelerator: is not for TPUs"),
        ("worker: {machine: v2-8, disk_gb: 200}", "", "worker.disk_gb: is not for TPUs"),
        ("worker: {machine: v5p-2048}", "", "has 256 hosts; cloudtrain creates slices of at most"),
        ("chief: {machine: v2-8}", "", "the hosts of a TPU are `worker`"),
        ("worker: {machine: v2-8}", "image: ubuntu-22.04", "image: is not for TPUs"),
    ],
)
def test_what_is_no_tpu_is_refused(tmp_path: Path, nodes: str, more: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, nodes, more=more)
    assert words in str(caught.value)


@pytest.mark.parametrize(("provider", "title"), [("aws", "AWS"), ("azure", "Azure")])
def test_a_cloud_without_tpus_is_refused(tmp_path: Path, provider: str, title: str) -> None:
    with pytest.raises(ConfigError, match=f"{title} has no TPUs: use provider gcp"):
        written(tmp_path, provider=provider)


def test_another_strategy_on_a_tpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="v2-8 is a TPU: it needs `strategy: tpu`"):
        written(tmp_path, "worker: {machine: v2-8}", strategy="custom")


def test_tensorflow_is_the_build_for_tpus_where_pypi_has_a_whole_one(tmp_path: Path) -> None:
    lines = tensorflow_releases.tensorflow("2.20", "tpus")
    assert lines == ("tensorflow-tpu==2.20.*",)
    good = written(tmp_path, more='setup: {tensorflow: "2.20"}')
    assert tensorflow.problems(good) == ()
    for version in ("2.18", "2.21"):
        (problem,) = tensorflow.problems(
            written(tmp_path, more=f'setup: {{tensorflow: "{version}"}}')
        )
        assert "only 2.19 and 2.20 install" in problem.text


def test_google_alone_sells_them() -> None:
    google = cloud_of("gcp")
    assert google is not None
    assert {family.prefix for family in google.tpus} >= {"v5litepod", "v5p", "v6e"}
