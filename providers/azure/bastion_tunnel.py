"""Connects stdin and stdout to a port that another program opens on this machine.

    python bastion_tunnel.py -- az network bastion tunnel … --port {port}

`az network bastion tunnel` has no form for ProxyCommand
(https://github.com/Azure/azure-cli/issues/27999, also 24600). `{port}` is a free port. The other
program ends with the connection, by SIGINT, on which az takes back its session. It runs alone, as a
ProxyCommand: it imports the standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

OPEN_SECONDS = 50.0
"""Until the port must be open: az takes seconds to start, and asks Azure for the Bastion."""
PAUSE = 0.1
END_SECONDS = 3.0
CHUNK = 1 << 16


def main(words: Sequence[str]) -> int:
    """The exit code: that of the other program if it has ended first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    port = free_port()
    arguments = [word.replace("{port}", str(port)) for word in words]
    program = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), cwd="/"
    )  # az may import from the current folder
    try:
        connection = opened(port, program)
        if connection is None:
            return program.poll() or 1
        with connection:
            carry(connection)
        return 0
    finally:
        end(program)


def free_port() -> int:
    """A port that is free now. Whoever takes it meanwhile lacks the node's host key."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def opened(port: int, program: subprocess.Popen[bytes]) -> socket.socket | None:
    """Connect once the port is open; None if the program has ended, or is too slow."""
    limit = time.monotonic() + OPEN_SECONDS
    while program.poll() is None and time.monotonic() < limit:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), PAUSE * 10)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(PAUSE)
    if program.poll() is None:
        print(f"no port was opened within {OPEN_SECONDS:g} s", file=sys.stderr)
    return None


def carry(connection: socket.socket) -> None:
    """Copy both ways until one side ends."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, out = sys.stdin.fileno(), sys.stdout.fileno()
    while True:
        ready, _, _ = select.select([own, connection], [], [])
        if own in ready:
            data = os.read(own, CHUNK)
            if not data:
                return
            connection.sendall(data)
        if connection in ready:
            data = connection.recv(CHUNK)
            if not data:
                return
            while data:
                data = data[os.write(out, data) :]


def end(program: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        if program.poll() is None:
            program.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(END_SECONDS)


if __name__ == "__main__":
    separator = sys.argv.index("--")
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionError):
        sys.exit(main(sys.argv[separator + 1 :]))
