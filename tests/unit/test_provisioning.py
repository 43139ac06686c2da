"""`nodes.ROLE.provisioning` in a file, in a record, and as older versions wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.drift import drift_by_record
from cloudtrain.cluster.plan import make_plan, plan_errors, plan_notes
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core import cloud as cloud_facts
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ON_DEMAND, SPOT, ClusterConfig, Market, Provisioning
from cloudtrain.money.estimate import estimate
from cloudtrain.providers.aws import facts as aws

FILE = """
provider: aws
placement: [us-east-1]
strategy: custom
nodes:
  worker:
    machine: g4dn.xlarge
    %s
"""
ALL: tuple[Market, ...] = ("on-demand", "spot", "flex-start", "reservation", "capacity-block")


@pytest.fixture(autouse=True)
def a_cloud_with_all_markets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "FACTS", replace(aws.FACTS, markets=ALL))


def read(folder: Path, line: str) -> ClusterConfig:
    path = folder / "deep.yaml"
    path.write_text(FILE % line)
    return load(path, {})


def problems(folder: Path, line: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, line)
    return [f"{each.line} {each.field}: {each.text}" for each in caught.value.problems]


@pytest.mark.parametrize(
    ("line", "bought", "words"),
    [
        ("disk_gb: 60", ON_DEMAND, "on demand"),
        ("provisioning: on-demand", ON_DEMAND, "on demand"),
        ("spot: false", ON_DEMAND, "on demand"),
        ("spot: true", SPOT, "spot"),
        ("provisioning: spot", SPOT, "spot"),
        ("provisioning: flex-start", Provisioning(market="flex-start"), "flex-start"),
        (
            "provisioning: {reservation: cr-0123456789abcdef0}",
            Provisioning(market="reservation", name="cr-0123456789abcdef0"),
            "reservation cr-0123456789abcdef0",
        ),
        (
            "provisioning: {capacity_block: cr-0123456789abcdef0}",
            Provisioning(market="capacity-block", name="cr-0123456789abcdef0"),
            "capacity block cr-0123456789abcdef0",
        ),
    ],
)
def test_a_role_says_how_its_machines_are_bought(
    tmp_path: Path, line: str, bought: Provisioning, words: str
) -> None:
    config = read(tmp_path, line)
    assert config.nodes["worker"].provisioning == bought
    (node,) = make_plan(config).nodes
    assert (node.provisioning, node.spot, str(node.provisioning)) == (bought, bought == SPOT, words)
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("provisioning: flexstart", "did you mean 'flex-start'?"),
        ("provisioning: reservation", "must have a name: {reservation: NAME}, not 'reservation'"),
        ("provisioning: {reserved: x}", "must be one of on-demand, spot, flex-start, {reservation"),
        ("provisioning: {reservation: }", "is empty"),
        ("provisioning: {reservation: mine}", "'mine' is not the id of a Capacity Reservation"),
        ("provisioning: {capacity_block: arn:aws:x}", "is not the id of a Capacity Block's"),
        ("provisioning: [spot]", "must be a single value"),
    ],
)
def test_other_values_are_refused_with_their_line(tmp_path: Path, line: str, text: str) -> None:
    (problem,) = problems(tmp_path, line)
    assert problem.startswith("8 nodes.worker.provisioning: ")
    assert text in problem


def test_the_short_form_and_the_long_one_conflict(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "spot: true\n    provisioning: on-demand")
    assert problem.startswith("9 nodes.worker.provisioning: conflicts with `spot`")


def test_a_market_that_the_cloud_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "FACTS", replace(aws.FACTS, markets=cloud_facts.EVERYWHERE))
    (problem,) = problems(tmp_path, "provisioning: flex-start")
    assert "flex-start is not known on Amazon" in problem or "flex-start is not known on" in problem
    assert problem.endswith("on-demand, spot")


@pytest.mark.parametrize(("written", "bought"), [(True, SPOT), (False, ON_DEMAND)])
def test_a_record_of_an_earlier_version_is_read(
    tmp_path: Path, written: bool, bought: Provisioning
) -> None:
    config = read(tmp_path, f"spot: {str(written).lower()}")
    record: dict[str, Any] = to_json(config)
    del record["nodes"]["worker"]["provisioning"]
    record["nodes"]["worker"]["spot"] = written
    assert from_json(record) == config

    plan = make_plan(config)
    same = {"worker0": {"machine": "g4dn.xlarge", "spot": written}}
    same = {f"{config.name}-{name}": facts for name, facts in same.items()}
    assert not drift_by_record(plan, same).changes
    other = {name: {**facts, "spot": not written} for name, facts in same.items()}
    (change,) = drift_by_record(plan, other).changes
    assert (change.field, change.wanted) == ("nodes.worker.provisioning", str(bought))


GOOGLE = """
provider: gcp
project: p
placement: [us-central1-a]
strategy: custom
limits: {max_lifetime: %s}
nodes:
  worker: {%s}
