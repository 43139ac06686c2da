"""Lets one command at a time work on a cluster: a kernel lock that ends with its holder."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from cloudtrain.core import moments
from cloudtrain.core.codec import UNIX_TIME, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import LockedError
from cloudtrain.core.retry import CLOCK, Clock, Retry
from cloudtrain.state.files import DiskFull, make_folder, named_faults, write_whole

PASSING = 2.0
"""Extra seconds to retry when the lock's holder is dead or unknown: a forked child has not closed
it yet, or the holder has not written its name yet."""


ATTEND = "attend"
"""Purpose of the lock of a process in the background that attends to a run; it gives way to `down`
and `stop-run`."""
BACKGROUND = {
    ATTEND: "the process that supervises its detached run",
    "idle": "the process that takes an idle cluster down",
    "desk": "the controller of `run --away`",
}
"""Commands that are not for users, in words."""
FOLLOWS = ("train", "run", ATTEND, "logs -f")
"""Commands that stay with a run until its end."""


def command_shown(doing: str) -> str:
    return BACKGROUND.get(doing, f"`cloudtrain {doing}`")


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The command that holds the lock: `doing` is its name, `since` Unix time."""

    doing: str
    pid: int
    host: str
    since: float = field(metadata=UNIX_TIME)

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{command_shown(self.doing)} (pid {self.pid}, on {self.host}, since {since})"


@contextmanager
def locked(
    path: Path, name: str, doing: str, *, folder: Path, wait: float, clock: Clock = CLOCK
) -> Iterator[None]:
    """Hold the lock file `path`, which is deleted afterwards with its folder if that is empty.
    Raises LockedError naming the holder if it is not free within `wait` seconds."""
    deadline = clock.monotonic() + wait
    with ExitStack() as stack:
        try:
            descriptor = _acquire(path, name, deadline, clock)
            stack.callback(_release, path, descriptor)
        except DiskFull:
            if not folder.is_dir():
                raise
            descriptor = None
        if folder.is_dir():  # always locked as well: a full disk may have no room for the file
            stack.callback(_let_go, _acquire_folder(folder, path, name, deadline, clock))
        if descriptor is not None:
            _write_holder(descriptor, path, doing)
        yield


def holder(path: Path) -> LockHolder | None:
    """The lock's holder. Only reads: trying the lock itself could refuse another command."""
    try:
        facts = json.loads(path.read_text("utf-8"))
        found = decode(LockHolder, facts)
    except (OSError, ValueError):
        return None
    if found.host == os.uname().nodename and birth(found.pid) != facts.get("birth"):
        return None
    return found


_held: set[int] = set()
"""The descriptors of the locks that this process holds."""


def _forget_in_child() -> None:
    """Close the lock in a forked child, which shares the open file and would hold the lock after
    our death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _acquire(path: Path, name: str, deadline: float, clock: Clock) -> int:
    make_folder(path.parent)

    def take() -> int:
        try:
            return _try(path)
        except BlockingIOError:
            found = holder(path)
            if found is not None and clock.monotonic() >= deadline:
                raise _refusal(name, found) from None
            raise

    try:
        return _tries(deadline, clock).call(take, on=BlockingIOError, clock=clock)
    except BlockingIOError:
        raise _refusal(name, None) from None


def _acquire_folder(folder: Path, path: Path, name: str, deadline: float, clock: Clock) -> int:
    with named_faults(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _tries(deadline, clock).call(
            lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
            on=BlockingIOError,
            clock=clock,
        )
    except BlockingIOError:
        os.close(descriptor)
        raise _refusal(name, holder(path)) from None
    _held.add(descriptor)
    return descriptor


def _tries(deadline: float, clock: Clock) -> Retry:
    left = deadline + PASSING - clock.monotonic()
    return Retry(pause=0.05, within=left, at_least=1)


def _try(path: Path) -> int:
    """Lock the file; returns its descriptor. Raises BlockingIOError if another process holds it."""
    while True:
        with named_faults(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        if _leads_to(path, descriptor):
            _held.add(descriptor)
            return descriptor
        os.close(descriptor)


def _refusal(name: str, found: LockHolder | None) -> LockedError:
    follows = found is not None and found.doing in FOLLOWS
    hint = f"`cloudtrain logs -f {name}` follows it, `cloudtrain stop-run {name}` stops it"
    return LockedError(
        f"{name} is in use: {found or 'another command is working on it'}",
        hint=hint if follows else "try again when it has ended" if found else None,
    )


def _leads_to(path: Path, descriptor: int) -> bool:
    """True if the path still names the locked file: its last holder may have unlinked it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _release(path: Path, descriptor: int) -> None:
    """Unlink while still locked: whoever has opened the old file sees `_leads_to` fail."""
    if descriptor in _held:  # a forked child that gets here holds nothing
        path.unlink(missing_ok=True)
        _let_go(descriptor)


def _let_go(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def _write_holder(descriptor: int, path: Path, doing: str) -> None:
    pid = os.getpid()
    facts = {"doing": doing, "pid": pid, "birth": birth(pid)}
    facts |= {"host": os.uname().nodename, "since": moments.now()}
    with suppress(DiskFull), named_faults(path):  # the lock is held anyway
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(facts).encode(), 0)


def birth(pid: int) -> str | None:
    """Start of a process (a pid alone is reused); None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        return _alive(pid) if not Path("/proc/self").exists() else None
    except (OSError, IndexError):
        return None


def _alive(pid: int) -> str | None:
    """`alive` if the process exists: without /proc (macOS) only the pid counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"


# ── processes that use the nodes without the lock: open shells and commands ────


UnlockedUse = Literal["ssh", "exec", "fetch"]
"""A use of the nodes by a process that does not hold the lock."""


def begin_session(folder: Path, use: UnlockedUse) -> None:
    """Record that this process uses the nodes until it ends, also after exec. A file, not a lock:
    OpenSSH closes descriptors that it was not given (`closefrom` in its ssh.c)."""
    make_folder(folder)
    pid = os.getpid()
    write_whole(folder / str(pid), json.dumps({"birth": birth(pid), "use": use}).encode())


def end_session(folder: Path) -> None:
    (folder / str(os.getpid())).unlink(missing_ok=True)


def living_uses(folder: Path) -> frozenset[str]:
    """Uses of the recorded processes that live; forgets the others. One that another version has
    recorded counts as an open shell."""
    living = set()
    with suppress(FileNotFoundError):
        for path in [path for path in folder.iterdir() if path.name.isdigit()]:
            try:
                facts = json.loads(path.read_bytes())
                born = birth(int(path.name))
                lives = born is not None and isinstance(facts, dict) and facts.get("birth") == born
            except (OSError, ValueError):
                lives = False
            if not lives:
                path.unlink(missing_ok=True)
            else:
                use = facts.get("use")
                living.add(use if use in get_args(UnlockedUse) else "ssh")
    return frozenset(living)


def last_used(folder: Path) -> float:
    """Unix time of the last start, or of an end that was noticed; 0 if never."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
