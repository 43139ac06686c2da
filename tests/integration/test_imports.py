"""What a new Python loads for one thing, and what not. Of all commands: test_cli_process.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.config import load, to_json
from cloudtrain.core.run_record import Run
from cloudtrain.providers import NAMES
from cloudtrain.ssh.keys import create_identity
from cloudtrain.state import Records
from tests.support.project import ROOT


def test_neither_libcloud_nor_gpuhunt_is_imported_for_a_plan() -> None:
    code = (
        "import sys; from cloudtrain.catalog import price; from cloudtrain.money.estimate import "
        "estimate; from cloudtrain.catalog import refresh;"
        "print({'libcloud', 'gpuhunt', 'requests'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_plan_loads_no_crypto_and_compiles_no_pattern_of_keys_that_it_does_not_need() -> None:
    """3 and 7 ms of its CPU, where `python -c pass` takes 12."""
    code = (
        "import re._compiler as compiler, sys; from cloudtrain.cli.app import run\n"
        "made, compiled = [], compiler.compile\n"
        "compiler.compile = lambda shape, flags: made.append(shape) or compiled(shape, flags)\n"
        "assert run(['plan', sys.argv[1]]) == 0\n"
        "keys = [shape for shape in made if 'AKIA' in str(shape) or 'xapp-' in str(shape)]\n"
        "print('_hashlib' in sys.modules, keys, file=sys.stderr)"
    )
    if sys.version_info < (3, 11):
        code = code.replace("re._compiler", "sre_compile")
    config = str(ROOT / "configs" / "local.yaml")
    done = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True)
    assert done.stderr == "False []\n"


def test_gpus_are_listed_without_any_clouds_library(tmp_path: Path) -> None:
    code = (
        "import sys; from cloudtrain.cli.app import run; assert run(['gpus', 'T4']) == 0\n"
        "names = {'libcloud', 'boto3', 'google', 'azure', 'requests', 'gpuhunt'}\n"
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
        "print('yaml' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, str(record)]
    assert subprocess.run(arguments, capture_output=True, text=True).stdout == "False\n"


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


MAIN = "; from cloudtrain.__main__ import main; main()"
ENTRIES = {
    "launch": "import json, cloudtrain.core.codec, cloudtrain.core.parallel, cloudtrain.ssh.keys;"
    "import cloudtrain.core.model, cloudtrain.core.shell, cloudtrain.ssh.transport",
    "help": f"sys.argv[1:] = ['--help']{MAIN}",
    "status": f"sys.argv[1:] = ['status', '--offline']{MAIN}",
    "plan": f"sys.argv[1:] = ['plan', sys.argv[1]]{MAIN}",
    "run": "import cloudtrain.cli.app, cloudtrain.cli.run, cloudtrain.commands.run",
}
COUNTED = """
import atexit, dataclasses, sys
at_first, made, real = len(sys.modules), [], dataclasses.dataclass
def counted(*classes, **options):
    made.extend(classes)
    return real(*classes, **options)
dataclasses.dataclass = counted
atexit.register(lambda: print(len(sys.modules) - at_first, len(made), file=sys.stderr))
"""


@pytest.mark.parametrize(
    ("entry", "modules", "classes"),
    [("launch", 64, 6), ("help", 42, 0), ("status", 92, 18), ("plan", 285, 72), ("run", 400, 42)],
)
def test_start_up_stays_in_its_budget(
    entry: str, modules: int, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By modules and by classes whose methods are compiled, as no load of the machine changes
    them; bench/startup.py has the time."""
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    records = Records("mnist")
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    run = Run(id="", cluster="mnist", command="", tasks=(), state="stopped", created=1.0, ended=2.0)
    for number in range(10):
        records.save_run(replace(run, id=f"20261121-06240{number}-aaaa"))
    arguments = [sys.executable, "-c", COUNTED + ENTRIES[entry], ROOT / "configs" / "local.yaml"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    loaded, made = map(int, done.stderr.split())
    assert modules / 2 < loaded <= modules
    assert made <= classes
