"""Finding of `check` on spot capacity: evidence, which stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.cluster.session import Handle
from cloudtrain.core.errors import if_told
from cloudtrain.core.partial_list import evidence_text
from cloudtrain.core.protocols import Finding, RentsMachines


def spot_finding(handle: Handle, others: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return where the cloud expects spot machines to be had; none without spot nodes, if the cloud
    says nothing, or if `others`, the findings on the same place, would stop `up`.
    """
    if not any(node.spot for node in handle.plan.nodes) or not all(each.ok for each in others):
        return ()
    provider = handle.provider
    if not isinstance(provider, RentsMachines):
        return ()

    def ask() -> tuple[Finding, ...]:
        found = provider.spot_evidence(handle.plan)
        text = f"{evidence_text(found)}; `up` tries the zones of a region in this order"
        return (Finding(what="spot", ok=True, text=text),) if found else ()

    return if_told(
        ask,
        lambda error: (
            Finding(what="spot", ok=True, text=f"not known: {error.message}", told=False),
        ),
    )
