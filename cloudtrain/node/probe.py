"""Holds its node's port, greets peers and inspects the node, for runs/preflight.py.

Speaks JSON lines: reads an order, reports facts of the node, reads the peers, reports the
unreachable ones, and holds the port until stdin ends. Its arguments are a command that prints
versions.
"""

# `socket` itself, which makes its numbers into enumerations, takes as long as the start of Python.
import _socket
import errno
import os
import select
import sys
import time

from cloudtrain.node import short_json

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    poll = Poll()
    lines = Lines(poll)
    order = short_json.read(lines.next())
    greeting = f"cloudtrain {order['nonce']} {order['name']}\n".encode()
    listener, why = listen(order["port"])
    if listener is not None:
        poll.register(listener.fileno(), select.POLLIN, greeter(listener, greeting))
    facts = {"listening": listener is not None, "why": why, "time": time.time()}
    facts["owner"] = owner(order["port"]) if listener is None else None
    facts.update(space(order["folder"]), versions=printed(sys.argv[1:]))
    how = order["identity"]
    facts["identity"] = None
    if how:
        from cloudtrain.node import metadata

        facts["identity"] = metadata.refusal(how)
    tell(facts)
    peers = short_json.read(lines.next())
    calls = [Call(poll, peer, order["nonce"]) for peer in peers["peers"]]
    calls += [Call(poll, task, "") for task in peers["serving"]]
    tell({"failed": reach(poll, calls, peers["timeout"])})
    lines.next()


def printed(command: "list[str]") -> "str | None":
    """Output of the command, empty if it cannot be run; None without a command."""
    if not command:
        return None
    import subprocess  # takes as long as the rest of the start-up

    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace")


def tell(fact: "dict[str, object]") -> None:
    sys.stdout.write(short_json.written(fact) + "\n")
    sys.stdout.flush()


LINGER = (1).to_bytes(4, sys.byteorder) + bytes(4)
"""`struct linger`: on, for no time."""


class Poll:
    """Calls what is registered for a file once that is ready, or has failed."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.calls = {}  # type: dict[int, Callable[[], None]]

    def register(self, file: int, events: int, call: "Callable[[], None]") -> None:
        self.calls[file] = call
        self.poll.register(file, events)

    def unregister(self, file: int) -> None:
        if self.calls.pop(file, None):
            self.poll.unregister(file)

    def turn(self, seconds: "float | None") -> None:
        for file, _ in self.poll.poll(None if seconds is None else max(0.0, seconds) * 1000):
            if file in self.calls:
                self.calls[file]()


class Lines:
    """Reads lines from stdin while the port is served. The end of stdin ends the program."""

    def __init__(self, poll: Poll) -> None:
        self.poll = poll
        self.rest = b""
        poll.register(0, select.POLLIN, self.ready)

    def ready(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            os._exit(0)  # all is told; to end as Python does takes a fifth of this program's time
        self.rest += data

    def next(self) -> bytes:
        while b"\n" not in self.rest:
            self.poll.turn(None)
        line, self.rest = self.rest.split(b"\n", 1)
        return line


def greeter(listener: _socket.socket, greeting: bytes) -> "Callable[[], None]":
    """Greet peers, which hang up, so that no TIME_WAIT is left here."""
    held = []  # type: list[_socket.socket]

    def greet() -> None:
        try:
            guest = _socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined]
            guest.setblocking(False)
            guest.send(greeting)
            held.append(guest)
        except OSError:
            pass

    return greet


def listen(port: int) -> "tuple[_socket.socket | None, str]":
    """Listen on all addresses of both families, as TensorFlow's server does."""
    why = "this system has no network"
    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):
        try:
            listener = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family == _socket.AF_INET6:
                listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(4096)
            listener.setblocking(False)
            return listener, ""
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                return None, "in use"
            why = str(error.strerror)
    return None, why


def owner(port: int) -> "dict[str, object] | None":
    """Holder of the port: pid and command if this user may see them, else the owner's user id."""
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if int(row[1].rsplit(":", 1)[1], 16) == port and row[9] != "0":
                sockets["socket:[" + row[9] + "]"] = int(row[7])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir("/proc/" + pid + "/fd"):
                if os.readlink("/proc/" + pid + "/fd/" + fd) in sockets:
                    with open("/proc/" + pid + "/cmdline", "rb") as file:
                        line = file.read(300).replace(b"\0", b" ").decode("utf-8", "replace")
                    return {"pid": int(pid), "command": line.strip()}
        except OSError:
            continue
    return {"uid": next(iter(sockets.values()))} if sockets else None


def space(folder: str) -> "dict[str, object]":
    """Free bytes and files where the task will write."""
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder or ".")
    files = found.f_favail if found.f_files else 1  # some file systems do not count them
    return {"free": found.f_bavail * found.f_frsize, "files": files}


def reach(poll: Poll, calls: "list[Call]", timeout: float) -> "dict[str, str]":
    """Wait until all calls have ended; returns the unreachable ones, name → reason."""
    deadline = time.monotonic() + timeout
    while any(call.why is None for call in calls) and time.monotonic() < deadline:
        poll.turn(deadline - time.monotonic())
    for call in calls:
        call.end(f"no answer in {timeout:g} s")
    return {call.name: call.why for call in calls if call.why}


class Call:
    """A call to a peer. `why` is None while it is in progress, "" once the right peer has answered,
    and otherwise the reason of the failure. Without a `nonce` the peer is a task that runs, which
    is only connected to."""

    def __init__(self, poll: Poll, peer: "tuple[str, str, int]", nonce: str) -> None:
        self.name, host, port = peer
        self.greeting = f"cloudtrain {nonce} {self.name}\n".encode() if nonce else b""
        self.poll = poll
        self.why = None  # type: str | None
        self.got = b""
        self.socket = None  # type: _socket.socket | None
        try:
            # As bytes: the codec for international names takes half as long as the start of Python.
            name = host if any(ord(each) > 127 for each in host) else host.encode("ascii")
            found = _socket.getaddrinfo(name, port, 0, _socket.SOCK_STREAM)
            family, kind, proto, _, address = found[0]
            self.socket = _socket.socket(family, kind, proto)
            self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, LINGER)
            self.socket.setblocking(False)
            code = self.socket.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            ready = select.POLLIN if nonce else select.POLLOUT
            poll.register(self.socket.fileno(), ready, self)
        except OSError as error:
            self.end(error.strerror or str(error))

    def __call__(self) -> None:
        assert self.socket is not None
        if not self.greeting:
            code = self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
            self.end(os.strerror(code) if code else "")
            return
        try:
            data = self.socket.recv(1000)
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        self.got += data
        if self.got == self.greeting:
            self.end("")
        elif not data or not self.greeting.startswith(self.got):
            self.end("another program answers there")

    def end(self, why: str) -> None:
        if self.why is None:
            self.why = why
            if self.socket is not None:
                self.poll.unregister(self.socket.fileno())
                self.socket.close()
