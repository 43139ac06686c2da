"""Up, status, exec, train and down of a TPU with two hosts, as a user types it, on real nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project

SCRIPT = (
    "echo $TPU_WORKER_ID of $CLOUDTRAIN_TPU {tpu} $(printenv TF_CONFIG || echo none)"
    " >{output}/said.txt"
)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running("gcp", nodes=nodes) as cloud:
        project = Project(tmp_path / "user's project")
        project.environment.update(cloud.environment)
        yield Account(project, cloud, nodes)


def test_a_command_runs_on_every_host_of_a_slice(account: Account) -> None:
    file = account.config(
        machine="v5p-16",
        roles={"worker": 2},
        strategy="tpu",
        placement=["us-central1-a"],
        train={"command": f"mkdir -p {{output}}; {SCRIPT}", "checkpoints": None},
    )
    name = account.project.name
    account.do("up", file, "--yes")
    names = [f"{name}-worker0", f"{name}-worker1"]
    assert [node["name"] for node in account.status()] == names
    assert {node["state"] for node in account.status()} == {"running"}
    assert account.nodes.running() == [f"{name}-worker0-w-0", f"{name}-worker0-w-1"]
    assert account.openssh(names[1], "cat made") == "ready\n"
    keys = account.identity().host_keys.values()
    assert all(key.rotated for key in keys), "no key of the metadata is left in use"

    account.do("train", "--json")
    hosts = json.loads(account.do("status", "--json").stdout)["clusters"][0]["nodes"]
    servers = ",".join(f"grpc://{host['internal']}:8470" for host in hosts)
    for index, task in enumerate(("worker0", "worker1")):
        said = account.project.landed(task, "output/said.txt")
        assert said == f"{index} of {names[0]} {servers} none\n"

    account.do("down", name, "--yes")
    assert account.cloud.holdings() == []
    assert account.nodes.running() == []
