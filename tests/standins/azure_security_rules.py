"""What Microsoft.Network refuses in a security rule."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from tests.standins.azure_errors import Body, real

SERVICE_TAGS = ("VirtualNetwork", "AzureLoadBalancer", "Internet", "*")


def check_rule(name: str, rule: Body) -> None:
    if not 100 <= rule["priority"] <= 4096:
        raise real("rule-priority-invalid", priority=rule["priority"])
    for side in ("source", "destination"):
        for what, fits in (("AddressPrefix", _is_prefix), ("PortRange", _is_port)):
            single, plural = (
                f"{side}{what}",
                f"{side}{what}{'es' if what == 'AddressPrefix' else 's'}",
            )
            several = rule.get(plural) or []
            if rule.get(single) and several:
                raise real("rule-with-both-forms", name=name, single=single, plural=plural)
            values = several or [rule.get(single)]
            if values == [None]:
                raise real("rule-incomplete", name=name, plural=plural, single=single)
            for value in values:
                if not fits(value):
                    raise real("rule-value-invalid", what=what, name=name, value=value)


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
