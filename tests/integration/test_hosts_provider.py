"""Machines that exist already: lent a key, used, and given back as they were."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
import yaml
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.core.errors import CredentialsError, HostKeyMismatch, LeftoverError, NodeUnreachable
from cloudtrain.core.model import Host, Owner, SshProxy
from cloudtrain.core.retry import Retry
from cloudtrain.core.shell import command
from cloudtrain.providers.hosts.provider import HostsProvider
from cloudtrain.providers.hosts.user_ssh import HostAddress, UserSsh, _connect, open_session
from cloudtrain.ssh.keys import create_identity
from cloudtrain.ssh.transport import SshTransport
from tests.support import processes
from tests.support.fakes import key_pair, make_identity, make_plan, no_journal
from tests.support.lent import hosts_config, lent_home
from tests.support.project import Project, until
from tests.support.sshd import SshdNode, sshd_nodes

pytestmark = pytest.mark.openssh


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SshdNode]]:
    with sshd_nodes(tmp_path / "machines", ["a", "b"]) as nodes:
        monkeypatch.setenv("HOME", str(lent_home(tmp_path / "home", nodes)))
        yield nodes


def provider(machines: list[SshdNode]) -> HostsProvider:
    return HostsProvider(hosts_config(machines, ["chief", "worker"]))


def keys_on(machine: SshdNode) -> list[str]:
    path = machine.home / ".ssh" / "authorized_keys"
    return path.read_text().splitlines() if path.exists() else []


def test_machines_that_lend_a_node_are_not_asked_a_second_time_what_they_have(
    machines: list[SshdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan()
    hosts, identity = provider(machines), make_identity(tmp_path, plan)
    logins: list[str] = []

    def counted(node: str, host: Host, proxy: SshProxy | None) -> AbstractContextManager[UserSsh]:
        logins.append(node)
        return open_session(node, host, proxy)

    monkeypatch.setattr("cloudtrain.providers.hosts.user_ssh.open_session", counted)
    names = [node.name for node in plan.nodes]
    made = hosts.create(plan, identity, no_journal)
    assert sorted(logins) == sorted(names * 2), "a look, and what is made"
    logins.clear()
    assert hosts.create(plan, identity, no_journal) == made
    assert sorted(logins) == sorted(names)
    assert hosts.nodes("mnist") == made


def test_the_clusters_own_key_opens_a_lent_machine_whose_host_key_the_user_knows(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    plan = make_plan()
    identity = create_identity(tmp_path / "cluster", [node.name for node in plan.nodes])
    nodes = provider(machines).create(plan, identity, no_journal)
    assert [node.host_keys for node in nodes] == [
        (machine.identity.host_keys[machine.node.name].public,) for machine in machines
    ]
    with SshTransport(identity) as transport:
        assert transport.run(nodes[1], command("echo", "hello")).stdout == b"hello\n"


def test_a_machine_is_given_back_as_it_was(machines: list[SshdNode], tmp_path: Path) -> None:
    own = f"{key_pair()[1]} me@home"
    ssh = machines[0].home / ".ssh"
    ssh.mkdir()
    (ssh / "authorized_keys").write_text(own)  # and no newline at its end
    plan, hosts = make_plan(), provider(machines)
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    assert len(keys_on(machines[0])) == 2
    hosts.destroy("mnist", no_journal)
    assert keys_on(machines[0]) == [own]
    assert keys_on(machines[1]) == []
    assert not (machines[0].home / ".cloudtrain").exists()
    assert hosts.nodes("mnist") == ()


def test_tasks_that_still_run_there_are_ended(machines: list[SshdNode], tmp_path: Path) -> None:
    plan, hosts = make_plan(), provider(machines)
    identity = create_identity(tmp_path / "cluster", [node.name for node in plan.nodes])
    node = hosts.create(plan, identity, no_journal)[0]
    task = "cd ~/.cloudtrain/mnist && nohup sleep 600 >/dev/null 2>&1 & echo $!"
    service = "cd / && CLOUDTRAIN_SETUP=mnist/0 nohup sleep 601 >/dev/null 2>&1 & echo $!"
    another = service.replace("mnist/", "mnist-2/")
    elsewhere = service.replace("nohup", f"HOME={tmp_path} nohup")  # an account's whom root sees
    with SshTransport(identity) as transport:
        pids = [
            int(transport.run(node, command("sh", "-c", script)).stdout)
            for script in (task, service, another, elsewhere)
        ]
    # A process between `fork` and `exec` has another command line, or none.
    until(lambda: [processes.words(pid)[:1] for pid in pids] == [["sleep"]] * 4, within=20)
    hosts.destroy("mnist", no_journal)
    assert [processes.words(pid)[:1] for pid in pids] == [[], [], ["sleep"], ["sleep"]]


def test_a_machine_whose_host_key_is_not_known_is_never_trusted(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    (Path.home() / ".ssh" / "known_hosts").write_text("")
    findings = provider(machines).check(make_plan())
    assert [finding.ok for finding in findings] == [False, False]
    assert findings[0].error is HostKeyMismatch
    assert "check the fingerprint" in str(findings[0].hint)
    plan = make_plan(workers=0)
    with pytest.raises(HostKeyMismatch):
        provider(machines).create(plan, make_identity(tmp_path, plan), no_journal)


def test_another_host_key_than_the_known_one_is_refused(machines: list[SshdNode]) -> None:
    path = Path.home() / ".ssh" / "known_hosts"
    places = [line.split()[0] for line in path.read_text().splitlines()]
    path.write_text("".join(f"{place} {key_pair()[1]}\n" for place in places))
    finding = provider(machines).check(make_plan())[0]
    assert "does not match your known_hosts" in finding.text


def test_a_user_without_a_key_for_it_is_told(machines: list[SshdNode], tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.touch(mode=0o600)
    stranger.write_text(key_pair()[0])
    config = hosts_config(machines, ["chief", "worker"])
    hosts = tuple(replace(host, key=str(stranger)) for host in config.hosts)
    finding = HostsProvider(replace(config, hosts=hosts)).check(make_plan())[0]
    assert finding.error is CredentialsError
    assert "none of your keys" in finding.text


def test_check_tells_what_a_machine_is(machines: list[SshdNode]) -> None:
    finding = provider(machines).check(make_plan())[1]
    assert finding.ok
    assert finding.text.startswith(f"worker0 as {machines[1].node.user}, Linux ")
    assert finding.text.endswith("GB free")


def without_python(machine: SshdNode, older: str = "") -> None:
    """`older`: the only python3 there says that it is of this version."""
    folder = machine.home.parent / f"{machine.home.name}-bin"
    folder.mkdir()
    for path in Path("/usr/bin").iterdir():
        if not path.name.startswith("python"):
            (folder / path.name).symlink_to(path)
    if older:
        python = f"import sys; sys.version_info = ({older})"
        (folder / "python3").write_text(
            f'#!/bin/sh\nshift 3\ncode="{python}\n$1"\nshift\n'
            f'exec {sys.executable} -c "$code" "$@"\n'
        )
        (folder / "python3").chmod(0o755)
    machine.stop()
    machine.start("-o", f"SetEnv HOME={machine.home} PATH={folder}")
    until(lambda: answers(machine), 60)


def answers(machine: SshdNode) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(machine.place) == 0


def test_check_says_what_to_install_where_a_machine_has_no_python(
    machines: list[SshdNode],
) -> None:
    without_python(machines[0])
    without_python(machines[1], older="3, 5")
    chief, worker = provider(machines).check(make_plan())
    assert (chief.ok, worker.ok) == (False, False)
    assert chief.text.endswith(
        "python3 not found (nodes need 3.6 or newer): sudo apt-get install python3"
    )
    assert worker.text.endswith(
        "python3 is 3.5, but nodes need 3.6 or newer: install a newer python3"
    )


def test_up_says_what_to_install_where_a_machine_has_no_python(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    project, path = lent_project(machines, tmp_path / "project")
    without_python(machines[1])
    up = project.cloudtrain("up", path, "--yes")
    assert up.returncode == 1
    assert up.stderr.count("python3 not found (nodes need 3.6 or newer)") == 1
    assert "-worker0: " in up.stderr
    assert not any((machine.home / ".cloudtrain").exists() for machine in machines)


def test_what_cannot_be_reached_is_left_over_and_named(
    machines: list[SshdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_patience(monkeypatch)
    plan, hosts = make_plan(), provider(machines)
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    machines[1].stop()
    assert [node.state for node in hosts.nodes("mnist")] == ["running", "unknown"]
    with pytest.raises(LeftoverError, match=f"~/.cloudtrain/mnist on {machines[1].node.address}"):
        hosts.destroy("mnist", no_journal)
    assert keys_on(machines[0]) == []
    machines[1].start()
    machines[1].await_start()
    hosts.destroy("mnist", no_journal)
    assert hosts.nodes("mnist") == ()


def test_a_machine_with_another_host_key_is_listed_as_untrusted(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    plan, hosts = make_plan(), provider(machines)
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    forget(machines[1])
    nodes = hosts.nodes("mnist")
    assert [node.state for node in nodes] == ["running", "untrusted"]
    assert "does not match your known_hosts" in nodes[1].fault


def test_a_node_that_is_away_for_a_moment_is_not_made_anew_or_taken_back(
    machines: list[SshdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an `up` that meets two silent machines takes the nodes of both."""
    plan, hosts = make_plan(), provider(machines)
    identity = make_identity(tmp_path, plan)
    hosts.create(plan, identity, no_journal)
    restarted(machines[1], after=1.5)
    events: list[str] = []
    made = hosts.create(plan, identity, lambda event, **_: events.append(event))
    assert [node.state for node in made] == ["running", "running"]
    without_patience(monkeypatch)
    machines[1].stop()
    with pytest.raises(NodeUnreachable):
        hosts.create(plan, identity, lambda event, **_: events.append(event))
    assert events == []


