"""Nodes behind the stand-ins really boot: what the first-boot data does there, and how they end."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.core.shell import command
from cloudtrain.ssh.keys import load_identity
from cloudtrain.ssh.transport import SshTransport
from tests.standins.nodes import unavailable
from tests.support.fakes import eventually
from tests.support.one_machine import NAME, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if reason := unavailable():
        pytest.skip(reason)
    made = Machine(tmp_path)
    with made.nodes:
        yield made


def test_a_node_has_our_user_and_our_host_key_and_nobody_elses(machine: Machine) -> None:
    machine.start()
    machine.enter()
    assert machine.ask("id -un; sudo -n id -un; hostname").split() == ["cloudtrain", "root", NAME]
    users = machine.ask("awk -F: '$3 >= 1000 && $3 < 60000 {print $1}' /etc/passwd").split()
    assert users == ["cloudtrain"]
    assert machine.ask("cd /etc/ssh && ls ssh_host_*").split() == [
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    ]
    settings = machine.ask("sudo -n /usr/sbin/sshd -T").splitlines()
    assert "passwordauthentication no" in settings
    (shadow,) = machine.ask("sudo -n grep ^cloudtrain: /etc/shadow").splitlines()
    assert shadow.split(":")[1].startswith("!")
    assert socket.gethostname() != NAME, "the machine that plays the cloud keeps its own name"


def test_the_changed_host_key_stays_over_a_reboot(machine: Machine) -> None:
    machine.start()
    machine.enter()
    booted = machine.ask("cat /proc/1/stat").split()[21]
    boot_key = load_identity(machine.folder).host_keys[NAME]
    reboot(machine)
    eventually(lambda: boot_id(machine) not in ("", booted))
    assert load_identity(machine.folder).host_keys[NAME].pins == boot_key.pins
    only_old = dataclasses.replace(boot_key, accepted=())
    identity = dataclasses.replace(load_identity(machine.folder), host_keys={NAME: only_old})
    with SshTransport(identity) as transport, pytest.raises(HostKeyMismatch):
        transport.ask(machine.node, ":")
    assert machine.down == [], "a reboot is no end"


def reboot(machine: Machine) -> None:
    with suppress(NodeUnreachable):  # it may be off before it has answered
        machine.ask("sudo -n reboot")


def boot_id(machine: Machine) -> str:
    try:
        return machine.ask("cat /proc/1/stat").split()[21]
    except NodeUnreachable:
        return ""


def test_a_node_ends_by_itself_also_after_a_reboot(machine: Machine) -> None:
    machine.start(expires=time.time() + 3600)
    machine.enter()
    booted = boot_id(machine)
    # Moved to where the reboot of a busy machine does not come late.
    machine.ask("sudo -n mkdir -p /var/lib/cloudtrain")
    with suppress(NodeUnreachable):
        machine.ask(
            "date +%s -d '8 seconds' | sudo -n tee /var/lib/cloudtrain/end && sudo -n reboot"
        )
    eventually(lambda: machine.down == [NAME] or boot_id(machine) not in ("", booted))
    eventually(lambda: machine.down == [NAME])
    assert not machine.answers()
    assert machine.nodes.running() == []


def test_a_node_that_comes_back_after_its_deadline_ends_at_once(machine: Machine) -> None:
    machine.start(expires=time.time() - 60)
    eventually(lambda: machine.down == [NAME])


def test_a_node_that_is_started_again_has_its_disk_as_it_was(machine: Machine) -> None:
    machine.start()
    machine.enter()
    machine.ask("echo kept >file && sync")
    machine.nodes.halt(NAME)
    assert not machine.answers()
    machine.start()
    machine.enter()
    assert machine.ask("cat file") == "kept\n"


def test_a_stopped_node_leaves_nothing(machine: Machine) -> None:
    machine.start()
    machine.enter()
    with SshTransport(load_identity(machine.folder)) as transport:
        line = "setsid sleep 1234 </dev/null >/dev/null 2>&1 & echo $!"
        transport.run(machine.node, command("sh", "-c", line))
    machine.nodes.stop(NAME)
    assert not machine.answers()
    assert processes(str(machine.nodes._root)) == []
    assert list(machine.nodes._root.iterdir()) == []
    assert machine.down == []


def test_the_cpu_seconds_of_a_node_count_what_has_ended_there(machine: Machine) -> None:
    machine.start()
    machine.enter()
    before = machine.nodes.cpu_seconds(NAME)
    busy = "import time\nwhile time.process_time() < 1: pass"
    machine.ask(f"sh -c \"python3 -c '{busy}' & wait\"; setsid python3 -c '{busy}' & wait")
    eventually(lambda: machine.nodes.cpu_seconds(NAME) >= before + 2)


def test_a_node_has_files_of_its_own(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    made = Machine(tmp_path, own_files=lambda name: {"etc/pip.conf": f"# of {name}\n"})
    with made.nodes:
        made.start()
        made.enter()
        assert made.ask("cat /etc/pip.conf") == f"# of {NAME}\n"


def test_nodes_of_a_stand_in_that_is_killed_end_with_it(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    code = (
        "import time; from tests.standins.nodes import Nodes; nodes = Nodes(); "
        "address = nodes.address(); nodes.start('a', '#cloud-config\\n{}\\n', address); "
        "print(address, nodes._root, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    stand_in = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert stand_in.stdout is not None
    _, folder = stand_in.stdout.readline().split()
    eventually(lambda: processes(folder) != [])
    stand_in.send_signal(signal.SIGKILL)
    stand_in.wait()
    eventually(lambda: processes(folder) == [])


def processes(word: str) -> list[int]:
    """Those that have it on their command line or among their mounts."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            mounts = Path(f"/proc/{name}/mounts").read_bytes()
        except OSError:
            continue
        if word.encode() in words + mounts:
            found.append(int(name))
    return found
