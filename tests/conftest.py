"""What several test files share."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

TENSORFLOW = ("tensorflow-cpu==2.21.*", "scikit-learn", "tensorboard")
TF_KERAS = "tf-keras==2.21.*"


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    """An interpreter that has TensorFlow: $CLOUDTRAIN_TEST_PYTHON, or one made once and kept."""
    if given := os.environ.get("CLOUDTRAIN_TEST_PYTHON"):
        return Path(given)
    cache = Path(platformdirs.user_cache_dir("cloudtrain")) / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Several pytest workers ask at once: the first makes it, the others wait for it here.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _environment(cache / f"tensorflow-py{sys.version_info[0]}{sys.version_info[1]}")


def _environment(folder: Path) -> Path:
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *TENSORFLOW], check=True)
        # With its dependencies it would bring the full tensorflow on top of tensorflow-cpu.
        subprocess.run([*pip, "--no-deps", TF_KERAS], check=True)
        ready.touch()
    return python
