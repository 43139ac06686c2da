"""Up and down of nodes that are bought otherwise than on demand or as spot, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project

ZONE = "us-east4-c"
RESERVATION = f"projects/test-project/zones/{ZONE}/reservations/mine"


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running("gcp", nodes=nodes) as cloud:
        project = Project(tmp_path / "user's project")
        project.environment.update(cloud.environment)
        yield Account(project, cloud, nodes)


def test_nodes_of_a_reservation_on_google_cloud(account: Account) -> None:
    account.cloud.set(reservations={RESERVATION: {"machine": "n1-standard-8", "count": 2}})
    nodes = {
        role: {"machine": "n1-standard-8", "provisioning": {"reservation": "mine"}}
        for role in ("chief", "worker")
    }
    file = account.project.config(
        provider="gcp",
        project="test-project",
        nodes=nodes,
        placement=[ZONE],
        setup={"run": ["echo ready >made"]},
    )
    checked = account.do("check", file).stdout
    assert "ok    reservation  mine in us-east4-c: 2 of 2 free, 2 needed" in checked
    account.do("up", file, "--yes")
    (cluster,) = json.loads(account.do("status", "--json").stdout)["clusters"]
    assert {node["provisioning"] for node in cluster["nodes"]} == {"reservation mine"}
    assert "reservation mine" in account.do("status").stdout
    calls = len(account.cloud.calls())
    account.do("up", file, "--yes")
    sent = [call["action"] for call in account.cloud.calls()[calls:]]
    assert not [action for action in sent if action.endswith((".insert", ".delete"))]
    account.do("down", account.project.name, "--yes")
    assert account.cloud.holdings() == []
