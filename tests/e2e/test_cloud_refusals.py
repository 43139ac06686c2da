"""Each cloud's refusals: no capacity and no quota lead to the next placement, nothing else does.

The codes are those of the clouds' own documentation: `providers/_*/faults.py` has them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.standins.cloud import Cloud
from tests.standins.faults import EVER
from tests.support.cloud_rig import CLOUDS, MACHINES, Rig, on_each_cloud
from tests.support.lanes import Cases

pytestmark = [on_each_cloud(), pytest.mark.parametrize("rig", MACHINES, indirect=True)]
Arm = Callable[[Cloud], None]


def answers(action: str, status: int, code: str, message: str = "refused") -> Arm:
    """Every call of this action is refused so."""

    def arm(cloud: Cloud) -> None:
        cloud.fault("answer", action=action, status=status, code=code, message=message, times=EVER)

    return arm


def turns(**attributes: Any) -> Arm:
    """Attributes of the stand-in."""
    return lambda cloud: cloud.set(**attributes)


def fails(code: str, message: str, action: str = "instances.insert", times: int = 2) -> Arm:
    """The first two insertions of Google's are accepted, and their operations fail."""

    def arm(cloud: Cloud) -> None:
        cloud.tell("fail", action=action, code=code, message=message, times=times)

    return arm


def tpu_fails(code: str, message: str, times: int = 1) -> Arm:
    """The first creation of a TPU is accepted, and its operation fails with a google.rpc.Code."""
    return fails(code, message, "tpu.nodes.create", times=times)


