"""Up, train, down on nodes that this machine reaches through something else, as a user types it."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.base.timing import TIMING
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.behind import Behind, behind_jump_host
from tests.support.cloud_clis import CloudClis, cloud_clis
from tests.support.cloud_user import READY, Account
from tests.support.lent import lent_home
from tests.support.project import Project

pytestmark = pytest.mark.openssh


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    with behind_jump_host(tmp_path / "behind", ["a", "b"]) as found:
        yield found


def test_machines_of_ones_own_behind_a_jump_host(behind: Behind, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    home = lent_home(tmp_path / "home", behind.nodes)
    project.environment["HOME"] = str(home)
    project.environment["PATH"] = f"{behind.programs}:{os.environ['PATH']}"
    hosts = [
        {
            "address": machine.node.address,
            "port": machine.node.ssh_port,
            "user": getpass.getuser(),
            "role": role,
        }
        for machine, role in zip(behind.nodes, ("chief", "worker"), strict=True)
    ]
    network = {"ssh_proxy": {"jump": behind.jump.name}}
    config = project.config(provider="hosts", hosts=hosts, nodes=None, network=network)
    config.write_text(config.read_text().replace("nodes: null\n", ""))

    said = do(project, "check", config)
    assert f"{behind.jump.name} lets you in" in said
    do(project, "up", config, "--yes")
    said = do(project, "exec", project.name, "--", "echo", "here")
    assert sorted(said.splitlines()) == ["chief0 │ here", "worker0 │ here"]
    do(project, "train", "--json", "--", "--steps", "3")
    assert project.landed("worker0", "output/worker0.txt") == "done at 3\n"
    assert "worker0" in do(project, "logs", project.name)
    assert do(project, "ssh", project.name, "worker0", "--", "pwd") == f"{behind.nodes[1].home}\n"
    written = tmp_path / "ssh_config"
    written.write_text(do(project, "ssh-config", project.name))
    by_hand = ["ssh", "-F", str(written), f"{project.name}-chief0", "pwd"]
    done = subprocess.run(
        by_hand, capture_output=True, text=True, env=project.environment, check=False
    )
    assert done.stdout == f"{behind.nodes[0].home}\n", done.stderr
    mine = do(project, "code", project.name, "worker0").split()
    assert mine[:3] == ["code", "--remote", f"ssh-remote+{project.name}-worker0"]
    assert mine[3].startswith(f"{behind.nodes[1].home}/.cloudtrain/{project.name}/runs/")
    assert mine[3].endswith("/worker0/work")
    do(project, "ssh-config", "--install")
    # OpenSSH itself reads the home of the user database.
    of_user = ["ssh", "-F", str(home / ".ssh" / "config"), f"{project.name}-chief0", "pwd"]
    done = subprocess.run(
        of_user, capture_output=True, text=True, env=project.environment, check=False
    )
    assert done.stdout == f"{behind.nodes[0].home}\n", done.stderr
    do(project, "down", project.name, "--yes")
    assert not (behind.nodes[0].home / ".cloudtrain" / project.name).exists()


def test_without_the_jump_host_nothing_is_done(behind: Behind, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.environment["HOME"] = str(lent_home(tmp_path / "home", behind.nodes))
    node = behind.nodes[0].node
    host = {"address": node.address, "port": node.ssh_port, "user": node.user, "role": "chief"}
    config = project.config(
        provider="hosts",
        strategy="mirrored",
        hosts=[host],
        nodes=None,
        network={"ssh_proxy": {"jump": "nobody@127.9.9.9:9"}},
    )
    config.write_text(config.read_text().replace("nodes: null\n", ""))
    refused = project.cloudtrain("up", config, "--yes")
    assert refused.returncode != 0
    assert "Connection refused" in refused.stderr


def do(project: Project, *arguments: str | Path) -> str:
    done = project.cloudtrain(*arguments, timeout=300)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# ── The clouds' own services ─────────────────────────────────────────────────


@pytest.fixture(params=[name for name in READY if name in ("gcp", "aws", "azure")])
def account(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Account, CloudClis]]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud:
        project = Project(tmp_path / "project")
        project.environment.update(cloud.environment)
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        found = Account(project, cloud, nodes)
        with cloud_clis(tmp_path / "clis", lambda key: place_of(found, key)) as clis:
            project.environment.update(clis.environment)
            yield found, clis


def place_of(account: Account, key: str) -> str:
    """Where the VM that a program names has its SSH server: by name, by ID, or by resource ID."""
    name = key.rpartition("/")[2]
    if account.cloud.name == "aws":
        name = name_of_instance(account, key)
    return f"{account.nodes.address_of(name)}:22"


def name_of_instance(account: Account, id: str) -> str:
    import boto3

    url = account.cloud.environment["AWS_ENDPOINT_URL"]
    client = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id=account.cloud.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=account.cloud.environment["AWS_SECRET_ACCESS_KEY"],
    )
    found = client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]
    return str(next(tag["Value"] for tag in found["Tags"] if tag["Key"] == "Name"))


def network_of(account: Account) -> dict[str, Any]:
    if account.cloud.name != "azure":
        return {"private": True, "ssh_proxy": {"gcp": "iap", "aws": "ssm"}[account.cloud.name]}
    return {"private": True, **azures(account)}


def azures(account: Account) -> dict[str, Any]:
    """A network of the company's, with a subnet for nodes and its Bastion."""
    arm = ArmClient(account.cloud.config(), TIMING)
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/net"
    arm.put(group, {"location": "eastus"})
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/hub"
    subnets = [
        {"name": "gpu", "properties": {"addressPrefix": "10.9.1.0/24"}},
        {"name": "AzureBastionSubnet", "properties": {"addressPrefix": "10.9.0.0/26"}},
    ]
    space = {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}}
    arm.put(network, {"location": "eastus", "properties": {**space, "subnets": subnets}})
    where = {"subnet": {"id": f"{network}/subnets/AzureBastionSubnet"}}
    bastion = {
        "location": "eastus",
        "sku": {"name": "Standard"},
        "properties": {
            "enableTunneling": True,
            "ipConfigurations": [{"name": "one", "properties": where}],
        },
    }
    arm.put(f"{group}/providers/Microsoft.Network/bastionHosts/b", bastion)
    return {"subnet": f"{network}/subnets/gpu", "ssh_proxy": {"bastion": "net/b"}}


