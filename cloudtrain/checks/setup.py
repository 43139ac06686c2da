"""Faults in `setup:`, by the tables and the files that it names."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from cloudtrain.config import requirement_forms, requirements
from cloudtrain.config.location import placed
from cloudtrain.core import own_python
from cloudtrain.core.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.playbooks import code_packages, folder, horovod, tensorflow, tensorflow_releases


def setup(config: ClusterConfig) -> str:
    """Text on what is installed. Raises ConfigError, UsageError."""
    wrong = setup_problems(config)
    if wrong:
        raise ConfigError(wrong)
    version = config.setup.tensorflow
    missing = missing_release(version) if version else None
    if missing is not None:
        raise UsageError(missing, hint="set `setup.tensorflow` to one that it has")
    also = [*config.setup.install]
    if config.setup.requirements:
        also.insert(0, config.setup.requirements)
    text = " and ".join([f"TensorFlow {version}" if version else "none", *also])
    notes = (tensorflow.newer_note(config), tensorflow.keras_note(config))
    return "; ".join(filter(None, [text, *notes]))


def setup_problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Versions that cannot be installed, alone or together, and requirements that cannot be read or
    installed."""
    found = [*tensorflow.problems(config), *horovod.problems(config)]
    try:
        found += requirement_forms.problems(config)
    except ConfigError as error:
        found += error.problems
    if code_packages.named(config):
        found += code_packages.problems(config, _delivered(config))
    return tuple(placed(config, problem) for problem in found)


def _delivered(config: ClusterConfig) -> frozenset[str] | None:
    """Paths in the delivered code; None for code of a git server, or if a folder cannot be read,
    which the finding on the code reports."""
    if config.code.path is None or config.code.git is not None:
        return None
    try:
        root = config.folder / Path(config.code.path).expanduser()
        return frozenset(entry.path for entry in folder.listing(config, root).entries)
    except CloudtrainError:
        return None


def setup_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Lines of requirements that give way to `setup.tensorflow`."""
    with suppress(ConfigError):  # a finding of its own
        return requirements.left_out_notes(config)
    return ()


# ── the package index ──────────────────────────────────────────────────────────
# Asked, as this user's pip reaches it, for a TensorFlow that the tables lack.


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
    newest = max(found, key=lambda each: [*map(int, re.findall(r"\d+", each)[:3])], default="none")
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
