"""What a new Python loads for one thing, and what not. Of all commands: test_cli_process.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cloudtrain.config import load, to_json
from cloudtrain.providers import NAMES
from cloudtrain.ssh.keys import create_identity
from tests.support.project import ROOT


def test_neither_libcloud_nor_gpuhunt_is_imported_for_a_plan() -> None:
    code = (
        "import sys; from cloudtrain.catalog import price; from cloudtrain.money.estimate import "
        "estimate; from cloudtrain.catalog import refresh;"
        "print({'libcloud', 'gpuhunt', 'requests'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_gpus_are_listed_without_any_clouds_library(tmp_path: Path) -> None:
    code = (
        "import sys; from cloudtrain.cli.app import run; assert run(['gpus', 'T4']) == 0\n"
        "names = {'libcloud', 'boto3', 'google', 'azure', 'requests', 'gpuhunt', 'pydantic'}\n"
        "print(sorted(names & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "CLOUDTRAIN_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "g4dn.xlarge" in done.stdout


def test_a_record_is_read_without_the_libraries_that_read_files(tmp_path: Path) -> None:
    """`status --offline` and `--help` must stay quick."""
    record = tmp_path / "config.json"
    record.write_text(json.dumps(to_json(load(ROOT / "configs" / "local.yaml"))))
    code = (
        "import json, sys; from cloudtrain.config import from_json\n"
        "from_json(json.load(open(sys.argv[1])))\n"
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code, str(record)]
    assert subprocess.run(arguments, capture_output=True, text=True).stdout == "[]\n"


def test_reading_keys_loads_no_crypto_library(tmp_path: Path) -> None:
    create_identity(tmp_path, ["mnist-chief0"])
    code = (
        "import sys, pathlib; from cloudtrain.ssh.keys import load_identity; "
        f"load_identity(pathlib.Path({str(tmp_path)!r})); "
        "print([m for m in ('cryptography', 'paramiko', 'fabric') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert output == "[]\n"


ROW = ("", ".facts", ".ssh_service")
"""Modules of a provider that make up its row of facts."""


def test_a_plan_loads_nothing_that_speaks_to_a_node_a_store_or_a_cloud() -> None:
    """It is asked often, while one writes a config: each part that it does not need is time."""
    program = (
        "import sys; import cloudtrain.config, cloudtrain.config.validation;"
        "import cloudtrain.commands.plan;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    ours = {name.split(".")[1] for name in loaded if name.startswith("cloudtrain.")}
    assert "cloudtrain.cluster.provision" not in loaded
    assert not ours & {"artifacts", "setup"}
    ssh = {name.removeprefix("cloudtrain.ssh.") for name in loaded if "cloudtrain.ssh." in name}
    assert ssh <= {"keys", "ssh_proxy", "node_proxy"}
    prefix = "cloudtrain.providers."
    providers = {name.removeprefix(prefix) for name in loaded if name.startswith(prefix)}
    facts = {f"{name}{part}" for name in NAMES for part in ROW} | {"base", "base.fact_tables"}
    assert providers <= facts, "but for facts, which import no SDK"
    assert not set(loaded) & {"cloudtrain.runs.supervise", "ssl", "subprocess", "concurrent"}
