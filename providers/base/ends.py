"""Ends of a cluster's nodes: one moment for all of them, and what the cloud says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudConfigError, CloudError
from cloudtrain.core.model import Plan
from cloudtrain.providers.base.driver import CloudDriver, ConfirmsEnds, Vm
from cloudtrain.providers.base.timing import Timing


@dataclass(frozen=True)
class Ends:
    account: CloudDriver[Any]
    timing: Timing

    def choose(self, plan: Plan, there: Mapping[str, Vm]) -> tuple[float | None, bool]:
        """Give all nodes the same end when a node joins or is restarted. Returns that end, and
        whether any node's end was moved."""
        expires = self._expires(plan, there)
        if expires is None:
            return None, False
        names = {node.name for node in plan.nodes}
        others = [m for m in there.values() if m.node.state != "stopped"]
        joins = bool(names - there.keys()) or len(others) < len(there)
        overdue = any((m.node.expires or expires) <= self.timing.clock.now() for m in others)
        # By more than the rounding error of labels.
        moved = [m for m in others if abs((m.node.expires or 0.0) - expires) > 1.0]
        if moved and (joins or overdue):
            self.account.move_ends(moved, expires)
            return expires, True
        return expires, False

    def repair(self, there: Sequence[Vm]) -> None:
        """Have the cloud end the nodes that it says it does not, if it can."""
        guarded = [machine for machine in there if self._guards(machine)]
        if guarded and isinstance(self.account, ConfirmsEnds):
            self.account.repair_ends(guarded)

    def _expires(self, plan: Plan, there: Mapping[str, Vm]) -> float | None:
        """The expiry of new nodes: the existing nodes' expiry, or now + max_lifetime if there is
        none or it has passed; never later than what they are bought from, nor than the plan's
        `latest_end`."""
        now, paid, soonest = self.timing.clock.now(), plan.latest_end, self.account.soonest_end
        latest, end = self.account.latest_end(plan), self._wished_end(plan, there)
        end = end if latest is None else min(latest, end or latest)
        if paid is None or (end is not None and end <= paid):
            return end
        if paid < now + soonest:
            raise CloudConfigError(
                f"limits.budget: its rest pays for {max(0.0, paid - now) / 60:.0f} min, and "
                f"{self.account.name} needs {soonest / 60:.0f} min to end a node in time",
                hint="raise limits.budget",
            )
        return paid

    def _wished_end(self, plan: Plan, there: Mapping[str, Vm]) -> float | None:
        """The same by `limits.max_lifetime` alone."""
        known = [m.node.expires for m in there.values() if m.node.expires is not None]
        if known and plan.earliest_end is not None:
            return max(min(known), plan.earliest_end)
        now, lifetime = self.timing.clock.now(), plan.config.limits.max_lifetime
        ahead = [end for end in known if end > now]
        if ahead:
            return max(min(ahead), now + self.account.soonest_end)
        if known and lifetime is None:
            return now + self.account.soonest_end
        return None if lifetime is None else now + lifetime

    def confirmed(self, machines: Sequence[Vm]) -> list[Vm]:
        """The VMs with what the cloud says of their ends; none is believed without an answer."""
        asked = [machine for machine in machines if self._guards(machine)]
        if not asked or not isinstance(self.account, ConfirmsEnds):
            return list(machines)
        try:
            missing = self.account.missing_ends(asked)
        except CloudError as error:
            missing = {m.id: f"{self.account.name} did not answer: {error.message}" for m in asked}
        return [
            replace(m, node=replace(m.node, no_end=missing.get(m.id, m.node.no_end)))
            for m in machines
        ]

    def _guards(self, machine: Vm) -> bool:
        """True for a VM that is billed now and is to end later."""
        node = machine.node
        return (
            node.state == "running"
            and node.expires is not None
            and node.expires > self.timing.clock.now()
        )
