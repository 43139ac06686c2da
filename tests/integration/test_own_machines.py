"""Machines as people have them: noisy shells, full agents, aliases, servers with limits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cloudtrain.core.errors import CredentialsError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.providers.hosts.provider import HostsProvider
from cloudtrain.providers.hosts.user_ssh import address_of
from tests.support.fakes import key_pair, make_identity, make_plan, no_journal
from tests.support.lent import hosts_config, lent_home
from tests.support.project import Project
from tests.support.sshd import SshdNode, sshd_nodes

pytestmark = pytest.mark.openssh


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshdNode]:
    with sshd_nodes(tmp_path / "machines", ["a"]) as (node,):
        monkeypatch.setenv("HOME", str(lent_home(tmp_path / "home", [node])))
        yield node


def serves(machine: SshdNode, *options: str) -> None:
    machine.stop()
    machine.start(*(word for option in options for word in ("-o", option)))
    machine.await_start()


def config_of(machine: SshdNode, **host: str) -> ClusterConfig:
    config = hosts_config([machine], ["chief"])
    return replace(config, hosts=(replace(config.hosts[0], **host),))  # type: ignore[arg-type]


def ssh_config(text: str) -> None:
    path = Path.home() / ".ssh" / "config"
    path.touch(mode=0o600)
    path.write_text(text)


def test_what_the_users_shell_prints_is_told_from_every_answer(
    machine: SshdNode, tmp_path: Path
) -> None:
    """As by an `echo` in `.bashrc` or `.zshenv`, which such a shell reads before each command."""
    forced = re.search("^ForceCommand (.*)$", (machine.folder / "sshd_config").read_text(), re.M)
    assert forced is not None
    noise = "echo Welcome to a; echo careful >&2; "
    serves(machine, f"ForceCommand={noise}{forced[1]}")
    project = Project(tmp_path / "project")
    project.environment["HOME"] = os.environ["HOME"]
    train = {"command": "echo trained; echo weights >{output}/model"}
    path = project.config(provider="hosts", strategy="one_device", train=train)
    values = yaml.safe_load(path.read_text())
    del values["nodes"]
    address, port = machine.place
    values["hosts"] = [
        {"address": address, "port": port, "user": machine.node.user, "role": "chief"}
    ]
    path.write_text(yaml.safe_dump(values))
    check = project.cloudtrain("check", path)
    assert check.returncode == 0, check.stdout
    done = project.cloudtrain("run", path)
    assert done.returncode == 0, done.stderr
    assert project.landed("chief0", "output/model") == "weights\n"
    assert "Welcome" not in done.stdout + done.stderr
    logs = [file.read_text() for file in project.store.rglob("*.log")]
    assert logs
    assert not any("Welcome" in text or "careful" in text for text in logs)
    assert not (machine.home / ".cloudtrain").exists()


@pytest.fixture
def full_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent with many keys, of which none opens the machine."""
    socket = str(tmp_path / "agent")
    started = subprocess.run(
        ["ssh-agent", "-s", "-a", socket], capture_output=True, text=True, check=True
    )
    found = re.search("SSH_AGENT_PID=([0-9]+)", started.stdout)
    assert found is not None
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    try:
        for number in range(4):
            key = tmp_path / f"key-{number}"
            key.touch(mode=0o600)
            key.write_text(key_pair()[0])
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        yield
    finally:
        os.kill(int(found[1]), signal.SIGTERM)


def test_more_keys_in_the_agent_than_the_server_allows_are_named_with_the_way_out(
    machine: SshdNode, full_agent: None
) -> None:
    serves(machine, "MaxAuthTries=2")
    plan = make_plan(workers=0)
    (finding,) = HostsProvider(config_of(machine)).check(plan)
    assert finding.error is CredentialsError
    assert "Too many authentication failures" in finding.text
    assert "set `key` in `hosts`" in (finding.hint or "")
    named = config_of(machine, key=str(Path.home() / ".ssh" / "id_ed25519"))
    assert HostsProvider(named).check(plan)[0].ok


