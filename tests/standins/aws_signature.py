"""Signature Version 4 of a request, computed again with botocore."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from tests.standins.aws_query import Refused, real

if TYPE_CHECKING:
    from werkzeug.wrappers import Request

FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/,]+)/(?P<day>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request, ?SignedHeaders=(?P<headers>[^,]+), ?"
    r"Signature=(?P<signature>[0-9a-f]{64})\Z"
)


@dataclass(frozen=True, kw_only=True)
class Scope:
    key: str
    region: str
    service: str


def scope(request: Request) -> Scope:
    """Who signed it, and for which service and region."""
    found = FORM.match(request.headers.get("Authorization", ""))
    if not found:
        raise real("signature-missing")
    return Scope(key=found["key"], region=found["region"], service=found["service"])


def verify(request: Request, secret: str) -> None:
    """A header `Host` that was signed without the port is taken too: a client that knows
    AWS's own port alone, like libcloud's, signs it so."""
    found = FORM.match(request.headers["Authorization"])
    assert found
    headers = found["headers"].split(";")
    if "host" not in headers or not {"x-amz-date", "date"} & set(headers):
        raise failure()
    for host in {request.host, request.host.partition(":")[0]}:
        if _sign(request, secret, found, headers, host) == found["signature"]:
            return
    raise failure()


def refuse_old(request: Request) -> None:
    """Refuses what was signed 15 minutes before or after now, by its date (RequestExpired in
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html). Tests do not turn
    this clock, which is the clients'.
    """
    text = request.headers.get("X-Amz-Date", "")
    signed = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    if abs(time.time() - signed.timestamp()) > 900.0:
        raise real("request-expired")


def _sign(
    request: Request, secret: str, found: re.Match[str], headers: list[str], host: str
) -> str:
    kind = _S3 if found["service"] == "s3" else _Other
    auth = kind(Credentials(found["key"], secret), found["service"], found["region"])
    copy = AWSRequest(
        method=request.method,
        url=f"{request.scheme}://{host}{request.environ['RAW_URI'].partition('?')[0]}",
        params=list(request.args.items(multi=True)),
        data=request.get_data(cache=True),
        headers={
            name: host if name == "host" else request.headers.get(name, "") for name in headers
        },
    )
    copy.context["timestamp"] = request.headers.get("X-Amz-Date", "")
    return str(auth.signature(auth.string_to_sign(copy, auth.canonical_request(copy)), copy))


class _Exactly:
    """The headers that were signed, where botocore leaves out some that others sign."""

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return HTTPHeaders.from_dict({key.lower(): value for key, value in request.headers.items()})


class _S3(_Exactly, S3SigV4Auth):
    pass


class _Other(_Exactly, SigV4Auth):
    pass


def failure() -> Refused:
    return real("signature-wrong")
