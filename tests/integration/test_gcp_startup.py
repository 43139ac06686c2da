"""The first boot without cloud-init: the script runs here, on a folder in place of the root."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cloudtrain.core.model import HostKey
from cloudtrain.core.shell import Secret
from cloudtrain.providers.base.boot import user_data
from cloudtrain.providers.gcp.startup import MARKER, slice_script, startup_script

PUBLIC = "ssh-ed25519 AAAAC3Nz its host key"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"
USER_KEY = "ssh-ed25519 AAAAuser it's me"
DATA = user_data(
    public_key=USER_KEY, host_key=HostKey(public=PUBLIC, private=Secret(KEY)), expires=None
)
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"


class Machine:
    """Folders and commands that only root may touch, each command a line in a log."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.log = folder / "log"
        for name in ("etc/ssh", "etc/sudoers.d", "var/lib", "home/cloudtrain"):
            (self.root / name).mkdir(parents=True)
        self.bin.mkdir()
        self.log.touch()
        for name in ("useradd", "usermod", "chown", "systemctl", "service"):
            self.command(name, "true")
        self.command("id", "false")
        self.command("getent", f"echo cloudtrain:x:1:1::{self.root}/home/cloudtrain:/bin/bash")

    def command(self, name: str, does: str) -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >>{self.log}\n{does}\n')
        path.chmod(0o755)

    def boot(self, script: str) -> None:
        moved = re.sub(r"(?<![\w.])/(etc|var|usr/bin/google)", rf"{self.root}/\1", script)
        path = f"{self.bin}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", moved], env={"PATH": path}, check=True, capture_output=True)

    def text(self, path: str) -> str:
        return (self.root / path).read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_does_what_the_cloud_config_says(machine: Machine) -> None:
    (machine.root / "etc/ssh/ssh_host_rsa_key").write_text("another")
    machine.boot(startup_script(DATA))
    assert machine.text(HOST_KEY) == KEY
    assert machine.text(f"{HOST_KEY}.pub") == f"{PUBLIC}\n"
    assert (machine.root / HOST_KEY).stat().st_mode & 0o777 == 0o600
    assert not (machine.root / "etc/ssh/ssh_host_rsa_key").exists()
    assert machine.text("home/cloudtrain/.ssh/authorized_keys") == f"{USER_KEY}\n"
    assert machine.text("etc/sudoers.d/90-cloudtrain") == "cloudtrain ALL=(ALL) NOPASSWD:ALL\n"
    log = machine.log.read_text().splitlines()
    assert "useradd --create-home --shell /bin/bash cloudtrain" in log
    assert "systemctl restart ssh" in log


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        # The plugin agent alone: no file, no /usr/bin/google_guest_agent.
        ({}, {"": "[InstanceSetup]\nset_host_keys = false\n"}),
        # Google's deb and rpm.
        (
            {".distro": "[InstanceSetup]\nset_host_keys = true\n", "": "[Daemons]\nx = 1\n"},
            {
                ".distro": "[InstanceSetup]\nset_host_keys = false\n",
                "": "[Daemons]\nx = 1\n[InstanceSetup]\nset_host_keys = false\n",
            },
        ),
        (
            {
                "": "[InstanceSetup]\nset_host_keys=true\n",
                ".template": "[InstanceSetup]\n  set_host_keys = true\nset_multiqueue = true\n",
            },
            {
                "": "[InstanceSetup]\nset_host_keys = false\n",
                ".template": "[InstanceSetup]\nset_host_keys = false\nset_multiqueue = true\n",
            },
        ),
    ],
)
def test_no_agent_of_googles_replaces_our_host_key(
    machine: Machine, present: dict[str, str], expected: dict[str, str]
) -> None:
    """Whichever is installed, and again at each boot: a package may come with an update."""
    folder = machine.root / "etc/default"
    folder.mkdir()
    for ending, text in present.items():
        (folder / f"instance_configs.cfg{ending}").write_text(text)
    for _ in range(2):
        for line in yaml.safe_load(DATA)["bootcmd"]:
            if "instance_configs" in line:
                machine.boot(line)
        found = {
            path.name[len("instance_configs.cfg") :]: path.read_text() for path in folder.iterdir()
        }
        assert found == expected


def test_a_second_boot_puts_no_old_host_key_back(machine: Machine) -> None:
    machine.boot(startup_script(DATA))
    (machine.root / HOST_KEY).write_text("a newer one")
    machine.boot(startup_script(DATA))
    assert machine.text(HOST_KEY) == "a newer one"


def test_where_cloud_init_is_it_does_nothing(machine: Machine) -> None:
    machine.command("cloud-init", "true")
    machine.boot(startup_script(DATA))
    assert not (machine.root / HOST_KEY).exists()
    assert machine.log.read_text() == ""


def test_one_that_was_cut_off_is_done_again(machine: Machine) -> None:
    machine.command("chown", "false")
    with pytest.raises(subprocess.CalledProcessError):
        machine.boot(startup_script(DATA))
    assert not (machine.root / MARKER.lstrip("/")).exists()
    machine.command("chown", "true")
    machine.boot(startup_script(DATA))
    assert machine.text(HOST_KEY) == KEY


def test_nothing_in_the_data_is_read_by_the_shell(machine: Machine) -> None:
    document = yaml.safe_load(DATA)
    document["users"][0]["ssh_authorized_keys"] = [
        "ssh-ed25519 AAAA $(touch /var/lib/gone) `x` ' \""
    ]
    machine.boot(startup_script(yaml.safe_dump(document)))
    assert "$(touch" in machine.text("home/cloudtrain/.ssh/authorized_keys")
    assert not (machine.root / "var/lib/gone").exists()


def test_metadata_takes_it() -> None:
    """https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations"""
    assert len(startup_script(DATA).encode()) < 256 * 1024


def test_each_host_of_a_tpu_applies_its_own_data_alone(machine: Machine) -> None:
    """All hosts have the same script; the metadata server says the host's number."""
    data = [
        user_data(
            public_key=USER_KEY,
            host_key=HostKey(public=PUBLIC, private=Secret(KEY.replace("c2Vj", f"host{n}"))),
            expires=None,
        )
        for n in range(3)
    ]
    machine.command("python3", "echo 1")
    machine.boot(slice_script(data))
    assert "host1" in machine.text(HOST_KEY)
    assert USER_KEY in machine.text("home/cloudtrain/.ssh/authorized_keys")
    machine.command("python3", "echo 2")
    machine.boot(slice_script(data))
    assert "host1" in machine.text(HOST_KEY), "a host key that was changed since stays"


def test_a_host_that_does_not_learn_its_number_applies_nothing(machine: Machine) -> None:
    machine.command("python3", "echo 7")
    with pytest.raises(subprocess.CalledProcessError):
        machine.boot(slice_script([DATA, DATA]))
    assert not (machine.root / HOST_KEY).exists()