QUOTA_TEXT = "Quota 'CPUS' exceeded.  Limit: 8.0 in region us-east4."
NEXT_TPU: dict[str, Arm] = {
    "capacity": turns(capacity={"us-central1-a": 0}),
    "RESOURCE_EXHAUSTED": tpu_fails("8", "Insufficient capacity."),
    "quota": turns(quotas={"us-central1/v5p": 0}),
}
ENDS_TPU: dict[str, tuple[str, Arm]] = {
    "UNAUTHENTICATED": ("CredentialsError", answers("tpu.nodes.create", 401, "authError")),
    "PERMISSION_DENIED": ("PermissionsError", answers("tpu.nodes.create", 403, "forbidden")),
    "INVALID_ARGUMENT": ("CloudConfigError", answers("tpu.nodes.create", 400, "badRequest")),
    "NOT_FOUND": ("CloudConfigError", answers("tpu.nodes.create", 404, "notFound")),
    "FAILED_PRECONDITION": (
        "CloudConfigError",
        tpu_fails("9", "the network is not ready", times=2),
    ),
}
NEXT: dict[str, dict[str, Arm]] = {
    "tpu": NEXT_TPU,
    "one-host-tpu": NEXT_TPU,
    "aws": {
        code: answers("RunInstances us-east-1", status, code)
        for code, status in {
            "InsufficientInstanceCapacity": 500,
            "InsufficientHostCapacity": 500,
            "Unsupported": 400,
            "VcpuLimitExceeded": 400,
            "InstanceLimitExceeded": 400,
            "MaxSpotInstanceCountExceeded": 400,
            "VolumeLimitExceeded": 400,
        }.items()
    },
    "gcp": {
        **{
            code: turns(capacity={"us-east4-c": 1}, capacity_code=code)
            for code in (
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
                "insufficientCapacity",
            )
        },
        "quotaExceeded": turns(quotas={"us-east4/CPUS": 8.0}, refused_at_once=True),
        "QUOTA_EXCEEDED": turns(quotas={"us-east4/CPUS": 8.0}),
        "QUOTA_EXCEEDED for all": fails("QUOTA_EXCEEDED", QUOTA_TEXT),
        "UNSUPPORTED_OPERATION": fails(
            "UNSUPPORTED_OPERATION", "Instance 'mnist-chief0' was preempted while it was created."
        ),
        "RESOURCE_NOT_FOUND": fails(
            "RESOURCE_NOT_FOUND", "The resource 'instances/mnist-chief0' was not found"
        ),
    },
    "azure": {
        **{
            code: turns(capacity={"eastus*": 1}, capacity_code=code)
            for code in (
                "SkuNotAvailable",
                "AllocationFailed",
                "ZonalAllocationFailed",
                "OverconstrainedAllocationRequest",
                "OverconstrainedZonalAllocationRequest",
            )
        },
        "cores": turns(quotas={"eastus/cores": 4}),
        "NotAvailableForSubscription": turns(restricted=["eastus/*"]),
    },
}
ENDS: dict[str, dict[str, tuple[str, Arm]]] = {
    "tpu": ENDS_TPU,
    "one-host-tpu": ENDS_TPU,
    "aws": {
        code: (error, answers("RunInstances *", status, code))
        for code, (status, error) in {
            "AuthFailure": (401, "CredentialsError"),
            "UnauthorizedOperation": (403, "PermissionsError"),
            "OptInRequired": (401, "PermissionsError"),
            "PendingVerification": (400, "PermissionsError"),
            "InvalidAMIID.NotFound": (400, "CloudConfigError"),
            "InvalidParameterValue": (400, "CloudConfigError"),
        }.items()
    },
    "gcp": {
        "UNSUPPORTED_OPERATION": (
            "CloudConfigError",
            fails("UNSUPPORTED_OPERATION", "pd-balanced is not supported.", times=4),
        ),
        "authError": ("CredentialsError", answers("instances.insert", 401, "authError")),
        "forbidden": (
            "PermissionsError",
            answers(
                "instances.insert",
                403,
                "forbidden",
                "Required 'compute.instances.create' permission for 'projects/test-project'",
            ),
        ),
        "invalid": ("CloudConfigError", answers("instances.insert", 400, "invalid")),
        "IAM_PERMISSION_DENIED": (
            "PermissionsError",
            fails("IAM_PERMISSION_DENIED", "IAM authority does not have the permission"),
        ),
        "GPUS_ALL_REGIONS": (
            "QuotaError",
            fails("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
        ),
    },
    "azure": {
        code: (error, answers("PUT virtualMachines *", status, code))
        for code, (status, error) in {
            "AuthenticationFailed": (401, "CredentialsError"),
            "AuthorizationFailed": (403, "PermissionsError"),
            "ReadOnlyDisabledSubscription": (409, "PermissionsError"),
            "InvalidParameter": (400, "CloudConfigError"),
        }.items()
    },
}
"""Code → the class of the error that `create` ends with."""
OTHER = {
    "aws": "us-west-2a",
    "gcp": "us-central1-a",
    "azure": "westeurope",
    "tpu": "europe-west4-b",
    "one-host-tpu": "europe-west4-b",
}


def begin(rig: Rig, arm: Arm) -> None:
    """Two placements, in two regions."""
    rig.begin_anew(placement=places(rig))
    if rig.name == "aws":
        rig.cloud.set(regions=["us-east-1", "us-west-2"])
    arm(rig.cloud)


def places(rig: Rig) -> tuple[str, str]:
    first: str = rig.shape.get("placement", rig.cloud.placement)[0]
    return first, OTHER[rig.name]


def refusals(rig: Rig) -> list[str]:
    """Placements, as the journal has them."""
    events = [json.loads(line) for line in rig.journal.read_text().splitlines()]
    return [event["placement"] for event in events if event["event"] == "refused"]


def test_without_capacity_or_quota_the_next_placement_is_taken(rig: Rig, cases: Cases) -> None:
    for code in cases.of(NEXT[rig.name], 2):
        arm = NEXT[rig.name][code]
        begin(rig, arm)
        made = rig.run("create").nodes
        assert refusals(rig), code
        first = refusals(rig)[0].removesuffix("-1")
        assert [node.name for node in made] == rig.instances() == rig.names(), code
        assert all(node.placement.startswith(OTHER[rig.name]) for node in made), code
        held = [line for line in rig.held() if f" {first}" in f"{line} "]
        assert held == [], code
        rig.cloud.no_more_faults()
        assert not rig.run("destroy").error
        assert rig.held() == [], code


def test_any_other_refusal_is_tried_as_far_as_it_reaches_and_leaves_nothing(
    rig: Rig, cases: Cases
) -> None:
    """What is wrong with a request may be right in another place; an account is the same in all."""
    for code in cases.of(ENDS[rig.name], 2):
        error, arm = ENDS[rig.name][code]
        begin(rig, arm)
        outcome = rig.run("create")
        assert outcome.kinds == {error}, (code, outcome)
        assert outcome.error == error or rig.name in CLOUDS, "one request, and so one refusal"
        assert len(refusals(rig)) == (2 if error == "CloudConfigError" else 1), (code, outcome)
        assert rig.held() == [], code


def test_nowhere_any_capacity_is_told_with_every_placement(rig: Rig) -> None:
    everywhere = turns(capacity={"*": 0})
    if rig.name == "aws":
        everywhere = answers("RunInstances *", 500, "InsufficientInstanceCapacity", "none here")
    begin(rig, everywhere)
    outcome = rig.run("create")
    assert outcome.error == "CapacityError", outcome
    for place in places(rig):
        assert place in outcome.message
    assert rig.held() == []
