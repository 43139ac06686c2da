"""Where EC2 expects to have spot instances, and the order of zones that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.events import Event, SpotOrderChosen
from cloudtrain.core.model import SPOT, NodeGroup, Plan
from cloudtrain.core.partial_list import evidence_text
from cloudtrain.providers.aws import spot
from tests.standins.cloud import Cloud
from tests.support.aws_parts import plan_of, provider_of, stand_in
from tests.support.fakes import make_identity

PRICES = {"us-east-1a": 0.2, "us-east-1b": 0.1, "us-east-1c": 0.3, "us-east-1d": 0.2}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    def told(ec2: object, region: str, machines: list[str]) -> list[spot.SpotPrice]:
        return [
            spot.SpotPrice(dollars=dollars, machine=machine, zone=zone)
            for zone, dollars in PRICES.items()
            for machine in machines
        ]

    monkeypatch.setattr(spot, "prices", told)
    with stand_in() as aws:
        yield aws


def planned(aws: Cloud) -> Plan:
    group = NodeGroup(machine="g4dn.xlarge", disk_gb=100, provisioning=SPOT)
    nodes = {"chief": group, "worker": replace(group, count=2)}
    return plan_of(aws, placement=("us-east-1",), nodes=nodes)


def test_zones_are_tried_by_placement_score_and_then_by_price(aws: Cloud, tmp_path: Path) -> None:
    aws.app.spot_scores = {"us-east-1a": 3, "us-east-1b": 3, "us-east-1c": 9, "us-west-2a": 10}
    plan, heard = planned(aws), list[Event]()
    nodes = provider_of(plan).create(plan, make_identity(tmp_path, plan), heard.append)
    assert {node.placement for node in nodes} == {"us-east-1c"}
    (chosen,) = [each for each in heard if isinstance(each, SpotOrderChosen)]
    assert chosen.places[:4] == ("us-east-1c", "us-east-1b", "us-east-1a", "us-east-1d")
    assert chosen.text == (
        "us-east-1c 9/10, 0.9 $/hour, us-east-1b 3/10, 0.3 $/hour, us-east-1a 3/10, 0.6 $/hour "
        f"({spot.SCORES})"
    )


@pytest.mark.parametrize(
    ("code", "status"), [("UnauthorizedOperation", 403), ("InvalidAction", 400)]
)
def test_without_the_right_to_scores_the_price_counts_and_it_is_told(
    aws: Cloud, code: str, status: int
) -> None:
    fault = {"status": status, "code": code, "times": 100}
    aws.fault("answer", action="GetSpotPlacementScores *", **fault)
    plan = planned(aws)
    found = provider_of(plan).spot_evidence(plan)
    assert evidence_text(found).startswith("us-east-1b 0.3 $/hour, us-east-1a 0.6 $/hour")
    assert evidence_text(found).endswith(f"(spot price of now; no Spot placement scores: {code})")


def test_nodes_of_two_machine_types_have_the_lower_score(aws: Cloud) -> None:
    aws.app.spot_scores = {"us-east-1a": 4}
    group = NodeGroup(machine="g4dn.xlarge", provisioning=SPOT)
    nodes = {"chief": group, "worker": replace(group, machine="g5.xlarge", count=3)}
    plan = plan_of(aws, placement=("us-east-1",), nodes=nodes)
    aws.forget_calls()
    (one,) = provider_of(plan).spot_evidence(plan)
    assert one.text == "4/10, 0.8 $/hour"
    asked = [call for call in aws.calls() if call["action"].startswith("GetSpotPlacementScores")]
    assert len(asked) == 2
