"""No file of the folder in which a command is typed is run, whatever its name."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.checks.script_code import DeliveredRepository
from cloudtrain.core import own_python
from cloudtrain.core.errors import CloudtrainError

ROOT = Path(__file__).parents[2]
TOO_EARLY = """
collections contextlib functools keyword operator reprlib types warnings
"""
"""`python -m` itself imports these before the first line of ours."""
NAMES = """
queue sitecustomize usercustomize tensorflow tensorboard pip matplotlib numpy yaml click re json
logging enum typing threading socket ast inspect copy signal weakref paramiko
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which each module that is imported leaves a file."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in f"{NAMES} {TOO_EARLY}".split():
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n"
        (folder / f"{name}.py").write_text(text)
    (folder / "matplotlibrc").write_bytes(b"\xff\xfe\x00")
    (folder / "c.yaml").write_text(
        "provider: local\nstrategy: mirrored\ncode: {path: .}\n"
        "train: {command: python tensorflow.py}\n"
    )
    return folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran = folder.parent / "ran"
    assert not ran.exists(), ran.read_text()
    return done.stdout


@pytest.mark.parametrize("safe_path", [False, *([True] if sys.version_info >= (3, 11) else [])])
def test_what_we_start_imports_nothing_of_it(folder: Path, safe_path: bool) -> None:
    for module in ("pip", "tensorboard.main"):
        command = own_python.module(module, "--help", safe_path=safe_path)
        assert "usage" in run(folder, *command).lower()


def test_the_program_itself_imports_nothing_of_it(folder: Path) -> None:
    for name in TOO_EARLY.split():
        (folder / f"{name}.py").unlink()
    assert "mirrored" in run(folder, sys.executable, "-m", "cloudtrain", "plan", "c.yaml")


DRAW = """
from cloudtrain.report.chart import figure
from cloudtrain.report.facts import Chart, Series
one = Series(name="chief", attempt=1, x=(1.0, 2.0, 3.0, 4.0), y=(1.0, 2.0, 3.0, 4.0))
print("<svg" in str(figure(1, Chart(metric="loss", unit="step", series=(one,)))))
"""


def test_a_chart_is_drawn_beside_a_matplotlibrc_that_is_none(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    text = f"import sys; sys.path[:] = sys.argv[1:]\n{DRAW}"
    command = own_python.code(text, str(ROOT), *own_python.import_path())
    assert run(folder, *command).strip() == "True"


def test_reading_a_repository_starts_nothing_that_its_configuration_names(tmp_path: Path) -> None:
    """A partial clone whose missing file would be fetched by a program of its own choice."""
    ran, origin, clone = tmp_path / "ran", tmp_path / "origin", tmp_path / "clone"

    def git(*words: str) -> None:
        mine = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", *mine, *words], check=True, capture_output=True)

    git("init", "--quiet", str(origin))
    (origin / "train.py").write_text("x = 1\n")
    git("-C", str(origin), "add", ".")
    git("-C", str(origin), "commit", "--quiet", "-m", "x")
    git("-C", str(origin), "config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--no-checkout", "--filter=blob:none", origin.as_uri(), str(clone))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\nexit 1\n")
    program.chmod(0o755)
    for name in ("remote.origin.uploadpack", "core.fsmonitor", "core.sshCommand"):
        git("-C", str(clone), "config", name, str(program))
    with suppress(CloudtrainError):  # its size is not here
        assert DeliveredRepository(str(clone), "HEAD").read("train.py") in (None, b"x = 1\n")
    assert not ran.exists()
