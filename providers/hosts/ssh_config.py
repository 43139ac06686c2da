"""Settings of a machine in the user's ~/.ssh/config."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SECONDS = 10.0


def options_of(address: str) -> Mapping[str, tuple[str, ...]]:
    """Options that the file sets for this address, by their names in lower case.

    OpenSSH itself is asked (`ssh -G`, https://man.openbsd.org/ssh#G), as it reads Include and Match
    too; without it, paramiko, which does not.
    """
    config = Path.home() / ".ssh" / "config"
    try:
        changed = config.stat().st_mtime_ns
    except OSError:
        return {}
    return _options(address, config, changed)


@cache
def _options(address: str, config: Path, changed: int) -> Mapping[str, tuple[str, ...]]:
    said, usual = _asked(address, str(config)), _asked(address, "none")
    if said is None or usual is None:
        return _by_paramiko(address, config)
    options: dict[str, tuple[str, ...]] = {}
    for line in said:
        name, _, value = line.partition(" ")
        if line not in usual and value != "none":
            options[name] = (*options.get(name, ()), value)
    return options


def _asked(address: str, config: str) -> list[str] | None:
    ssh = shutil.which("ssh")
    if ssh is None or address.startswith("-"):
        return None
    try:
        asked = subprocess.run(
            [ssh, "-F", config, "-G", "--", address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.splitlines()


def _by_paramiko(address: str, config: Path) -> Mapping[str, tuple[str, ...]]:
    import paramiko

    found = paramiko.SSHConfig.from_path(str(config)).lookup(address)
    return {
        name: tuple(value) if isinstance(value, list) else (str(value),)
        for name, value in found.items()
        if value != "none"
    }
