"""A machine of `hosts` whose answers or connection are broken, asked without OpenSSH."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import paramiko
import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import NodeError
from cloudtrain.core.model import Accelerator, ClusterConfig, Host, NodeGroup, Setup
from cloudtrain.providers.hosts import machine_scripts, provider, user_ssh
from cloudtrain.providers.hosts.provider import _host_facts
from tests.support.fakes import key_pair

ASK = """
import sys
from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Host
from cloudtrain.providers.hosts.user_ssh import open_session

try:
    host = Host(address="127.0.0.1", port=int(sys.argv[1]), role="chief")
    with open_session("mnist-chief0", host):
        pass
except NodeUnreachable as error:
    print(error.message)
"""


def test_a_server_that_is_no_ssh_server_leaves_no_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (tmp_path / ".ssh").mkdir()
        known = f"[127.0.0.1]:{port} {' '.join(key_pair()[1].split()[:2])}\n"
        (tmp_path / ".ssh" / "known_hosts").write_text(known)

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(b"SSH-1.0-rubbish\r\n")

        threading.Thread(target=serve, daemon=True).start()
        asked = subprocess.run(
            [sys.executable, "-c", ASK, str(port)],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "no answer from " in asked.stdout
    assert asked.stderr == ""


class Lost:
    """A channel of a connection that is lost."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def close(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [EOFError(), OSError("lost"), paramiko.SSHException("lost")])
def test_the_limit_of_an_answer_ends_silently_once_the_connection_is_lost(
    error: Exception,
) -> None:
    user_ssh._close(Lost(error))  # type: ignore[arg-type]


def facts_with(folder: Path, tool: str, text: str) -> str:
    """What a machine tells whose `tool` is this script."""
    (folder / tool).write_text(f"#!/bin/sh\n{text}\n")
    (folder / tool).chmod(0o755)
    answered = subprocess.run(
        [shutil.which("sh") or "sh", "-c", machine_scripts.FACTS],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return answered.stdout


def test_a_df_that_prints_rubbish_is_no_machine_with_0_gb_free(tmp_path: Path) -> None:
    said = facts_with(tmp_path, "df", "echo x; echo y z rubbish rubbish rubbish")
    with pytest.raises(NodeError, match="uname, python3 and df answer "):
        _host_facts("mnist-chief0", said)


@pytest.mark.parametrize(("driver", "found"), [("550.90.12", 1), ("570.86.15", 0)])
def test_a_driver_that_is_too_old_for_release_and_gpu_is_a_finding(
    tmp_path: Path, driver: str, found: int
) -> None:
    row = f"echo 'NVIDIA H100 80GB HBM3, {driver}'"
    text = _host_facts("mnist-chief0", facts_with(tmp_path, "nvidia-smi", f"{row}; {row}"))
    assert f", 2 NVIDIA H100 80GB HBM3 driver {driver}, " in text
    plan = make_plan(
        ClusterConfig(
            name="mnist",
            provider="hosts",
            strategy="mirrored",
            nodes={"chief": NodeGroup(accelerator=Accelerator(kind="H100", count=2))},
            hosts=(Host(address="a", role="chief"),),
            setup=Setup(tensorflow="2.21"),
        )
    )
    old = list(provider.old_drivers(plan, {"chief0": text}))
    assert [(each.what, each.text, each.hint) for each in old] == [
        (
            "gpus",
            "chief0: driver 550.90.12: TensorFlow 2.21 needs 555 or newer on H100",
            'install driver 555 or newer, or set `setup.tensorflow: "2.18"`; `check --gpu` says '
            "more",
        )
    ] * found
