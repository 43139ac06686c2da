"""A Transport to this machine whose programs are talked with while they run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command


@dataclass
class Here:
    """A Transport whose nodes are this machine. `instead`: what a faulty node runs."""

    home: Path
    instead: dict[str, Command] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()
    paths: dict[str, str] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

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
        if node.name in self.unreachable:
            raise NodeUnreachable(node.name, "no answer over SSH", hint="is it up?")
        command = self.instead.get(node.name, command)
        self.ran.append(command.shell())
        process = subprocess.Popen(
            command.arguments,
            cwd=self.home,
            env={**os.environ, "PATH": self.paths.get(node.name, os.environ["PATH"])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.running.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        feeder = threading.Thread(target=self._feed, args=(process, stdin), daemon=True)
        feeder.start()
        stdout = b""
        while data := os.read(process.stdout.fileno(), 65536):
            if on_stdout:
                on_stdout(data)
            else:
                stdout += data
        stderr = process.stderr.read()
        return Completed(exit_code=process.wait(), stdout=stdout, stderr=stderr)

    def _feed(self, process: subprocess.Popen[bytes], stdin: bytes | Iterable[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            for piece in (stdin,) if isinstance(stdin, bytes) else stdin:
                process.stdin.write(piece)
                process.stdin.flush()
            process.stdin.close()

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        raise AssertionError("these programs ask nothing over the persistent shell")

    def close(self) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
