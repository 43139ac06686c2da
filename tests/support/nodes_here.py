"""Nodes that are folders of this machine: a Transport over /bin/sh, and a Stage that remembers."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command, script


def node(name: str = "mnist-chief0", *, host: str = "", cache: str = ".cache/cloudtrain") -> Node:
    return Node(
        name=name,
        role="chief",
        index=0,
        state="running",
        address="127.0.0.1",
        internal="127.0.0.1",
        host=host,
        cache=cache,
    )


class HereTransport:
    """Every node's home is a folder below `root`; counts what it is asked."""

    def __init__(self, root: Path, environ: dict[str, str] | None = None) -> None:
        self.root = root
        self.environ = environ or {}
        self.asked: list[str] = []
        self.ran: list[tuple[str, Command]] = []
        self.closed = False
        self._lock = threading.Lock()

    def home(self, node: Node) -> Path:
        home = self.root / node.name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def process(self, node: Node, command: Command) -> subprocess.Popen[bytes]:
        """In a session of its own, so that a test can kill all of it."""
        return subprocess.Popen(
            command.arguments,
            cwd=self.home(node),
            env={**os.environ, "HOME": str(self.home(node)), **self.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(
        self,
        node: Node,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        with self._lock:
            self.ran.append((node.name, command))
        return self._completed(self.process(node, command), stdin, on_stdout, on_stderr)

    def ask(self, node: Node, script_: str, *, timeout: float = 30.0) -> Completed:
        with self._lock:
            self.asked.append(node.name)
        return self._completed(self.process(node, script(script_)), b"", None, None)

    def close(self) -> None:
        self.closed = True

    def _completed(
        self,
        process: subprocess.Popen[bytes],
        stdin: bytes | Iterable[bytes],
        on_stdout: Callable[[bytes], None] | None,
        on_stderr: Callable[[bytes], None] | None,
    ) -> Completed:
        data = stdin if isinstance(stdin, bytes) else b"".join(stdin)
        try:
            out, err = process.communicate(data)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        for handler, output in ((on_stdout, out), (on_stderr, err)):
            if handler and output:
                handler(output)
        return Completed(
            exit_code=process.returncode,
            stdout=b"" if on_stdout else out,
            stderr=b"" if on_stderr else err,
        )


class Remembered:
    """A Stage; `lines` are what it was shown, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []

    def node(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def done(self, name: str, text: str = "") -> None:
        self.ended.append((name, text))


def stopped_clock() -> float:
    return 0.0
