"""What several tests of a run ask for and one of them makes, whichever process that is in."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of pytest-xdist have in common; without it, this process'."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """What `make` returned, to whoever asked first, as JSON has it. Others wait for it. Where it
    fails, the next one makes it."""
    kept = folder / f"{name}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            made = json.dumps(make())
            kept.write_text(made)
        return json.loads(kept.read_text())
