"""Interpreters of other versions for tests: docs/internals/development.md says where they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def python(minor: int) -> str:
    """Python 3.MINOR with venv: $CLOUDTRAIN_PYTHON3MINOR, python3.MINOR in PATH, or pyenv's. Skips
    the test by name if there is none.
    """
    name = f"python3.{minor}"
    places = [os.environ.get(f"CLOUDTRAIN_PYTHON3{minor}"), shutil.which(name)]
    places += sorted(map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))
    for place in filter(None, places):
        check = [place, "-c", f"import ensurepip, sys, venv; assert sys.version_info[1] == {minor}"]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return place
    page = "docs/internals/development.md"
    pytest.skip(f"needs Python 3.{minor}: set CLOUDTRAIN_PYTHON3{minor} ({page})")
