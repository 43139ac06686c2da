"""Start node servers through the fork server and wait until they answer; find a node's processes by
the tag that each inherits, and kill them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.core import own_python
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, NodeError, NodeUnreachable, raise_all
from cloudtrain.core.model import Node
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.providers.local.private_view import View

VARIABLE = "CLOUDTRAIN_NODE"
"""Variable in the environment of every process of a node: `<digest of the state
home>/<cluster>/<node>`."""

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
    this for its own tag kills its descendants but not itself."""
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

    Fields of proc(5)'s stat, counted after the command name: it may have spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    return parent if state not in (b"Z", b"X") or threads > 1 else None


# ── start: through the fork server, at addresses of 127.0.0.0/8 by the cluster's name ──────────


BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from cloudtrain.providers.local.fork_server import main; main()"
)
START_SECONDS = 30.0
"""Timeout for all servers to start, and for all to answer; far more than a busy machine needs."""

ROOM = "."
"""Pads the fork server's tag, where each server writes its node's name; no name ends with it."""

INTERPRETER = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME")
"""The only environment variables that the fork server inherits, as it must not hold credentials."""


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """Request to start one server: see fork_server.main."""

    folder: Path
    meta: Mapping[str, Any]
    places: Sequence[tuple[str, int]]
    settings: Mapping[str, Any]
    links: Mapping[str, str]
    task_port: int | None
    view: View | None
    """None: the node shares this machine's files."""

    def line(self) -> str:
        view = vars(self.view) if self.view else None
        return json.dumps({**vars(self), "folder": str(self.folder), "view": view}) + "\n"


class ForkServer:
    """The fork server process: started at once, given its requests when they are known.

    It has its own session, so that Ctrl-C here does not reach the servers. `tag` has room for the
    longest node name, where each server writes its own."""

    def __init__(self, tag: str, *, longest: int) -> None:
        given = {name: os.environ[name] for name in INTERPRETER if name in os.environ}
        try:
            self._process = subprocess.Popen(
                own_python.code(BOOTSTRAP, *own_python.import_path()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=own_python.NEUTRAL,
                start_new_session=True,
                env={**given, VARIABLE: tag + ROOM * longest},
            )
        except OSError as error:
            raise CloudtrainError(
                f"cannot start a process for the SSH servers: {error}",
                hint="check this machine's memory and processes (`ulimit -u`)",
            ) from error

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, orders: Sequence[ServerRequest]) -> str | None:
        """Start servers; returns why one shares this machine's files although it should not.

        Raises NodeError or NodesError, with a message for each server that did not start."""
        text = "".join(order.line() for order in orders).encode()
        try:
            out, trouble = self._process.communicate(text, timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            raise CloudtrainError(
                f"the SSH servers did not start within {START_SECONDS:g} s",
                hint="check this machine's load and memory",
            ) from None
        answers = {a["node"]: a for a in map(json.loads, out.splitlines())}
        last = trouble.decode(errors="replace").strip().rpartition("\n")[2]
        failures: dict[str, BaseException] = {}
        for order in orders:
            name = order.meta["name"]
            answer = answers.get(name, {"error": last or "its parent process was killed"})
            if "error" in answer:
                failures[name] = NodeError(
                    name,
                    f"its SSH server did not start: {answer['error']}",
                    hint=f"check the free space for {order.folder}, and that the port is free",
                )
        raise_all(failures)
        return next((answer["shared"] for answer in answers.values() if answer["shared"]), None)


def await_answers(nodes: Sequence[Node], root: Path) -> None:
    """Wait until each node has sent its SSH greeting. Raises NodeUnreachable for silent ones."""
    deadline = time.monotonic() + START_SECONDS
    silent = {node.name: node for node in nodes}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as probes:
        for node in nodes:
            probe = probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.setblocking(False)
            probe.connect_ex((node.address, node.ssh_port))
            selector.register(probe, selectors.EVENT_READ, (node, probe))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                node, probe = key.data
                selector.unregister(probe)
                with contextlib.suppress(OSError):
                    greeting = probe.recv(255)
                    probe.send(b"SSH-2.0-probe\r\n")  # it sees a client that disconnects
                    if greeting.startswith(b"SSH-"):
                        silent.pop(node.name)
    raise_all({name: _silent(node, root / name) for name, node in silent.items()})


def _silent(node: Node, folder: Path) -> NodeUnreachable:
    """Error for a silent node, with its log's last line: the log may be deleted with the node."""
    try:
        lines = (folder / "server.log").read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if line), "its log is empty")
    return NodeUnreachable(
        node.name,
        f"no SSH server answers at {node.address}:{node.ssh_port}: {last}",
        hint="run `cloudtrain down` to end a server that hangs",
    )


PORTS = (2222, 22022, 0)
"""Ports in order of preference; 0 lets the kernel choose."""

ALL = 254 * 256 * 254
"""Number of addresses: 127.1.0.1 to 127.254.255.254. 127.0 is left to the machine's own services
(127.0.0.1, 127.0.0.53)."""


def addresses(seed: str, number: int) -> list[tuple[str, int]]:
    """Choices of (address, port) for node `number`, the first ones first."""
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") + number
    candidates = [loopback_address(start + step * 1013) for step in range(8)]
    return [(candidate, port) for port in PORTS for candidate in candidates]


def loopback_address(number: int) -> str:
    number %= ALL
    return f"127.{1 + number // (256 * 254)}.{number // 254 % 256}.{1 + number % 254}"
