"""A Transport that prints each command and runs none: a dry run without a flag in the code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cloudtrain.model import Node
from cloudtrain.protocols import Completed
from cloudtrain.shell import Command

DONE = Completed(exit_code=0, stdout=b"", stderr=b"")


class PrinterTransport:
    """`write` gets one line per command: `mnist-chief0: tar -x`; what goes to its stdin, which
    may be secret or endless, is neither read nor shown. `answer` is what commands "return"."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        answer: Callable[[Node, str], Completed] = lambda node, line: DONE,
    ) -> None:
        self._write = write
        self._answer = answer
        self._lock = threading.Lock()

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
        line = command.shell()
        self._print(f"{node.name}: {line}" + (" < …" if stdin != b"" else ""))
        completed = self._answer(node, line)
        if on_stdout is None and on_stderr is None:
            return completed
        return Completed(
            exit_code=completed.exit_code,
            stdout=_hand_over(completed.stdout, on_stdout),
            stderr=_hand_over(completed.stderr, on_stderr),
        )

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        self._print(f"{node.name}: {script}")
        return self._answer(node, script)

    @contextmanager
    def forward(self, node: Node, port: int) -> Iterator[int]:
        self._print(f"{node.name}: forward 127.0.0.1:{port}")
        yield port

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """Nobody answers."""

    def close(self) -> None:
        """Nothing is open."""

    def _print(self, line: str) -> None:
        with self._lock:
            self._write(line)


def _hand_over(data: bytes, handler: Callable[[bytes], None] | None) -> bytes:
    if handler is None:
        return data
    if data:
        handler(data)
    return b""
