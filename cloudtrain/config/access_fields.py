"""Field types of `network.ssh_proxy`: what SSH connections to the nodes go through."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from cloudtrain.config.fields import InvalidValue, Reads, line
from cloudtrain.ssh.ssh_proxy import PLACEHOLDERS, placeholders_in

_HOST = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]*)|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_JUMP = re.compile(rf"(?:{_USER}@)?{_HOST}(?::[1-9][0-9]{{0,4}})?")
_ADDRESS = re.compile(r"[\w\[:][\w.:%\[\]-]*")
_LOGIN = re.compile(r"\w[\w.@\\+-]*\$?")
"""Also `DOMAIN\\user`, `user@domain` and a machine's account. Both become arguments of ssh."""
_GROUP = r"[A-Za-z0-9_.()-]{1,90}"
_BASTION = re.compile(
    rf"(?:/subscriptions/[0-9A-Za-z-]+/resourceGroups/{_GROUP}/providers/Microsoft\.Network/"
    rf"bastionHosts/|{_GROUP}/)[A-Za-z0-9_.-]{{1,80}}",
    re.IGNORECASE,
)


def jump_hosts(node: Any) -> str:
    value = line(node)
    if not all(_JUMP.fullmatch(hop) for hop in value.split(",")):
        raise InvalidValue("must be [user@]host[:port], several separated by commas")
    return value


def bastion(node: Any) -> str:
    value = line(node)
    if not _BASTION.fullmatch(value):
        raise InvalidValue("must be GROUP/NAME of a Bastion, or its resource ID")
    return value


def proxy_command(node: Any) -> str:
    value = line(node)
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise InvalidValue(f"is not a command line: {error}") from None
    if not words:
        raise InvalidValue("is empty")
    unknown = [name for word in words for name in placeholders_in(word) if name not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise InvalidValue(f"has an unknown placeholder {{{unknown[0]}}}", f"known: {known}")
    return value


def address(node: Any) -> str:
    value = line(node)
    if not _ADDRESS.fullmatch(value):
        raise InvalidValue("must be a host name, an alias of ~/.ssh/config or an address")
    return value


def user(node: Any) -> str:
    value = line(node)
    if not _LOGIN.fullmatch(value):
        raise InvalidValue("must be a user name")
    return value


Address = Annotated[str, Reads(address, {"title": "host name or address", "type": "string"})]
User = Annotated[str, Reads(user, {"title": "user name", "type": "string"})]
JumpHosts = Annotated[str, Reads(jump_hosts, {"title": "[user@]host[:port]", "type": "string"})]
Bastion = Annotated[str, Reads(bastion, {"title": "GROUP/NAME | ID", "type": "string"})]
ProxyCommand = Annotated[str, Reads(proxy_command, {"title": "command line", "type": "string"})]
