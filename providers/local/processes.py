"""Find a node's processes by the tag that each inherits, stop them, then kill them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until

VARIABLE = "CLOUDTRAIN_NODE"
"""Variable in the environment of every process of a node: `<digest of the state
home>/<cluster>/<node>`.
"""

PROC = Path("/proc")

KILL_SECONDS = 10.0
"""Seconds for killed processes to be gone; a process that waits for a disk takes longer."""


def tags(matches: Callable[[str], bool]) -> dict[int, str]:
    """Tags of running processes that match, by pid, without this process."""
    found = {}
    for pid in _all():
        tag = _tag(pid)
        if tag is not None and matches(tag) and pid != os.getpid() and _alive(pid):
            found[pid] = tag
    return found


def kill(matches: Callable[[str], bool], *, clock: Clock = CLOCK) -> dict[int, str]:
    """Kill every process whose tag matches, and all their descendants. Returns the survivors.

    All are stopped before the first is killed: a stopped process starts no children, and a
    descendant that cleared its environment is still known by its parent. A process that calls
    this for its own tag kills its descendants but not itself.
    """
    deadline = clock.monotonic() + KILL_SECONDS
    while family := _freeze(matches, deadline, clock):
        for pid in family:
            _send(pid, signal.SIGKILL)
        left = family

        def all_gone() -> bool | None:
            nonlocal left
            left = {pid: tag for pid, tag in left.items() if _alive(pid)}
            return None if left else True

        polls = Retry(pause=0.002, within=deadline - clock.monotonic())
        if poll_until(all_gone, polls, clock=clock) is None:
            return left
    return {}


def _freeze(
    matches: Callable[[str], bool], deadline: float, clock: Clock = CLOCK
) -> dict[int, str]:
    """Stop the tagged processes and their descendants, until a scan finds no new one."""
    family: dict[int, str] = {}
    while new := {p: t for p, t in _family(matches, family).items() if p not in family}:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        family |= new
        if clock.monotonic() > deadline:
            break  # they appear faster than they can be stopped: survivors are reported
    return family


def _family(matches: Callable[[str], bool], known: dict[int, str]) -> dict[int, str]:
    found = {**known, **tags(matches)}
    own = _tag(os.getpid())
    pending = [*found, *([os.getpid()] if own is not None and matches(own) else [])]
    if not pending:
        return {}
    children: dict[int, list[int]] = {}
    for pid in _all():
        above = _parent(pid)
        if above is not None:
            children.setdefault(above, []).append(pid)
    while pending:
        parent = pending.pop()
        for pid in children.get(parent, ()):
            if pid not in found and pid != os.getpid():
                found[pid] = f"child of {parent}"
                pending.append(pid)
    return found


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # already gone, or another user's by setuid: then it is among the survivors


def _all() -> Iterator[int]:
    for entry in os.scandir(PROC):
        if entry.name.isdecimal():
            yield int(entry.name)


def _tag(pid: int) -> str | None:
    try:
        environment = b"\0" + (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None  # gone, or not ours to read
    _, found, rest = environment.partition(b"\0" + VARIABLE.encode() + b"=")
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else None


def _alive(pid: int) -> bool:
    return _parent(pid) is not None


def _parent(pid: int) -> int | None:
    """The parent of a process that is alive: None for a zombie, unless it still has other threads.
    Until they end, it keeps its files, locks and ports.

    Fields of proc(5)'s stat, counted after the command name: it may have spaces and brackets.
    """
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    return parent if state not in (b"Z", b"X") or threads > 1 else None
