"""Ties a program on a node to the client that started it: lock, input, answers, heartbeat, end."""

import _thread
import os
import select
import sys
import time

from cloudtrain.node import short_json

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

EVERY = 5.0
"""Seconds between two heartbeats."""

KEEPING, UNSEEN = b"keeping", b"keeping unseen"
"""Confirmations of a program that goes on without its client; the second if it cannot see it."""


def attend() -> None:
    """Start the heartbeat, and end this process with the client."""
    for work in (beat, leave):
        _thread.start_new_thread(work, ())  # `threading` takes half as long as the start of Python


def beat() -> None:
    """Send NULs on stderr as a heartbeat: a large file may produce no line for minutes."""
    while True:
        time.sleep(EVERY)
        os.write(2, b"\0")


def leave() -> None:
    """End this process when the client is gone and has closed its end of stdout."""
    poll = select.poll()
    poll.register(1, 0)  # POLLERR and POLLHUP are always reported
    poll.poll()
    os._exit(1)


def alone(path: bytes) -> None:
    """Hold the file's lock while this process lives; kill any other holder. The pid in the file may
    be stale just after a takeover: kill only if two reads agree, and it has the file open."""
    import contextlib
    import fcntl
    import signal

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    seen = b""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            holder = os.pread(lock, 20, 0)
            if holder and holder == seen and has_open(int(holder), lock):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(holder), signal.SIGKILL)
            seen = holder
            time.sleep(0.05)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def has_open(pid: int, file: int) -> bool:
    """True if the process has this file open: its number alone may be another's by now."""
    folder, own = f"/proc/{pid}/fd/", os.fstat(file)
    try:
        return any(os.path.samestat(os.stat(folder + each), own) for each in os.listdir(folder))
    except OSError:  # it has just ended, or has closed one of them: the next look tells
        return False


def detach(lock: bytes, log: str, word: bytes = KEEPING) -> None:
    """Continue without the client, once this process holds the lock, and kill an earlier holder.
    The client gets the word after that: of two that start shortly after each other, the earlier
    one would otherwise come later, and kill the later one."""
    held, holds = os.pipe()
    if os.fork():
        os.close(holds)
        if os.read(held, 1):  # else it has ended: a later one has taken its place
            os.write(1, word + b"\n")
        os._exit(0)
    os.close(held)
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, written), (2, written)):
        os.dup2(source, target)
    alone(lock)
    os.write(holds, b"1")
    os.close(holds)


def say(text: str) -> None:
    """Write a line of a log, with its time."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"{now} {text}\n")
    sys.stderr.flush()


def order() -> "dict[str, Any]":
    """Read the order, which is the first line on stdin."""
    read: dict[str, Any] = short_json.read(sys.stdin.buffer.readline())
    return read


writing = _thread.allocate_lock()


def tell(fact: object) -> None:
    tell_lines(short_json.written(fact) + "\n")


def tell_lines(text: str) -> None:
    try:
        with writing:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:  # found before `leave` has run
        os._exit(1)


def plain(name: str) -> bytes:
    """The bytes of a file name received as JSON."""
    return name.encode("utf-8", "surrogateescape")


def text(name: bytes) -> str:
    """A file name as it is sent in JSON."""
    return name.decode("utf-8", "surrogateescape")


def boot_id() -> str:
    """Id of this boot of the machine; "" if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
