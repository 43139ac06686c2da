"""Addresses in a cloud's answers."""

from __future__ import annotations

import ipaddress


def ip_address(text: object) -> str:
    """The address; "" if the text is not one, as that of a node whose address is not known yet: it
    becomes an argument of ssh and a line of its files.
    """
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        return ""
