"""What providers share whose machines nobody rents: no account, no bill, no end, no boot log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloudtrain.core.model import Node, Plan
from cloudtrain.core.partial_list import PartialList, Whereabouts
from cloudtrain.core.protocols import Finding, Principal


class OwnMachines:
    """Provider for machines of the user's. Subclasses list them, create and delete nodes."""

    whereabouts: Whereabouts | None = None

    def principal(self) -> Principal | None:
        """None: there is no account other than the user who is logged in."""
        return None

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return ()  # nothing is rented: `check` covers everything

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        raise NotImplementedError

    def find(self, cluster: str) -> PartialList[Node]:
        return PartialList(self.nodes(cluster))

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        """Do nothing: only `limits.idle` and `down` end such nodes."""

    def serial_log(self, cluster: str, node: str) -> str:
        return ""
