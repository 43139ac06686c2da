"""`check --gpu` asks a machine over SSH, and reads a pretended nvidia-smi there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudtrain.checks.host_gpus import judged
from cloudtrain.cli.app import cli
from cloudtrain.core import ship
from tests.support.lent import lent_home
from tests.support.sshd import sshd_nodes

SMI = """\
#!/bin/sh
case "$*" in
    *compute-apps*) echo "4242, /usr/bin/python3, 512";;
    *name,*)
        for gpu in 0 1; do echo "NVIDIA A10G, 535.183.01, 23028, 512, Enabled, Default"; done
        echo "WARNING: infoROM is corrupted at gpu 0000:00:1E.0"
        exit 14;;
    *compute_cap*) echo 8.6; echo 8.6;;
    *mig.mode*) echo "[N/A]"; echo "[N/A]";;
    *fabric*) echo 'Field "fabric.state" is not a valid field to query.'; exit 2;;
    *ecc*) echo 0; echo 2;;
esac
"""


def test_the_facts_are_those_of_nvidia_smi_as_far_as_the_driver_knows_the_fields(
    tmp_path: Path,
) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    work = """if True:
        import os, sys
        print('{"phase": "matrix product"}', flush=True)
        assert sys.stdin.readline() == "go\\n"
        print('{"tflops": [58.1]}\\n{"done": true}', flush=True)
    """
    order = json.dumps({"python": "venv/bin/python", "gpus": 2, "work": work})
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    asked = [sys.executable, "-I", "-S", "-c", ship.text("gpu_facts.py"), order]
    done = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["problem"] is None
    assert [gpu["compute_cap"] for gpu in facts["gpus"]] == ["8.6", "8.6"]
    assert "fabric.state" not in facts["gpus"][0]
    assert facts["processes"] == [["4242", "/usr/bin/python3", "512"]]
    assert facts["proof"] == {"phase": "matrix product", "tflops": [58.1], "done": True}
    told = {what: good for what, _, _, good in judged(facts, None, "2.21")}
    assert told["driver"]
    assert told["ECC"] is False
    smi.write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    done = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["problem"] == "No devices were found"


@pytest.mark.openssh
def test_each_machine_is_asked_once_and_nothing_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd_nodes(tmp_path / "machines", ["a"]) as machines:
        node = machines[0].node
        home = lent_home(tmp_path / "home", machines)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
        before = sorted(machines[0].home.rglob("*"))
        file = tmp_path / "mine.yaml"
        host = f"{{address: {node.address}, port: {node.ssh_port}, user: {node.user}, role: "
        text = f"provider: hosts\nhosts:\n  - {host}chief}}\nstrategy: one_device\n"
        file.write_text(text + "setup: {tensorflow: '2.21'}\ntrain: {command: 'true'}\n")
        done = CliRunner().invoke(cli, ["check", "--gpu", "--json", "--trust", str(file)])
        assert done.exit_code == 1, done.output
        assert json.loads(done.stdout)["findings"] == [
            {
                "what": "chief0 driver",
                "place": None,
                "ok": False,
                "told": True,
                "text": "nvidia-smi: command not found",
                "hint": "install NVIDIA's driver, with nvidia-smi",
                "exit_code": 1,
            }
        ]
        assert sorted(machines[0].home.rglob("*")) == before
        done = CliRunner().invoke(cli, ["check", "--gpu", "--trust", str(file)])
        assert done.output.splitlines()[-1] == "1 of 1 findings would stop a training"
