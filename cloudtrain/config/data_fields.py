"""Field types of `data:`: the name of a dataset, and where it comes from."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from cloudtrain.config.fields import InvalidValue, Reads, line, nearest, store
from cloudtrain.core.store_kinds import KINDS

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


DataName = Annotated[str, Reads(data_name, {"type": "string"})]
DataUri = Annotated[str, Reads(data_uri, {"title": "URI", "type": "string"})]
