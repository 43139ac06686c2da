"""Fork server: imports paramiko once and forks every node's server from itself."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

sys.modules["invoke"] = None  # type: ignore[assignment]  # saves 40 ms of paramiko's import

from cloudtrain.core.retry import Retry, poll_until  # noqa: E402
from cloudtrain.providers.local import processes  # noqa: E402
from cloudtrain.providers.local.folders import NodeFolder  # noqa: E402
from cloudtrain.providers.local.private_view import OUTSIDE, View, enter, same_for_all  # noqa: E402
from cloudtrain.providers.local.ssh_server import ServerSettings, serve  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Read a JSON line for each node on stdin, start its server, and answer with one on stdout.

    A line has `folder`, `meta` (the content of node.json), `places` ([address, port] in order of
    preference), `links` (path in the node's home → target), `task_port` (the first choice; None:
    no port is reserved), `view` (private_view.View; None: all is shared) and `settings`. The answer
    has `node` with `meta` or `error`, and `shared`: why the node has no view of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, a server would not see exits
    gc.disable()
    gc.freeze()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        name = order["meta"]["name"]
        try:
            meta, shared = start(order)
            answer: Mapping[str, Any] = {"node": name, "meta": meta, "shared": shared}
        except (OSError, ValueError) as error:
            answer = {"node": name, "error": str(error)}
        print(json.dumps(answer), flush=True)


def start(order: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Start the server of a node unless it runs; returns the contents of its node.json, and why it
    shares this machine's files although it should not."""
    folder = Path(order["folder"])
    for path in (folder.parent.parent, folder.parent, folder, folder / "home"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / "lock", "ab", opener=private) as lock:
        if not take(lock):
            # Another fork server, perhaps of a killed command, may be writing it.
            path = folder / "node.json"
            poll_until(lambda: path.exists() or None, Retry(pause=0.01, within=5.0))
            return json.loads(path.read_bytes()), None
        with (
            listen(order["places"]) as listener,
            # If possible the same as before; the forked server inherits the sockets.
            contextlib.closing(
                ReservedPorts(order["task_port"], NodeFolder(folder).task_ports())
            ) as kept,
        ):
            address, port = listener.getsockname()
            meta = {**order["meta"], "address": address, "port": port, "task_ports": kept.ports}
            write(folder / "node.json", json.dumps(meta))
            settings, links = ServerSettings(**order["settings"]), order["links"]
            view = View(**order["view"]) if order["view"] else None
            if view is not None:
                same_for_all()
            refusal = fork_server(listener, folder, settings, view, links)
            if refusal is not None:
                fork_server(listener, folder, settings, None, links)
            if view and refusal is None:
                meta["apart"] = True
                write(folder / "node.json", json.dumps(meta))
    return meta, refusal


def fork_server(
    listener: socket.socket,
    folder: Path,
    settings: ServerSettings,
    view: View | None,
    links: Mapping[str, str],
) -> str | None:
    """Fork the node's server; returns why it cannot have that view, and then it has ended.

    The lock remains: it belongs to the open file, which the child keeps."""
    answer, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        become_server(listener, folder, settings, view, links, ready)
    os.close(ready)
    with os.fdopen(answer, encoding="utf-8") as file:
        refusal = file.read()
    if not refusal:
        return None
    os.waitpid(child, 0)
    return refusal


def take(lock: IO[bytes]) -> bool:
    """Take the lock; True on success.

    Retries, as a reader holds the lock for a moment, and a killed process until the kernel has
    closed its files."""
    try:
        Retry(pause=0.01, tries=200).call(
            lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB), on=BlockingIOError
        )
    except BlockingIOError:
        return False
    return True


def listen(places: list[tuple[str, int]]) -> socket.socket:
    """Listen on the first free place."""
    failure: OSError | None = None
    for place in places:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(tuple(place))
            listener.listen(512)
        except OSError as error:
            listener.close()
            failure = OSError(error.errno, f"{error.strerror}: {place[0]}:{place[1]}")
        else:
            return listener
    raise failure or OSError("no address to listen on")


