"""What /proc says of processes, which may end while one looks: proc(5)."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path


def pids() -> list[int]:
    """Of all processes; a glob would fail where one ends while it looks."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def environment(pid: int) -> list[bytes]:
    """Variables that a process was started with, as `NAME=value`; none if it has just ended."""
    return _read(pid, "environ").split(b"\0")


def here(inside: int, node: str) -> int:
    """The process that has this number on a local node: nodes have process numbers of their own.

    Raises ProcessLookupError.
    """
    tag = re.compile(rb"CLOUDTRAIN_NODE=(?:.*/)?%b" % re.escape(node.encode()))
    tagged = [pid for pid in pids() if any(map(tag.fullmatch, environment(pid)))]
    namespaces = {_namespace(pid) for pid in tagged} - {""}  # of one that has just ended
    for pid in pids():
        numbers = re.findall(rb"(?m)^NSpid:(.*)$", _read(pid, "status"))
        if numbers and int(numbers[0].split()[-1]) == inside and _namespace(pid) in namespaces:
            return pid
    raise ProcessLookupError(f"{node} has no process {inside}")


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def words(pid: int) -> list[str]:
    """A process's command line; none if it has just ended, or for a zombie."""
    command = _read(pid, "cmdline")
    return os.fsdecode(command).removesuffix("\0").split("\0") if command else []


def folder(pid: int) -> Path | None:
    """The one that it works in; None if it has just ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink()
    return None


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
