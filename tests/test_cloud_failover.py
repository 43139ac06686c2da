"""What a cloud has no room or quota for is asked for at the next placement; nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud_rig import CLOUDS, Rig, rigged

LAUNCH = {
    "aws": "RunInstances *",
    "gcp": "*instances.insert*",
    "azure": "PUT virtualMachines *",
}
FURTHER = {
    "aws": (("us-east-1a", "us-east-1b"), ("us-east-1a", "us-west-2a")),
    "gcp": (("us-east4-c", "us-east4-a"), ("us-east4-c", "us-central1-a")),
    "azure": (("eastus-1", "eastus-2"), ("eastus", "westeurope")),
}
"""Two zones of one region, and two regions."""
REFUSALS = {
    "aws": {
        "zone": (
            (500, "InsufficientInstanceCapacity"),
            (500, "InsufficientHostCapacity"),
            (400, "Unsupported"),
        ),
        "region": (
            (400, "VcpuLimitExceeded"),
            (400, "InstanceLimitExceeded"),
            (400, "MaxSpotInstanceCountExceeded"),
            (400, "VolumeLimitExceeded"),
        ),
    },
    "gcp": {
        "zone": ((503, "insufficientCapacity"),),
        "region": ((403, "quotaExceeded"),),
    },
    "azure": {
        "zone": ((409, "ZonalAllocationFailed"), (409, "OverconstrainedZonalAllocationRequest")),
        "region": ((409, "SkuNotAvailable"), (409, "AllocationFailed"), (409, "QuotaExceeded")),
    },
}
FINAL = {
    "aws": (
        (403, "UnauthorizedOperation", 4),
        (401, "AuthFailure", 4),
        (400, "InvalidAMIID.NotFound", 2),
    ),
    "gcp": ((403, "forbidden", 4), (400, "invalid", 2)),
    "azure": ((403, "AuthorizationFailed", 4), (400, "InvalidParameter", 2)),
}
"""With the exit code."""


@pytest.fixture(scope="module", params=CLOUDS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def begin(rig: Rig, placement: tuple[str, ...]) -> None:
    rig.begin_anew(placement=placement)
    if rig.cloud.name == "aws":
        rig.cloud.set(regions=["us-east-1", "us-west-2"])


def refuse_first(rig: Rig, status: int, code: str) -> None:
    """Both nodes of the plan, once."""
    rig.cloud.fault(
        "answer", action=LAUNCH[rig.cloud.name], times=2, status=status, code=code, message=code
    )


@pytest.mark.parametrize("scope", ["zone", "region"])
def test_no_room_and_no_quota_lead_to_the_next_placement(rig: Rig, scope: str) -> None:
    zones, regions = FURTHER[rig.cloud.name]
    placement = zones if scope == "zone" else regions
    for status, code in REFUSALS[rig.cloud.name][scope]:
        begin(rig, placement)
        refuse_first(rig, status, code)
        made = rig.run("create")
        assert all(node.placement.startswith(placement[1]) for node in made.nodes), (code, made)
        assert rig.instances() == rig.names()
        assert code in rig.journal.read_text()
        assert not rig.run("destroy").error
        assert rig.held() == []


def test_no_quota_in_a_region_passes_over_its_other_zones(rig: Rig) -> None:
    zones, regions = FURTHER[rig.cloud.name]
    status, code = REFUSALS[rig.cloud.name]["region"][-1]
    begin(rig, (*zones, regions[1]))
    refuse_first(rig, status, code)
    made = rig.run("create")
    assert all(node.placement.startswith(regions[1]) for node in made.nodes), made
    assert not rig.run("destroy").error
    assert rig.held() == []


def test_credentials_permissions_and_config_end_it_at_the_first(rig: Rig) -> None:
    for status, code, _ in FINAL[rig.cloud.name]:
        begin(rig, FURTHER[rig.cloud.name][1])
        rig.cloud.fault(
            "answer", action=LAUNCH[rig.cloud.name], times=2, status=status, code=code, message=code
        )
        made = rig.run("create")
        assert made.error, (code, made)
        assert made.error not in ("CapacityError", "QuotaError"), (code, made)
        assert "refused" not in rig.journal.read_text()
        assert rig.held() == [], code
