"""The first login to new nodes: waited for while they boot, and proved by the host key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.errors import HostKeyMismatch, NodeError, NodeUnreachable
from cloudtrain.fan_out import fan_out
from cloudtrain.model import Identity, Node
from cloudtrain.protocols import HostKeys, Stage, Transport
from cloudtrain.rotation import HOST_KEY, rotate

BOOT = 600.0
"""Seconds that a node may take until it lets us in."""

SETTLE = 120.0
"""Seconds that cloud-init may go on after that; what it does then may be in a playbook's way."""

FIRST, LONGEST = 0.5, 10.0
"""Seconds between two looks, at first and at most."""


def first_login(
    nodes: Sequence[Node],
    identity: Identity,
    folder: Path,
    transport: Transport,
    host_keys: HostKeys,
    stage: Stage,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
    place: str = HOST_KEY,
) -> None:
    """Every node lets us in and answers with a host key that was never in its user data.

    `folder` is the cluster's, `host_keys` those that `transport` accepts. Nobody is ever let pass
    for a node: while it boots, another host key means only that it is not ready yet. Raises
    NodeUnreachable, HostKeyMismatch, StepFailed, or NodesError with every node's failure. Ctrl-C
    ends the wait at once.
    """
    interrupted = threading.Event()
    wait = _Wait(transport, stage, clock, sleep or interrupted.wait, interrupted)

    def enter(node: Node) -> None:
        began = clock()
        wait.for_login(node)
        host_key = identity.host_keys[node.name]
        if not host_key.rotated:
            wait.for_cloud_init(node)
            stage.node(node.name, "changing its host key")
            rotate(node, host_key, folder, transport, host_keys, place=place, sleep=wait.sleep)
        stage.done(node.name, f"answers at {node.address} after {clock() - began:.0f} s")

    def interrupt() -> None:
        interrupted.set()
        transport.close()

    fan_out(
        nodes,
        enter,
        name=lambda node: node.name,
        workers=max(1, len(nodes)),
        on_interrupt=interrupt,
    )


@dataclass(frozen=True)
class _Wait:
    transport: Transport
    stage: Stage
    clock: Callable[[], float]
    sleep: Callable[[float], object]
    interrupted: threading.Event

    def for_login(self, node: Node) -> None:
        """Refused, unanswered, another's key, our key not known yet: all of it is a boot."""
        deadline, pause = self.clock() + BOOT, FIRST
        while True:
            try:
                self.transport.ask(node, ":")
                return
            except (NodeUnreachable, HostKeyMismatch) as error:
                if self.clock() >= deadline or self.interrupted.is_set():
                    raise _never(node, error) from error
                words = error.message.removeprefix(f"{node.name}: ")
                self.stage.node(node.name, f"boots: {words}")
            self.sleep(min(pause, max(0.0, deadline - self.clock())))
            pause = min(LONGEST, pause * 1.5)

    def for_cloud_init(self, node: Node) -> None:
        """Its processes are looked for: `cloud-init status` knows nothing without systemd."""
        deadline, pause = self.clock() + SETTLE, FIRST
        while self.clock() < deadline and not self.interrupted.is_set():
            if self.transport.ask(node, _CLOUD_INIT_WORKS).exit_code != 0:
                return
            self.stage.node(node.name, "cloud-init is at work")
            self.sleep(pause)
            pause = min(LONGEST, pause * 1.5)


_CLOUD_INIT_WORKS = "pgrep -f '/usr/bin/cloud-init( |$)' >/dev/null"


def _never(node: Node, last: NodeError) -> NodeError:
    words = last.message.removeprefix(f"{node.name}: ")
    if isinstance(last, HostKeyMismatch):
        return HostKeyMismatch(
            node.name,
            f"no login within {BOOT:.0f} s: {words}",
            hint="cloud-init puts the host key on the node: an image without it, or one that makes "
            "keys of its own, cannot be used; the node's boot log in the cloud's console tells",
        )
    return NodeUnreachable(
        node.name,
        f"no login within {BOOT:.0f} s: {words}",
        hint="look at the node's boot log in the cloud's console, and whether your address, "
        "`network.ssh_from` and the network's routes let SSH through; `cloudtrain up` goes on",
    )
