"""What Microsoft.Network refuses in a security rule."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from tests.standins.azure_errors import Body, Refusal

SERVICE_TAGS = ("VirtualNetwork", "AzureLoadBalancer", "Internet", "*")


def check_rule(name: str, rule: Body) -> None:
    if not 100 <= rule["priority"] <= 4096:
        text = (
            f"Security rule has invalid Priority. Value provided: {rule['priority']} "
            "Allowed range 100-4096."
        )
        raise Refusal(400, "SecurityRuleInvalidPriority", text)
    for side in ("source", "destination"):
        for what, fits in (("AddressPrefix", _is_prefix), ("PortRange", _is_port)):
            single, plural = (
                f"{side}{what}",
                f"{side}{what}{'es' if what == 'AddressPrefix' else 's'}",
            )
            several = rule.get(plural) or []
            if rule.get(single) and several:
                text = f"Security rule {name} has both {single} and {plural}."
                raise Refusal(400, "SecurityRuleInvalidParameters", text)
            values = several or [rule.get(single)]
            if values == [None]:
                text = (
                    "Required security rule parameters are missing for security rule "
                    f"with Id: {name}. Security rule must specify {plural} or {single}."
                )
                raise Refusal(400, "SecurityRuleParameterIsMissing", text)
            for value in values:
                if not fits(value):
                    text = f"Security rule {name} has invalid {what}. Value provided: {value}."
                    raise Refusal(400, f"SecurityRuleInvalid{what}", text)


def _is_prefix(text: Any) -> bool:
    if text in SERVICE_TAGS:
        return True
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_port(text: Any) -> bool:
    found = re.match(r"(\d+)(?:-(\d+))?\Z", str(text))
    if text == "*":
        return True
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    return low <= high <= 65535
