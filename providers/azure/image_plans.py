"""Purchase plans of marketplace images: what a VM's request must name, and whether its terms are
accepted.

https://learn.microsoft.com/azure/virtual-machines/linux/cli-ps-findimage#check-the-purchase-plan-information
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.core.errors import CloudConfigError, if_told
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.base.http import Tree

PLAN = ("name", "product", "publisher")


def plan_in(details: Tree) -> dict[str, str] | None:
    """The plan of a version's facts, as a VM's request names it; None without one."""
    plan: Mapping[str, str] = (details.get("properties") or {}).get("plan") or {}
    return {key: str(plan.get(key) or "") for key in PLAN} if plan else None


def refuse_unaccepted(arm: ArmClient, image: str, plan: Mapping[str, str]) -> str:
    """Raise CloudConfigError if the plan's terms are not accepted in this subscription. Returns
    what is known of them, in words.

    https://learn.microsoft.com/rest/api/marketplaceordering/marketplace-agreements/get-agreement
    """
    path = (
        f"{arm.path}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/"
        f"{plan['publisher']}/offers/{plan['product']}/plans/{plan['name']}/agreements/current"
    )
    answer = if_told(lambda: arm.get(path), {})
    accepted = (answer.get("properties") or {}).get("accepted")
    if accepted is False:
        raise CloudConfigError(
            f"the terms of image {image} are not accepted in this subscription",
            hint=f"read and accept them: `az vm image terms accept --urn {image}`",
        )
    words = f"plan {plan['name']} of {plan['publisher']}, billed by its publisher besides"
    return words if accepted else f"{words}; whether its terms are accepted is not reported"
