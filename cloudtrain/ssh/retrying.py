"""Transport that retries connections to a node that refuses logins for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed, Transport
from cloudtrain.core.retry import AWAY, CLOCK, Clock, Retry
from cloudtrain.core.shell import Command


class RetryingTransport:
    """Runs a command as soon as a connection can be opened; connecting is retried as `away` allows,
    and a node that stayed away all that time is tried once for each further command; so is one that
    its provider could not reach either.

    Never runs it twice: a connection that breaks after the command was sent is an error at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        away: Retry = AWAY,
        waits: Callable[[str], None] = lambda text: None,
        clock: Clock = CLOCK,
    ) -> None:
        """`waits` is called, once for each node, with the reason for waiting."""
        self._transport, self._away, self._waits = transport, away, waits
        self._clock = clock
        self._reported: set[str] = set()
        self._given_up: set[str] = set()

    def run(self, node: Node, command: Command, **options: Any) -> Completed:
        return self._once_connected(node, lambda: self._transport.run(node, command, **options))

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        return self._once_connected(
            node, lambda: self._transport.ask(node, script, timeout=timeout)
        )

    def close(self) -> None:
        self._transport.close()

    def _once_connected(self, node: Node, work: Callable[[], Completed]) -> Completed:
        def report(error: NodeUnreachable, *_: float) -> None:
            if node.name not in self._reported:
                self._reported.add(node.name)
                limit = self._away.within
                self._waits(f"{error.message}: retrying for up to {limit:.0f} s")

        once = node.name in self._given_up or node.state == "unknown"
        try:
            done = self._away.call(
                work,
                on=NodeUnreachable,
                unless=lambda error: error.began or error.lasting or once,
                before_pause=report,
                clock=self._clock,
            )
        except NodeUnreachable as error:
            if not error.began:
                self._given_up.add(node.name)
            raise
        self._given_up.discard(node.name)
        return done
