"""A Transport that waits for a node that lets nobody in for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cloudtrain.errors import NodeUnreachable
from cloudtrain.model import Node
from cloudtrain.protocols import Completed, Transport
from cloudtrain.shell import Command

PATIENCE = 60.0
"""Seconds: an sshd that restarts, an upgrade of it, one that takes no more logins just now
(MaxStartups) is there again by then."""

PAUSE = 1.0


class PatientTransport:
    """Runs a command once a connection can be had, within `patience` seconds.

    Never runs it twice: a connection that breaks after the command was sent is an error at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        patience: float = PATIENCE,
        waits: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`waits` is told, once for each node, why it is waited for."""
        self._transport, self._patience, self._waits = transport, patience, waits
        self._clock, self._sleep = clock, sleep
        self._told: set[str] = set()

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
        limit = self._clock() + self._patience
        while True:
            try:
                return self._transport.run(
                    node,
                    command,
                    stdin=stdin,
                    on_stdout=on_stdout,
                    on_stderr=on_stderr,
                    timeout=timeout,
                )
            except NodeUnreachable as error:
                if error.began or self._clock() >= limit:
                    raise
                if node.name not in self._told:
                    self._told.add(node.name)
                    self._waits(f"{error.message}: waiting up to {self._patience:.0f} s for it")
            self._sleep(PAUSE)

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        return self._transport.ask(node, script, timeout=timeout)

    def close(self) -> None:
        self._transport.close()