"""
FLEX, TAKEN = "provisioning: flex-start", "provisioning: {reservation: mine}"


def google(folder: Path, line: str, lifetime: str = "12h") -> ClusterConfig:
    path = folder / "deep.yaml"
    path.write_text(GOOGLE % (lifetime, line))
    return load(path, {})


def refused(folder: Path, line: str, lifetime: str = "12h") -> str:
    with pytest.raises(ConfigError) as caught:
        google(folder, line, lifetime)
    (problem,) = caught.value.problems
    return f"{problem.line} {problem.field}: {problem.text}"


@pytest.mark.parametrize("lifetime", ["5m", "8d", "off"])
def test_flex_start_has_a_lifetime_that_google_sells(tmp_path: Path, lifetime: str) -> None:
    assert refused(tmp_path, f"machine: a2-highgpu-1g, {FLEX}", lifetime).startswith(
        "6 limits.max_lifetime: must be between 10m and 7d: Google sells machines by flex-start"
    )
    assert google(tmp_path, f"machine: a2-highgpu-1g, {FLEX}", "7d")
    assert google(tmp_path, f"machine: a2-highgpu-1g, {TAKEN}", "8d")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"machine: a3-highgpu-1g, {FLEX}", None),
        (f"machine: a3-ultragpu-8g, {TAKEN}", None),
        (f"machine: e2-standard-4, {TAKEN}", None),
        (f"machine: a9-highgpu-8g, accelerator: 'H100:8', {FLEX}", None),
        (
            f"machine: a3-highgpu-1g, {TAKEN}",
            "Google does not sell a3-highgpu-1g by reservation: only spot or flex-start; set "
            "`spot: true` or `provisioning: flex-start`",
        ),
        (
            f"machine: n1-standard-8, accelerator: 'T4:1', {FLEX}",
            "Google does not sell n1-standard-8 by flex-start: only on-demand, spot or reservation",
        ),
    ],
)
def test_a_plan_has_what_google_sells_in_that_way(
    tmp_path: Path, line: str, text: str | None
) -> None:
    errors = plan_errors(make_plan(google(tmp_path, line)))
    assert not errors if text is None else text in errors[0]


def test_a_tpu_is_on_demand_or_spot(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text((GOOGLE % ("12h", f"machine: v5litepod-8, {FLEX}")).replace("custom", "tpu"))
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert "flex-start is not for TPUs: use on-demand or spot" in str(caught.value)


def test_what_has_no_price_of_its_own_costs_at_most_what_it_does_on_demand(tmp_path: Path) -> None:
    plan = make_plan(google(tmp_path, f"machine: a3-highgpu-8g, {FLEX}"))
    found = estimate(plan)
    assert found is not None
    (price,) = found.nodes.values()
    assert (price.machine, price.ceiling) == (None, 88.49)
    assert found.unknown == ("flex-start a3-highgpu-8g in us-central1",)


def test_a_plan_says_that_a_reservation_is_billed_anyway(tmp_path: Path) -> None:
    plan = make_plan(google(tmp_path, f"machine: a3-highgpu-8g, {TAKEN}"))
    assert (
        "reservation mine: the cloud bills it with or without nodes, until it is deleted or ends; "
        "`down` does not delete it"
    ) in plan_notes(plan)
