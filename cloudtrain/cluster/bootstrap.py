"""First login to new nodes: waits while they boot, and verifies the host key."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.cluster.host_key_rotation import HOST_KEY, rotate_host_key
from cloudtrain.errors import HostKeyMismatch, NodeError, NodeUnreachable
from cloudtrain.model import Identity, Node
from cloudtrain.parallel import fan_out
from cloudtrain.protocols import HostKeys, Stage, Transport
from cloudtrain.retry import Clock, Retry, poll_until

BOOT = Retry(pause=0.5, backoff=1.5, longest=10.0, deadline=600.0)
"""Logins to a node, until it lets us in."""

SETTLE = Retry(pause=0.5, backoff=1.5, longest=10.0, deadline=120.0)
"""Looks for a cloud-init that goes on after that: what it does may be in a playbook's way."""


def await_first_login(
    nodes: Sequence[Node],
    identity: Identity,
    folder: Path,
    transport: Transport,
    host_keys: HostKeys,
    stage: Stage,
    *,
    clock: Clock | None = None,
    place: str = HOST_KEY,
) -> None:
    """Wait until every node accepts our login, and give it a host key that was never in its user
    data.

    `folder` is the cluster's, `host_keys` those that `transport` accepts. No other machine is ever
    accepted for a node: while it boots, another host key means only that it is not ready yet.
    Raises NodeUnreachable, HostKeyMismatch, StepFailed, or NodesError with every node's failure.
    Ctrl-C ends the wait at once.
    """
    interrupted = threading.Event()
    clock = clock or Clock(sleep=interrupted.wait)
    wait = _Wait(transport, stage, clock)

    def enter(node: Node) -> None:
        began = clock.monotonic()
        wait.for_login(node)
        host_key = identity.host_keys[node.name]
        if not host_key.rotated:
            wait.for_cloud_init(node)
            stage.node(node.name, "changing its host key")
            rotate_host_key(node, host_key, folder, transport, host_keys, place=place, clock=clock)
        stage.done(node.name, f"answers at {node.address} after {clock.monotonic() - began:.0f} s")

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
    clock: Clock

    def for_login(self, node: Node) -> None:
        """Wait for a login: a refusal, silence, another's key, or our key not yet installed are
        all part of a boot.
        """

        def show(error: NodeError, *_: float) -> None:
            self.stage.node(node.name, f"boots: {_words(node, error)}")

        closed = (NodeUnreachable, HostKeyMismatch)
        try:
            BOOT.call(
                lambda: self.transport.ask(node, ":"),
                on=closed,
                before_pause=show,
                clock=self.clock,
            )
        except closed as error:
            raise _never(node, error) from error

    def for_cloud_init(self, node: Node) -> None:
        """Wait for cloud-init, by its processes: `cloud-init status` knows nothing without
        systemd.
        """

        def is_done() -> bool | None:
            if self.transport.ask(node, _CLOUD_INIT_WORKS).exit_code != 0:
                return True
            self.stage.node(node.name, "cloud-init is at work")
            return None

        poll_until(is_done, SETTLE, clock=self.clock)


_CLOUD_INIT_WORKS = "pgrep -f '/usr/bin/cloud-init( |$)' >/dev/null"


def _never(node: Node, last: NodeError) -> NodeError:
    words = _words(node, last)
    if isinstance(last, HostKeyMismatch):
        return HostKeyMismatch(
            node.name,
            f"no login within {BOOT.deadline:.0f} s: {words}",
            hint="cloud-init puts the host key on the node: an image without it, or one that makes "
            "keys of its own, cannot be used; the node's boot log in the cloud's console tells",
        )
    return NodeUnreachable(
        node.name,
        f"no login within {BOOT.deadline:.0f} s: {words}",
        hint="look at the node's boot log in the cloud's console, and whether your address, "
        "`network.ssh_from` and the network's routes let SSH through; `cloudtrain up` goes on",
    )


def _words(node: Node, error: NodeError) -> str:
    return error.message.removeprefix(f"{node.name}: ")
