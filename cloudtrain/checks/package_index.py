"""Asks the package index, as this user's pip reaches it, for a TensorFlow that the tables lack."""

from __future__ import annotations

import re

from cloudtrain.core import own_python
from cloudtrain.playbooks import tensorflow_releases

PACKAGE = "tensorflow-cpu"
PYTHONS = ("3.13", "3.12", "3.14")
"""One of them has wheels of any release that is newer than the tables."""
SECONDS = 20.0


def missing_release(version: str) -> str | None:
    """Error for a release that the index lacks; None if it has it, could not be asked, or need not
    be, as the tables know the release."""
    if not tensorflow_releases.is_newer(version):
        return None
    found: set[str] = set()
    for python in PYTHONS:
        listed = _listed(python)
        if listed is None:
            return None
        if any(each == version or each.startswith(f"{version}.") for each in listed):
            return None
        found |= set(listed)
    newest = max(found, key=_number, default="none")
    return f"TensorFlow {version} is not on the package index, whose newest {PACKAGE} is {newest}"


def _listed(python: str) -> list[str] | None:
    """Versions with wheels for this Python; None if pip or its index does not answer."""
    import subprocess  # slow: hardly any release is newer

    words = ["index", "versions", PACKAGE, "--python-version", python, "--only-binary", ":all:"]
    quiet = ["--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "5"]
    try:
        done = subprocess.run(
            own_python.module("pip", *words, *quiet),
            cwd=own_python.NEUTRAL,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if found:
        return found[1].split(", ")
    unknown = "No matching distribution found" in done.stderr and "connection" not in done.stderr
    return [] if unknown else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