def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not answer is given up at once."""
    monkeypatch.setattr("cloudtrain.providers.hosts.provider.AWAY", Retry(pause=0.0, tries=2))


def forget(machine: SshdNode) -> None:
    """The user's known_hosts has another key of it."""
    path = Path.home() / ".ssh" / "known_hosts"
    place = "[{}]:{}".format(*machine.place)
    lines = [line for line in path.read_text().splitlines() if not line.startswith(place)]
    path.write_text("\n".join([*lines, f"{place} {key_pair()[1]}\n"]))


def restarted(machine: SshdNode, *, after: float) -> None:
    """As by an upgrade of its package: every connection breaks, what runs there goes on."""
    ended(machine)
    threading.Timer(after, machine.start).start()


def ended(machine: SshdNode) -> None:
    for pid in machine.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lent_project(
    machines: list[SshdNode], folder: Path, **sections: object
) -> tuple[Project, Path]:
    project = Project(folder)
    project.environment["HOME"] = os.environ["HOME"]
    path = project.config(
        provider="hosts",
        hosts=[
            {
                "address": machine.node.address,
                "port": machine.node.ssh_port,
                "user": machine.node.user,
                "role": role,
            }
            for machine, role in zip(machines, ["chief", "worker"], strict=True)
        ],
        **sections,
    )
    values = yaml.safe_load(path.read_text())
    del values["nodes"]
    path.write_text(yaml.safe_dump(values))
    return project, path


