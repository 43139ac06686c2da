"""The first-boot data: what cloud-init reads in it, and what its boot commands do when run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.core.model import HostKey
from cloudtrain.core.shell import Secret
from cloudtrain.providers.base.boot import user_data
from cloudtrain.state.files import write_whole
from tests.support.fakes import eventually, key_pair

PRIVATE, PUBLIC = key_pair()
HOST_KEY = HostKey(public=PUBLIC, private=Secret(PRIVATE))


def made(public_key: str = "ssh-ed25519 AAAA us", expires: float | None = None) -> dict[str, Any]:
    text = user_data(public_key=public_key, host_key=HOST_KEY, expires=expires)
    assert text.startswith("#cloud-config\n")
    assert len(text.encode()) < 16384
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def test_one_user_with_our_key_and_no_password_and_no_other() -> None:
    document = made()
    (user,) = document["users"]
    assert user["name"] == "cloudtrain"
    assert user["ssh_authorized_keys"] == ["ssh-ed25519 AAAA us"]
    assert user["lock_passwd"] is True
    assert user["sudo"] == "ALL=(ALL) NOPASSWD:ALL"
    assert document["ssh_pwauth"] is False
    assert document["disable_root"] is True
    assert document["allow_public_ssh_keys"] is False


def test_the_host_key_arrives_as_it_was_made_and_is_the_only_one() -> None:
    document = made()
    assert document["ssh_keys"] == {"ed25519_private": PRIVATE, "ed25519_public": f"{PUBLIC}\n"}
    assert document["ssh_deletekeys"] is True


@pytest.mark.parametrize("key", ["ssh-rsa A: b # 'c' \"d\"", "{x}: [y]", "é ✓ \\ %s $HOME `id`"])
def test_whatever_a_key_holds_it_is_read_back_as_it_was(key: str) -> None:
    assert made(key)["users"][0]["ssh_authorized_keys"] == [key]


def test_boot_commands_end_well_and_say_nothing_where_there_is_no_systemd(tmp_path: Path) -> None:
    done = run_boot_commands(made(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_node_past_its_deadline_shuts_down_at_once(tmp_path: Path) -> None:
    run_boot_commands(made(expires=time.time() - 5), tmp_path)
    eventually((tmp_path / "shutdown.called").exists)
    eventually(lambda: (tmp_path / "shutdown.called").read_text() == "-P now\n")


def test_a_node_lives_until_its_deadline_and_no_longer(tmp_path: Path) -> None:
    deadline, called = int(time.time()) + 2, tmp_path / "shutdown.called"
    run_boot_commands(made(expires=deadline), tmp_path)
    eventually(called.exists)
    assert called.stat().st_mtime >= deadline


def test_the_boot_does_not_wait_for_the_deadline(tmp_path: Path) -> None:
    place = tmp_path / "var/lib/cloudtrain/end"
    place.parent.mkdir(parents=True)
    run_boot_commands(made(expires=time.time() + 3600), tmp_path, sleep="touch")
    eventually((tmp_path / "slept").exists)
    assert not (tmp_path / "shutdown.called").exists()
    write_whole(place, b"1\n")
    eventually((tmp_path / "shutdown.called").exists)


def test_a_shutdown_that_fails_is_asked_for_again(tmp_path: Path) -> None:
    run_boot_commands(made(expires=1), tmp_path, shutdown="[ -e {folder}/slept ]", sleep="touch")
    eventually((tmp_path / "shutdown.called").exists)
    eventually(lambda: len((tmp_path / "shutdown.called").read_text().splitlines()) == 2)


def test_an_end_that_was_moved_counts_and_is_read_while_it_waits(tmp_path: Path) -> None:
    place = tmp_path / "var/lib/cloudtrain/end"
    place.parent.mkdir(parents=True)
    place.write_text(f"{int(time.time()) + 3600}\n")
    run_boot_commands(made(expires=time.time() - 5), tmp_path, sleep="touch")
    eventually((tmp_path / "slept").exists)
    assert not (tmp_path / "shutdown.called").exists()
    write_whole(place, b"off\n")
    time.sleep(0.2)
    assert not (tmp_path / "shutdown.called").exists()
    write_whole(place, f"{int(time.time())}\n".encode())
    eventually((tmp_path / "shutdown.called").exists)


def test_what_stands_there_and_is_no_time_counts_for_nothing(tmp_path: Path) -> None:
    place = tmp_path / "var/lib/cloudtrain/end"
    place.parent.mkdir(parents=True)
    place.write_text("soon; rm -rf /\n")
    run_boot_commands(made(expires=1), tmp_path)
    eventually((tmp_path / "shutdown.called").exists)


def run_boot_commands(
    document: dict[str, Any], folder: Path, *, shutdown: str = "true", sleep: str = ""
) -> subprocess.CompletedProcess[str]:
    """As cloud-init does: one sh script of all lines (cloudinit.util.shellify)."""
    programs = folder / "programs"
    programs.mkdir()
    stubs = {
        "shutdown": f"echo $* >>{folder}/shutdown.called\n" + shutdown.format(folder=folder),
        "systemctl": "exit 5",
    }
    if sleep:
        stubs["sleep"] = f"touch {folder}/slept"
    for name, body in stubs.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    # The machine that runs the tests keeps its own apt settings.
    lines = [line.replace("/etc/", f"{folder}/etc/") for line in document["bootcmd"]]
    lines = [line.replace("/var/lib/", f"{folder}/var/lib/") for line in lines]
    (folder / "etc" / "apt" / "apt.conf.d").mkdir(parents=True)
    script = folder / "bootcmd.sh"
    script.write_text("#!/bin/sh\n" + "".join(f"{line}\n" for line in lines))
    done = subprocess.run(
        ["/bin/sh", str(script)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )
    periodic = (folder / "etc/apt/apt.conf.d/99cloudtrain").read_text()
    assert 'APT::Periodic::Enable "0";' in periodic
    return done
