"""A script of a stranger in a local node: it reaches nothing of the machine that runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = "/usr/bin/python3"
"""That everybody may read: this one may be in root's home."""
USERS = ["this user", *(["an ordinary user"] if os.getuid() == 0 else [])]


def command(user: str, folder: Path) -> list[str]:
    program = ["-m", "tests.support.local_attacks", str(folder)]
    if user == "this user":
        return [sys.executable, *program]
    os.chown(folder, 65534, 65534)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return [*as_nobody, SYSTEM_PYTHON, *program]


@pytest.mark.parametrize("user", USERS)
def test_a_task_reaches_nothing_of_its_user_of_other_clusters_or_of_the_machine(user: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cloudtrain-attacks-"))
    folder.chmod(0o755)
    packages = next(path for path in sys.path if Path(path, "paramiko").is_dir())
    try:
        done = subprocess.run(
            command(user, folder),
            cwd="/",
            env={
                "PATH": os.environ["PATH"] if user == "this user" else os.defpath,
                "HOME": str(folder),
                "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["refused"] == []
    assert said["uid"] == (os.getuid() if user == "this user" else 65534)
    assert said["found"] == {}
    assert said["reached"] == []
    assert [Path(path).name for path in said["written"]] == ["gcloud"]
    assert said["runs_again"]