def write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8", opener=private) as file:
        file.write(text)
    partial.replace(path)


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def become_server(
    listener: socket.socket,
    folder: Path,
    settings: ServerSettings,
    view: View | None,
    links: Mapping[str, str],
    ready: int,
) -> None:
    """Turn the forked child into a server with its own session and none of the fork server's
    files, then serve. `ready` is closed once it has its view; a refusal is written there."""
    try:
        os.setsid()
        mark(settings.tag)  # before stdout is closed, which tells the provider that it is done
        nothing = os.open(os.devnull, os.O_RDWR)
        lines = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if view is not None:
            settings = in_own_view(view, folder, settings, ready)
        os.chdir(folder / "home")
        # By the server, where the node's own links lead no further than the node sees.
        for path, target in ((Path(name), target) for name, target in links.items()):
            with contextlib.suppress(OSError):  # what a task has put there stays
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.symlink_to(target)
        for descriptor, number in ((nothing, 0), (lines, 1), (lines, 2)):
            os.dup2(descriptor, number)
        os.close(ready)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
        gc.enable()
        serve(listener, settings)
    except BaseException:
        logging.exception("the server failed")
    finally:
        os._exit(1)


def in_own_view(view: View, folder: Path, settings: ServerSettings, ready: int) -> ServerSettings:
    """Enter the view; returns the settings there. Ends this process if that is refused."""
    try:
        enter(view, folder)
        (folder / "home").stat()
    except OSError as error:
        words = ": ".join(str(w) for w in (error.filename, error.strerror or error) if w)
        with contextlib.suppress(BrokenPipeError):  # the fork server was killed
            os.write(ready, words.encode())
        os._exit(1)
    kept = {name: value for name, value in settings.environment.items() if name not in OUTSIDE}
    return replace(settings, environment=kept)


def mark(tag: str) -> None:
    """Show this node's tag in /proc/self/environ, and adopt orphans of our children.

    A forked process shows its parent's environment. The fork server was started with a tag that is
    long enough for any node's tag, which overwrites it in place."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    room = len(os.environb[processes.VARIABLE.encode()])
    place = libc.getenv(processes.VARIABLE.encode())
    ctypes.memmove(place, tag.encode().ljust(room, b"\0"), room)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# ── ports that a node reserves ─────────────────────────────────────────────────
# A TCP port cannot be held for a program that will open it itself. A node's server holds the name
# of an abstract Unix socket instead: unique among all that share the machine's ports (users, state
# homes, but not network namespaces), and released with the process.


LAST = 65_535
TIME_WAIT = "06"
SPARES = 3
"""Number of ports reserved in addition to the first, in case another program takes that one
meanwhile."""

APART = 1_000
"""Distance of spares from the first, to stay clear of other nodes' first ports."""


class ReservedPorts:
    """Reserved ports and the sockets that reserve them, until closed."""

    def __init__(self, first: int | None, before: Sequence[int] = ()) -> None:
        self._held: list[socket.socket] = []
        self.ports: list[int] = []
        if first is None:
            return
        busy = in_use()
        for start in (first, *(first + APART for _ in range(SPARES))):
            # From `start` to the last, then from the first unprivileged one.
            for port in chain(before, range(min(start, LAST), LAST + 1), range(1024, start)):
                if port not in busy and self._hold(port):
                    self.ports.append(port)
                    break

    def _hold(self, port: int) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0cloudtrain-port-{port}")
        except OSError:
            name.close()
            return False
        self._held.append(name)
        return True

    def close(self) -> None:
        for name in self._held:
            name.close()


def in_use() -> frozenset[int]:
    """Local TCP ports in use, read from the kernel's tables. A port in TIME_WAIT counts as free."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text("ascii").splitlines()[1:]]
        except OSError:
            continue
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] != TIME_WAIT}
    return frozenset(found)
