"""Field types of addresses: hosts, networks, services, stores and datasets."""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from cloudtrain.config.fields import ONE_OR_LIST, InvalidValue, Reads, line, matching, nearest, text
from cloudtrain.config.yaml_source import Items
from cloudtrain.core.network import host_of, is_link_local
from cloudtrain.core.store_kinds import KINDS, kind_of
from cloudtrain.ssh.ssh_proxy import PLACEHOLDERS, placeholders_in

# ── hosts and networks ───────────────────────────────────────────────────────

_HOST = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]*)|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_JUMP = rf"(?:{_USER}@)?{_HOST}(?::[1-9][0-9]{{0,4}})?"
_GROUP = r"[A-Za-z0-9_.()-]{1,90}"


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


address = matching(
    r"[\w\[:][\w.:%\[\]-]*", "must be a host name, an alias of ~/.ssh/config or an address"
)
user = matching(r"\w[\w.@\\+-]*\$?", "must be a user name")
"""Also `DOMAIN\\user`, `user@domain` and a machine's account. Both become arguments of ssh."""
jump_hosts = matching(
    rf"{_JUMP}(?:,{_JUMP})*", "must be [user@]host[:port], several separated by commas"
)
bastion = matching(
    rf"(?i:/subscriptions/[0-9A-Za-z-]+/resourceGroups/{_GROUP}/providers/Microsoft\.Network/"
    rf"bastionHosts/|{_GROUP}/)[A-Za-z0-9_.-]{{1,80}}",
    "must be GROUP/NAME of a Bastion, or its resource ID",
)


def firewall(node: Any) -> tuple[str, ...] | None:
    """`own`, `existing`, or one or several names."""
    if isinstance(node, Items):
        if not node:
            raise InvalidValue("lists none: `existing` attaches none")
        return tuple(line(each) for each in node)
    value = line(node)
    if value in ("own", "existing"):
        return None if value == "own" else ()
    return (value,)


def caller(node: Any) -> str:
    value = text(node)
    if value in ("auto", "none"):
        return value
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise InvalidValue(
            "must be auto, none, or an address or range such as 203.0.113.7/32"
        ) from None


def url(node: Any) -> str:
    """Address of a service that gets credentials."""
    value = line(node)
    try:
        host = host_of(value)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if is_link_local(host.name):
        raise InvalidValue("is a metadata service, which is no service of a cloud's API")
    return value


def proxy(node: Any) -> str:
    """URL of a proxy. Every process on a node can read it, so it has no credentials."""
    value = line(node)
    if "@" in value:
        raise InvalidValue("contains a user: every process on a node could read the password")
    if not re.fullmatch(r"https?://([\w.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?", value):
        raise InvalidValue("must be http://HOST:PORT")
    return value.rstrip("/")


host_name = matching(r"[\w.:*/-]+", "must be a host, a domain such as .example.com, or an address")
"""A host, domain, address or range, as `no_proxy` has it."""


# ── stores and datasets ──────────────────────────────────────────────────────


_BUCKET = r"[a-z0-9][a-z0-9._-]{1,220}(/|$)"
_IN_ACCOUNT = r"[a-z0-9]{3,24}/[a-z0-9$][a-z0-9-]*(/|$)"


def store(node: Any) -> str:
    value = line(node)
    scheme, _, rest = value.partition("://")
    kind = kind_of(value)
    if kind is None or kind.scheme != scheme:
        *forms, last = (each.top for each in KINDS)
        raise InvalidValue(f"must begin with {', '.join(forms)} or {last}")
    if kind.on_this_machine:
        if not rest.startswith("/") or not rest.strip("/"):
            raise InvalidValue(
                "must be file:// and an absolute path",
                "for a folder below your home write file://${HOME}/artifacts",
            )
    elif not kind.in_account and re.match(r"[a-z0-9]{1,2}(/|$)", rest):
        raise InvalidValue("must name a bucket of 3 to 63 characters: this name is too short")
    elif not re.match(_IN_ACCOUNT if kind.in_account else _BUCKET, rest):
        raise InvalidValue(f"must be {kind.top}, optionally with a prefix")
    if ".." in rest.split("/"):
        raise InvalidValue("must not contain ..")
    return value


