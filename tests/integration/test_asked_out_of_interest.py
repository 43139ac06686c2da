"""Questions whose answers decide nothing: whatever a cloud says to one, the command goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.cluster.ownership import current_owner
from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.model import SPOT, NodeGroup
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base import provider
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import CALLS, POLLS, Timing
from tests.integration.test_ends_contract import CALLER, DRIVERS, standing_in
from tests.standins.cloud import Cloud
from tests.support.fakes import no_journal

ASKED = {
    "aws": (
        "GetCallerIdentity *",
        "GetAccountPlanState *",
        "GetServiceQuota *",
        "DescribeSpotPriceHistory *",
        "GetSpotPlacementScores *",
        "GetRole *",
    ),
    "gcp": ("regions.get", "advice.capacity"),
    "azure": (
        "LIST permissions",
        "LIST usages",
        "GET features *",
        "POST deployments/validate *",
        "POST resources",
    ),
}
"""Identity, account plan, quota, prices, advice, the role that ends nodes, rights, features,
policies, evictions."""
ANSWERS: dict[str, dict[str, Any]] = {
    "403": {"kind": "answer", "status": 403},
    "500": {"kind": "answer", "status": 500},
    "no answer": {"kind": "silence", "seconds": 0.02},
    "a text": {"kind": "answer", "status": 200, "body": '"maintenance"'},
    "another object": {"kind": "answer", "status": 200, "body": '{"value": [1], "data": 2}'},
}
FAST = Timing(
    calls=replace(CALLS, pause=0.001, longest=0.002, tries=2),
    polls=replace(POLLS, pause=0.002, longest=0.01),
    boot=5.0,
    listing=0.2,
)
PLACES = {"aws": "us-east-1", "gcp": "us-central1", "azure": "eastus"}
MACHINES = {"aws": "g4dn.xlarge", "gcp": "g2-standard-8", "azure": "Standard_NC4as_T4_v3"}


@pytest.mark.sweep(1, per="name")
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_out_of_interest_fails_nothing(name: str, answer: str) -> None:
    with standing_in(name) as cloud:
        for action in ASKED[name]:
            cloud.no_more_faults()
            cloud.forget_calls()
            cloud.fault(action=action, times=1000, **ANSWERS[answer])
            assert [each for each in asked_all(cloud) if not each.ok] == [], action
            assert [call for call in cloud.calls() if call["fault"]], f"{action} is never asked"


def asked_all(cloud: Cloud) -> tuple[Finding, ...]:
    """What `check` and `up` ask before they create spot nodes."""
    group = NodeGroup(machine=MACHINES[cloud.name], disk_gb=100, provisioning=SPOT)
    nodes = {"chief": group, "worker": replace(group, count=2)}
    plan = make_plan(cloud.config(placement=(PLACES[cloud.name],), nodes=nodes))
    driver = DRIVERS[cloud.name](plan.config, FAST)
    found: tuple[Finding, ...] = driver.check(plan)
    assert provider.by_evidence(driver, plan, driver.places(plan), no_journal)
    assert current_owner(CloudProvider(driver, caller=lambda: CALLER, timing=FAST)).id
    return found
