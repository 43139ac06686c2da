"""Whatever goes wrong with any one call of `up` and of `down`: done as if it had not, or told,
and never a second VM or anything left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import CloudtrainError
from cloudtrain.model import Identity, Plan
from tests.aws_parts import plan_of, provider_of, silent, stand_in
from tests.fakes import make_identity
from tests.standins.cloud import Cloud

PASSING: list[dict[str, Any]] = [
    {"kind": "answer", "status": 429},
    {"kind": "answer", "status": 500},
    {"kind": "answer", "status": 503},
    {"kind": "answer", "status": 503, "after": True},
    {"kind": "reset"},
    {"kind": "reset", "after": True},
]
LASTING: list[dict[str, Any]] = [
    {"kind": "answer", "status": 403, "code": "UnauthorizedOperation"},
    {"kind": "answer", "status": 400, "code": "InvalidParameterValue"},
    {"kind": "answer", "status": 500, "code": "InsufficientInstanceCapacity"},
    {"kind": "answer", "status": 400, "code": "VcpuLimitExceeded"},
]


@pytest.fixture(scope="module")
def one_cloud() -> Iterator[Cloud]:
    with stand_in() as aws:
        yield aws


@pytest.fixture
def aws(one_cloud: Cloud) -> Cloud:
    return one_cloud


def emptied(aws: Cloud) -> None:
    aws.app.__init__()
    aws.app.delay = 0.0
    aws.app.regions = ["us-east-1"]  # a third of the calls
    aws.no_more_faults()
    aws.forget_calls()


def up(plan: Plan, identity: Identity) -> None:
    provider_of(plan).create(plan, identity, silent)


def down(plan: Plan) -> None:
    provider_of(plan).destroy(plan.config.name, silent)


def vms(aws: Cloud) -> list[str]:
    return sorted(line.split()[1] for line in aws.holdings() if line.startswith("instance "))


ALL = ["mnist-chief0", "mnist-worker0", "mnist-worker1"]


def named(fault: dict[str, Any]) -> str:
    return " ".join(str(value) for value in fault.values())


@pytest.mark.parametrize("fault", PASSING, ids=named)
def test_what_passes_does_no_harm_at_any_call(
    aws: Cloud, tmp_path: Path, fault: dict[str, Any]
) -> None:
    plan = plan_of(aws, placement=("us-east-1a",))
    identity = make_identity(tmp_path, plan)
    emptied(aws)
    up(plan, identity)
    ups = len(aws.calls())
    down(plan)
    everything = len(aws.calls())
    for number in range(1, everything + 1):
        emptied(aws)
        aws.fault(**fault, number=number)
        up(plan, identity)
        assert vms(aws) == ALL, number
        down(plan)
        assert aws.holdings() == [], number
    assert ups > 15
    assert everything > ups + 10


@pytest.mark.parametrize("fault", LASTING, ids=named)
def test_what_does_not_pass_leaves_nothing_at_any_call_of_up(
    aws: Cloud, tmp_path: Path, fault: dict[str, Any]
) -> None:
    """One call is refused, for good; the next `down` finds whatever `up` could not give back."""
    plan = plan_of(aws, placement=("us-east-1a", "us-east-1b"))
    identity = make_identity(tmp_path, plan)
    emptied(aws)
    up(plan, identity)
    ups = len(aws.calls())
    outcomes = set()
    for number in range(1, ups + 1):
        emptied(aws)
        aws.fault(**fault, number=number)
        try:
            up(plan, identity)
            assert vms(aws) == ALL, number
            outcomes.add("done")
        except CloudtrainError:
            assert vms(aws) == [], number
            outcomes.add("told")
        down(plan)
        assert aws.holdings() == [], number
    assert "told" in outcomes