@pytest.mark.sweep(1)
def test_private_nodes_of_a_cloud_by_its_own_service(account: tuple[Account, CloudClis]) -> None:
    user, clis = account
    config = user.config(network=network_of(user))
    name = user.project.name
    user.do("check", config)
    user.do("up", config, "--yes")
    said = user.do("exec", name, "--", "hostname").stdout
    assert sorted(said.splitlines()) == [f"chief0 │ {name}-chief0", f"worker0 │ {name}-worker0"]
    user.do("train", "--json", "--", "--steps", "3")
    assert user.project.landed("worker0", "output/worker0.txt") == "done at 3\n"
    assert user.do("ssh", name, "worker0", "--", "cat", "made").stdout == "ready\n"
    used = [call for call in clis.calls() if not {"version", "--version", "extension"} & set(call)]
    assert len(used) >= 8, "every command has opened its connections by it"
    user.do("down", name, "--yes")
    assert [line for line in user.cloud.holdings() if name in line] == []
    assert user.nodes.running() == []


@pytest.mark.sweep(1)
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_a_right_that_lacks_ends_up_at_once_and_says_what_is_billed(
    account: tuple[Account, CloudClis],
) -> None:
    user, clis = account
    clis.set("refused")
    refused = user.project.cloudtrain("up", user.config(network=network_of(user)), "--yes")
    assert refused.returncode == 4, refused.stderr
    assert "4033: 'not authorized'" in refused.stderr
    assert "grant roles/iap.tunnelResourceAccessor" in refused.stderr
    assert f"cloudtrain down {user.project.name}" in refused.stderr
    user.do("down", user.project.name, "--yes")
    assert user.cloud.holdings() == []
