"""A place for a node on a machine."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.core.model import Host, SshProxy
from cloudtrain.core.task_id import TaskId


@dataclass(frozen=True, kw_only=True)
class HostSlot(TaskId):
    """One node's slot on a machine; several slots may share a machine."""

    name: str
    host: Host
    proxy: SshProxy | None = None
    """What SSH goes through."""

    @property
    def machine(self) -> tuple[str, int, str | None]:
        """The same for the slots of one user on one machine."""
        return self.host.address, self.host.port, self.host.user
