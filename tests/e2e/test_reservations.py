"""A full reservation of one cloud and one with room in another: `up`, status, drift, `down`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.standins.nodes import unavailable
from tests.support.three_clouds import ThreeClouds, three_clouds

CR, GROUP = "cr-0123456789abcdef0", "capacity/d4"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[ThreeClouds]:
    if reason := unavailable():
        pytest.skip(reason)
    with three_clouds(tmp_path) as user:
        yield user


def test_a_full_reservation_leads_to_the_next_candidate_and_down_frees_the_other(
    user: ThreeClouds,
) -> None:
    there = {"zone": "us-east-1a", "machine": "m6i.xlarge", "count": 1}
    user.clouds["aws"].set(reservations={CR: there})
    d4 = {"size": "Standard_D4s_v5", "count": 2}
    groups = {GROUP: {"region": "eastus", "reservations": {"one": d4}}}
    user.clouds["azure"].set(reservation_groups=groups)
    file = user.config(["aws", "azure"], field="ordered")
    values = yaml.safe_load(file.read_text())
    for candidate, name in zip(values["ordered"], (CR, GROUP), strict=True):
        for role in candidate["nodes"].values():
            role["provisioning"] = {"reservation": name}
    file.write_text(yaml.safe_dump(values))

    said = user.do("up", file, "--yes").stderr
    assert f"{CR}: 1 of 1" in said or "does not have sufficient compatible" in said
    assert list(user.holding()) == ["azure"]
    bought = {node["provisioning"] for node in user.status()["nodes"]}
    assert bought == {f"reservation {GROUP}"}

    user.clouds["azure"].forget_calls()
    user.do("up", file, "--yes")
    assert not [c for c in user.clouds["azure"].calls() if c["action"].startswith("PUT virtualM")]

    values["ordered"][1]["nodes"]["worker"]["provisioning"] = "on-demand"
    file.write_text(yaml.safe_dump(values))
    refused = user.do("up", file, "--yes", code=2).stderr
    assert f"reservation {GROUP}" in refused
    assert "on demand" in refused

    user.do("down", json.loads(user.do("status", "--json").stdout)["clusters"][0]["name"], "--yes")
    assert user.holding() == {}
