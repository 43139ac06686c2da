"""Nodes that wait for capacity in the cloud's queue while others of a creation run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudtrain.core.errors import CapacityError
from cloudtrain.core.model import Market, Node, Plan
from cloudtrain.core.paths import some
from cloudtrain.providers.base.driver import Vm

QUEUED: frozenset[Market] = frozenset({"flex-start"})
"""Markets on which a request may wait for capacity in the cloud's queue; it is not billed then."""

PARTIAL = 600.0
"""Seconds for which new nodes are kept, and billed, while others of them still wait in the queue.

Each request waits by itself: Google creates several VMs at once through resize requests of a
managed instance group only, whose VMs have one user data, and so one host key, together:
https://docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig"""


@dataclass(kw_only=True)
class Queued:
    """Nodes of one creation that the cloud may let wait for capacity."""

    plan: Plan
    new: frozenset[str]
    """Nodes that were requested together; none if nodes of the cluster were there before, which
    are billed anyway."""
    begun: set[str] = field(default_factory=set)
    """Nodes that were seen to run, whose costs began then."""
    billed: float | None = None
    """When the first of the new nodes was seen to run."""

    @property
    def names(self) -> frozenset[str]:
        nodes = self.plan.nodes
        return frozenset(node.name for node in nodes if node.provisioning.market in QUEUED)

    def newly_billed(self, machines: Sequence[Vm]) -> list[Vm]:
        """The machines that waited and run now: journaled again, as what waits costs nothing."""
        nodes = {m.node.name: m for m in machines if m.node.state == "running"}
        new = [nodes[name] for name in sorted(self.names & nodes.keys() - self.begun)]
        self.begun.update(machine.node.name for machine in new)
        return new

    def refuse_partial(self, nodes: Sequence[Node], now: float) -> None:
        """Raise CapacityError if some new nodes were billed for too long while others wait."""
        running = sorted(n.name for n in nodes if n.name in self.new and n.state == "running")
        waiting = sorted(n.name for n in nodes if n.name in self.names and n.state == "starting")
        if not running or not waiting:
            return
        self.billed = now if self.billed is None else self.billed
        if now - self.billed < PARTIAL:
            return
        raise CapacityError(
            f"{some(waiting)}: no capacity {PARTIAL / 60:.0f} min after {some(running)} began to "
            "run, which would be billed until all of them do",
            scope="zone",
            hint="all new nodes are deleted; `cloudtrain up --wait 6h` requests them again",
        )
