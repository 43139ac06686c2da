"""Machines of one's own whose users' home is on a network: it is one folder for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.model import Node
from cloudtrain.providers.hosts.provider import HostsProvider, shared_homes
from tests.support.fakes import make_identity, make_plan, no_journal
from tests.support.lent import hosts_config, lent_home
from tests.support.sshd import SshdNode, sshd_nodes

pytestmark = pytest.mark.openssh

ROLES = ["chief", *["worker"] * 7]
OWN = [f"ssh-ed25519 AAAA{number} ann@laptop-{number}" for number in range(6)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home of all"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("\n".join(OWN))
    return home


@pytest.fixture
def machines(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[list[SshdNode]]:
    names = [f"m{number}" for number in range(getattr(request, "param", 3))]
    with sshd_nodes(tmp_path / "machines", names, home=home) as nodes:
        monkeypatch.setenv("HOME", str(lent_home(tmp_path / "user", nodes)))
        yield nodes


def keys(home: Path) -> list[str]:
    return (home / ".ssh" / "authorized_keys").read_text().splitlines()


@pytest.mark.parametrize("machines", [len(ROLES)], indirect=True)
def test_eight_machines_come_and_go_and_every_key_of_the_users_stays(
    machines: list[SshdNode], home: Path, tmp_path: Path
) -> None:
    hosts, plan = HostsProvider(hosts_config(machines, ROLES)), make_plan(workers=7)
    identity = make_identity(tmp_path, plan)
    nodes = hosts.create(plan, identity, no_journal)
    assert len(keys(home)) == len(OWN) + 1
    assert {node.storage for node in nodes} == {nodes[0].home}
    assert len({node.host for node in nodes}) == len(nodes)
    hosts.destroy("mnist", no_journal)
    assert keys(home) == OWN
    assert [path.name for path in home.rglob("*")] == [".ssh", "authorized_keys"]


def test_a_machine_that_leaves_ends_its_own_tasks_and_takes_nothing_of_the_others(
    machines: list[SshdNode], home: Path, tmp_path: Path
) -> None:
    hosts = HostsProvider(hosts_config(machines[:2], ROLES[:2]))
    plan = make_plan()
    chief, worker = hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    (home / ".cloudtrain/mnist/model").write_text("weights")
    hosts.remove("mnist", [worker.name], no_journal)
    assert hosts.nodes("mnist") == (chief,)
    assert (home / ".cloudtrain/mnist/model").exists()
    assert len(keys(home)) == len(OWN) + 1
    hosts.remove("mnist", [chief.name], no_journal)
    assert keys(home) == OWN
    assert not (home / ".cloudtrain").exists()


def test_check_says_which_machines_share_a_home(machines: list[SshdNode], home: Path) -> None:
    findings = HostsProvider(hosts_config(machines[:3], ROLES[:3])).check(make_plan(workers=2))
    assert all(finding.ok for finding in findings)
    assert [finding.text for finding in findings if finding.what == "shared home"] == [
        "chief0, worker0, worker1 have the same one: what is installed there is for all of them"
    ]
    assert [path.name for path in home.iterdir()] == [".ssh"]


def test_homes_that_look_alike_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines with copies of one disk have homes with one number."""
    with sshd_nodes(tmp_path / "machines", ["a", "b"]) as nodes:
        monkeypatch.setenv("HOME", str(lent_home(tmp_path / "user", nodes)))
        slots = HostsProvider(hosts_config(nodes, ["chief", "worker"]))._slots("mnist")
        assert shared_homes(slots, dict.fromkeys([slot.name for slot in slots], "131073")) == ()
        assert [[*node.home.iterdir()] for node in nodes] == [[], []]


def test_nodes_that_share_files_are_those_of_a_home_or_of_a_host() -> None:
    def node(name: str, **of: str) -> Node:
        return Node(
            name=name, role="worker", index=0, state="running", address="", internal="", **of
        )

    assert node("a", host="h1", home="x").storage == node("b", host="h2", home="x").storage
    assert node("a", host="h1").storage == node("b", host="h1").storage
    assert node("a").storage != node("b").storage