def encryption(node: Any) -> str | None:
    value = line(node)
    if value == "none":
        return None
    if not re.fullmatch(r"AES256|aws:kms(:[\w:/-]+)?", value):
        raise InvalidValue("must be none, AES256, aws:kms or aws:kms:KEY")
    return value


SCHEMES = (*(kind.scheme for kind in KINDS), "https")
FORMS = f"{', '.join(kind.form for kind in KINDS)} or https://HOST/file"
_GRANTS = re.compile(
    r"(?i)x-(amz|goog)-(signature|credential|security-token)|sig|signature|(access_?)?token|key|"
    "api_?key|awsaccesskeyid|googleaccessid|password"
)
"""Parameters of a URL that grant access by themselves."""


def data_name(value: Any) -> Any:
    """Key of a dataset: part of a variable's name and of a placeholder."""
    if not (isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,62}", value)):
        raise InvalidValue(
            "a dataset's name is a lower-case letter, followed by up to 62 lower-case letters, "
            "digits or _"
        )
    return value


def data_uri(node: Any) -> str:
    """URI of a dataset."""
    value = line(node)
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in SCHEMES:
        meant = nearest(scheme, SCHEMES) if separator else None
        hint = "a local folder is file:///absolute/path" if not separator else ""
        if meant:
            hint = f"did you mean {meant}://?"
        raise InvalidValue(f"must be {FORMS}", *([hint] if hint else []))
    if scheme == "https":
        return _https(value)
    if "?" in rest or "#" in rest:
        raise InvalidValue("must not contain ? or #: objects are named by bucket and prefix alone")
    if "//" in rest.lstrip("/") or "." in rest.split("/"):
        raise InvalidValue("must not contain // or /./ in its path")
    return store(node)


def _https(value: str) -> str:
    try:
        parts = urlsplit(value)
        user, host = parts.username, parts.hostname
    except ValueError:
        user, host = None, None
    if not host:
        raise InvalidValue("must be an https:// URL")
    if user is not None:
        raise InvalidValue(
            "contains a user or password in the URL", "records would keep it: use a store instead"
        )
    if any(_GRANTS.fullmatch(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise InvalidValue(
            "contains a signature or key in the URL",
            "records would keep it: use gs://, s3:// or az://, and cloudtrain signs requests",
        )
    if parts.fragment:
        raise InvalidValue("must not contain #")
    if unquote(parts.path.rpartition("/")[2]) in ("", ".", ".."):
        raise InvalidValue("must name one file: https:// has no listing of folders")
    return value


# ── types ────────────────────────────────────────────────────────────────────

Address = Annotated[str, Reads(address, "host name or address", "string")]
User = Annotated[str, Reads(user, "user name", "string")]
JumpHosts = Annotated[str, Reads(jump_hosts, "[user@]host[:port]", "string")]
Bastion = Annotated[str, Reads(bastion, "GROUP/NAME | ID", "string")]
ProxyCommand = Annotated[str, Reads(proxy_command, "command line", "string")]
Firewall = Annotated[
    tuple[str, ...] | None, Reads(firewall, "own | existing | firewall, or a list", *ONE_OR_LIST)
]
Caller = Annotated[str, Reads(caller, "auto | none | address/bits", "string")]
Url = Annotated[str, Reads(url, "URL", "string")]
Proxy = Annotated[str, Reads(proxy, "http://HOST:PORT", "string")]
HostName = Annotated[str, Reads(host_name, "host", "string")]
Encryption = Annotated[str | None, Reads(encryption, "none | AES256 | aws:kms[:KEY]", "string")]
Store = Annotated[str, Reads(store, "store URI", "string")]
DataName = Annotated[str, Reads(data_name, "", "string")]
DataUri = Annotated[str, Reads(data_uri, "URI", "string")]