def test_an_sshd_that_restarts_ends_no_run_and_no_start_of_one(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    train = {"command": "python3 rank.py --steps 80 --pause 0.05", "max_restarts": 0}
    project, path = lent_project(machines, tmp_path / "project", train=train)
    assert project.cloudtrain("up", path, "--yes").returncode == 0
    check = project.cloudtrain("check", path)
    assert check.returncode == 0, check.stdout
    restarted(machines[0], after=1.0)
    trains = project.start("train")
    until(lambda: "worker0 step 5" in project.stdout, 60)
    restarted(machines[1], after=1.0)
    assert trains.wait(60) == 0, project.stderr
    assert [record["state"] for record in project.runs()] == ["succeeded"]
    steps = [
        line for line in project.stdout.splitlines() if line.startswith("worker0 │ worker0 step")
    ]
    assert len(steps) == len(set(steps)) == 80
    ended(machines[0])
    told = len(project.stderr)
    down = project.start("down", "--yes")
    waits = "-chief0 does not answer: waiting for up to 60 s"
    until(lambda: waits in project.stderr[told:], 60)
    machines[0].start()
    assert down.wait(60) == 0, project.stderr


class ClosesAtLogin(paramiko.ServerInterface):
    """A server that goes away while somebody logs in."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._transport.close()
        return paramiko.AUTH_FAILED


def test_a_machine_that_goes_away_during_the_login_has_not_refused_a_key(tmp_path: Path) -> None:
    private, public = key_pair()
    (tmp_path / "key").write_text(private)
    (tmp_path / "key").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {' '.join(public.split()[:2])}\n")

        def serve() -> None:
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(tmp_path / "key"))
            transport.start_server(server=ClosesAtLogin(transport))

        threading.Thread(target=serve, daemon=True).start()
        client = paramiko.SSHClient()
        client.load_system_host_keys(str(known))
        way = HostAddress(
            address="127.0.0.1",
            port=port,
            user="ann",
            keys=(str(tmp_path / "key"),),
            known_hosts=(known,),
        )
        with client, pytest.raises(NodeUnreachable, match="closed the connection at the login"):
            _connect(client, "mnist-chief0", way)


def test_another_host_key_is_named_by_every_command(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    project, path = lent_project(machines, tmp_path / "project")
    assert project.cloudtrain("up", path, "--yes").returncode == 0
    known = Path.home() / ".ssh" / "known_hosts"
    before = known.read_text()
    forget(machines[1])
    status = project.cloudtrain("status")
    assert "untrusted" in status.stdout
    assert "does not match your known_hosts" in status.stdout
    train = project.cloudtrain("train")
    assert train.returncode == 2
    assert "does not match your known_hosts" in train.stderr
    assert f"{project.name}-worker0: {project.name}-worker0" not in train.stderr
    up = project.cloudtrain("up", path, "--yes")
    assert up.returncode == 1
    assert "does not match your known_hosts" in up.stderr
    assert "internal" not in up.stderr
    known.write_text(before)
    assert project.cloudtrain("down", "--yes").returncode == 0


def test_a_whole_run_on_lent_machines(machines: list[SshdNode], tmp_path: Path) -> None:
    project, path = lent_project(machines, tmp_path / "project")
    done = project.cloudtrain("run", path)
    assert done.returncode == 0, done.stderr
    assert project.runs()[0]["state"] == "succeeded"
    for machine in machines:
        assert keys_on(machine) == []
        assert not (machine.home / ".cloudtrain").exists()
        assert machine.runs


# ── whose it is ──────────────────────────────────────────────────────────────


def config_file(machines: list[SshdNode], folder: Path) -> Path:
    """Of a chief on each machine that there is, by its own sshd."""
    folder.mkdir(exist_ok=True)
    hosts = [
        {
            "address": machine.node.address,
            "port": machine.node.ssh_port,
            "user": machine.node.user,
            "role": role,
        }
        for machine, role in zip(machines, ["chief", "worker"], strict=True)
    ]
    path = folder / "mnist.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "provider": "hosts",
                "hosts": hosts,
                "strategy": "multi_worker_mirrored",
                "code": {"path": str(folder)},
                "train": {"command": "echo"},
            }
        )
    )
    return path


def test_the_owner_the_machine_and_the_folder_stand_on_a_lent_machine(
    machines: list[SshdNode], tmp_path: Path
) -> None:
    ann = Owner(id="0123456789ab", name="ann", machine="laptop-1")
    plan, hosts = replace(make_plan(), owner=ann), provider(machines)
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    told = json.loads((machines[0].home / ".cloudtrain/mnist/owner").read_text())
    assert told == {"id": ann.id, "name": "ann", "machine": "laptop-1", "folder": "."}
    assert {node.owner for node in hosts.nodes("mnist")} == {ann}
    (machines[0].home / ".cloudtrain/mnist/owner").unlink()  # as of an earlier version
    assert {node.owner for node in hosts.nodes("mnist")} == {ann, Owner()}
    (machines[1].home / ".cloudtrain/mnist/owner").write_text("[]")
    assert {node.owner for node in hosts.nodes("mnist")} == {Owner()}


def test_what_another_person_has_on_a_lent_machine_is_left_alone(
    machines: list[SshdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    ann = Owner(id="0123456789ab", name="ann", machine="laptop-1")
    plan, hosts = replace(make_plan(), owner=ann), provider(machines)
    hosts.create(plan, make_identity(tmp_path, plan), no_journal)
    path = str(config_file(machines, tmp_path / "of eve"))
    for words in (["up"], ["train"], ["down"], ["down", "--discard"]):
        done = CliRunner().invoke(cli, [words[0], path, *words[1:]])
        assert done.exit_code == 2, (words, done.stderr)
        assert "mnist is not yours" in done.stderr
        assert "owned by ann (0123456789ab), created on laptop-1" in done.stderr
    assert len(hosts.nodes("mnist")) == 2
    done = CliRunner().invoke(cli, ["down", path, "--owner", "ann", "--discard", "--yes"])
    assert done.exit_code == 0, done.stderr
    assert hosts.nodes("mnist") == ()


def test_down_of_what_never_was_says_that_a_silent_host_did_not_answer(
    machines: list[SshdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    without_patience(monkeypatch)
    path = str(config_file(machines, tmp_path / "project"))
    machines[1].stop()
    for words in ((), ("--discard",)):
        done = CliRunner().invoke(cli, ["down", path, "--yes", *words])
        assert done.exit_code == 6, done.stderr
        assert "no answer from" in done.stderr
        assert "keys" not in done.stderr
        assert "not deleted" not in done.stderr
    assert CliRunner().invoke(cli, ["up", path, "--yes"]).exit_code == 1