def test_a_named_key_with_a_passphrase_is_the_only_one_of_the_agent_that_is_tried(
    machine: SshdNode, full_agent: None
) -> None:
    serves(machine, "MaxAuthTries=2")
    own = Path.home() / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-add", "-q", str(own)], check=True, capture_output=True)
    public = subprocess.run(["ssh-keygen", "-y", "-f", str(own)], capture_output=True, check=True)
    own.with_name("id_ed25519.pub").write_bytes(public.stdout)
    words = ["ssh-keygen", "-q", "-p", "-N", "a passphrase", "-f", str(own)]
    subprocess.run(words, check=True, capture_output=True)
    named = config_of(machine, key=str(own))
    assert HostsProvider(named).check(make_plan(workers=0))[0].ok


def test_a_server_that_allows_one_session_at_a_time_is_enough(
    machine: SshdNode, tmp_path: Path
) -> None:
    serves(machine, "MaxSessions=1")
    hosts, plan = HostsProvider(config_of(machine)), make_plan(workers=0)
    assert hosts.check(plan)[0].ok
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    hosts.destroy("mnist", no_journal)
    assert not (machine.home / ".cloudtrain").exists()


def test_a_server_that_allows_no_session_says_so(machine: SshdNode) -> None:
    serves(machine, "MaxSessions=0")
    (finding,) = HostsProvider(config_of(machine)).check(make_plan(workers=0))
    assert "opens no session: " in finding.text
    assert "MaxSessions" in (finding.hint or "")


def test_an_alias_stands_for_its_host_name_also_in_an_included_file(
    machine: SshdNode, tmp_path: Path
) -> None:
    """The other nodes do not have this user's ~/.ssh/config."""
    address, port = machine.place
    included = tmp_path / "lab"
    included.touch(mode=0o600)
    included.write_text(f"Host gpu1\n HostName {address}\n Port {port}\n")
    ssh_config(f"Include {included}\n")
    host = replace(config_of(machine).hosts[0], address="gpu1", port=22)
    hosts = HostsProvider(replace(config_of(machine), hosts=(host,)))
    plan = make_plan(workers=0)
    assert hosts.check(plan)[0].ok
    (node,) = hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    assert (node.internal, node.address, node.ssh_port) == (address, address, port)


def test_an_address_that_the_other_machines_cannot_resolve_is_found_by_check(
    machine: SshdNode,
) -> None:
    config = config_of(machine)
    unknown = replace(config.hosts[0], address="gpu-2.invalid", role="worker")
    findings = HostsProvider(replace(config, hosts=(*config.hosts, unknown))).check(make_plan())
    assert findings[0].text == ("chief0 cannot resolve gpu-2.invalid, the address of another host")
    assert not findings[0].ok


RELAY = """
import os, socket, sys, threading
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def pump():
    while data := os.read(0, 65536):
        link.sendall(data)
threading.Thread(target=pump, daemon=True).start()
while data := link.recv(65536):
    os.write(1, data)
"""


def test_a_machine_behind_another_one_is_reached_as_by_ssh(
    machine: SshdNode, tmp_path: Path
) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    address, port = machine.place
    ssh_config(
        f"Host gpu1\n HostName {address}\n Port {port}\n"
        f" ProxyCommand {sys.executable} {tmp_path}/relay.py %h %p\n"
        "Host gpu2\n HostName 10.0.0.2\n ProxyJump me@bastion:2222\n"
        "Host gpu3\n HostName 10.0.0.3\n ProxyCommand none\n"
    )
    host = replace(config_of(machine).hosts[0], address="gpu1", port=22)
    hosts, plan = HostsProvider(replace(config_of(machine), hosts=(host,))), make_plan(workers=0)
    assert hosts.check(plan)[0].ok
    (node,) = hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    assert node.ssh_proxy[:2] == ("/bin/sh", "-c")
    jumped = address_of(replace(host, address="gpu2")).through
    assert jumped[0] == "ssh"
    assert jumped[-6:] == ("-p", "2222", "-W", "[10.0.0.2]:22", "--", "bastion")
    assert address_of(replace(host, address="gpu3")).through == ()
