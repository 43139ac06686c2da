"""OpenSSH's own programs read our ssh_config as it is meant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cloudtrain.ssh.keys import create_identity, ssh_config
from tests.support.keys_parts import NAMES, NODES


def test_ssh_config_is_read_by_ssh_as_it_is_meant(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("ssh is not on this machine")
    folder = tmp_path / "with a space & 100%h"
    identity = create_identity(folder, NAMES)
    config = tmp_path / "config"
    config.write_text(ssh_config(identity, NODES))
    output = subprocess.run(
        ["ssh", "-G", "-F", str(config), NAMES[1]], check=True, capture_output=True, text=True
    ).stdout
    found = dict(line.partition(" ")[::2] for line in output.splitlines())
    assert found["hostname"] == "127.0.0.2"
    assert found["port"] == "2222"
    assert found["user"] == "cloudtrain"
    assert found["identitiesonly"] == "yes"
    assert found["stricthostkeychecking"] == "true"
    assert found["hostkeyalgorithms"] == "ssh-ed25519"
    assert found["identityfile"].replace("%%", "%") == str(identity.private_key)
    assert found["userknownhostsfile"].replace("%%", "%") == str(identity.known_hosts)
