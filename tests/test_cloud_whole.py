"""Up, train, down on each cloud's stand-in, with real nodes behind it: as a user types it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.errors import HostKeyMismatch
from cloudtrain.keys import load_identity
from cloudtrain.model import CLOUDS, Identity, Node
from cloudtrain.transports.ssh import SshTransport
from tests.project import Project, until
from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.nodes import Nodes, unavailable

READY = [
    name
    for name in CLOUDS
    if importlib.util.find_spec(f"cloudtrain.providers.{name}")
    and importlib.util.find_spec(DESCRIPTIONS[name].at.partition(":")[0])
]


@dataclasses.dataclass
class Account:
    """A user's project and an account with real machines."""

    project: Project
    cloud: Cloud
    nodes: Nodes

    def config(self, **sections: object) -> Path:
        described = DESCRIPTIONS[self.cloud.name]
        node = {"machine": described.machine}
        return self.project.config(
            provider=self.cloud.name,
            project=described.project or None,
            placement=list(described.placement),
            nodes={"chief": node, "worker": {**node, "count": 1}},
            setup={"run": ["echo ready >made"]},
            **sections,
        )

    @property
    def folder(self) -> Path:
        return self.project.home / "clusters" / self.project.name

    def identity(self) -> Identity:
        return load_identity(self.folder)

    def do(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = self.project.cloudtrain(*arguments)
        assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}{self.logs()}"
        return done

    def logs(self) -> str:
        names = self.nodes.running()
        return "".join(f"\n{name}:\n{self.nodes.boot_log(name)[-2000:]}" for name in names)

    def status(self) -> list[dict[str, str]]:
        (cluster,) = json.loads(self.do("status", "--json").stdout)["clusters"]
        found: list[dict[str, str]] = cluster["nodes"]
        return found


@pytest.fixture(params=READY)
def account(request: pytest.FixtureRequest, project: Project) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud:
        project.environment.update(cloud.environment)
        yield Account(project, cloud, nodes)


def test_up_train_down_on_real_nodes(account: Account) -> None:
    account.do("up", account.config())
    names = [f"{account.project.name}-{task}" for task in ("chief0", "worker0")]
    assert [node["name"] for node in account.status()] == names
    assert {node["state"] for node in account.status()} == {"running"}
    assert sorted(account.do("exec", account.project.name, "--", "hostname").stdout.split())[
        -2:
    ] == sorted(names)
    assert openssh(account, names[1], "cat made") == "ready\n"
    the_host_keys_are_others_than_in_the_user_data(account)

    keys_before = {name: key.pins for name, key in account.identity().host_keys.items()}
    account.do("up", account.config())
    assert {name: key.pins for name, key in account.identity().host_keys.items()} == keys_before

    account.do("train", "--json", "--", "--steps", "3")
    assert account.project.landed("chief0", "output/chief0.txt") == "done at 3\n"
    assert account.project.landed("worker0", "output/worker0.txt") == "done at 3\n"

    account.do("down", account.project.name)
    assert account.cloud.holdings() == []
    assert account.nodes.running() == []
    assert not (account.folder / "host_keys").exists()


def test_a_lost_node_is_made_again_with_keys_of_its_own(account: Account) -> None:
    account.do("up", account.config())
    lost = f"{account.project.name}-worker0"
    before = account.identity().host_keys
    account.nodes.halt(lost)
    account.cloud.app.shut_down(lost)
    until(lambda: [n["name"] for n in account.status() if n["state"] == "running"] != [], 20)
    delete_what_is_stopped(account)
    account.do("up", account.config())
    after = account.identity().host_keys
    if after[lost].public != before[lost].public:  # made anew, not started again
        assert after[lost].rotated
    chief = f"{account.project.name}-chief0"
    assert after[chief].pins == before[chief].pins
    assert openssh(account, lost, "hostname") == f"{lost}\n"
    account.do("down", account.project.name)
    assert account.cloud.holdings() == []


def delete_what_is_stopped(account: Account) -> None:
    time.sleep(0.2)


def openssh(account: Account, name: str, line: str) -> str:
    config = account.project.folder / "ssh_config"
    config.write_text(account.do("ssh-config", account.project.name).stdout)
    arguments = ["ssh", "-F", str(config), "-o", "BatchMode=yes", name, line]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def the_host_keys_are_others_than_in_the_user_data(account: Account) -> None:
    identity = account.identity()
    for told in account.status():
        node = Node(
            name=told["name"],
            role="worker",
            index=0,
            state="running",
            address=told["address"],
            internal=told["address"],
        )
        key = identity.host_keys[node.name]
        assert key.rotated
        first = dataclasses.replace(key, accepted=())
        knows_the_first = dataclasses.replace(identity, host_keys={node.name: first})
        with SshTransport(knows_the_first) as transport, pytest.raises(HostKeyMismatch):
            transport.ask(node, ":")
        with SshTransport(identity) as transport:
            assert transport.ask(node, "echo here").stdout == b"here\n"
