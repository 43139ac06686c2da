"""Signs GETs of S3 objects by botocore's signer alone: a quarter of the time of boto3's own way.

`generate_presigned_url` builds and resolves a whole request for each URL (0.27 ms; 0.06 ms here,
2026-11-23). What it does for one key is learned from its first answer; if ours differs in a byte,
boto3 signs all others too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

UNRESERVED = "/~"
"""Characters of a key that botocore does not encode in a path (botocore/serialize.py)."""
TRIES = 5
"""The two ways agree only within one second of the clock."""


class ReadUrls:
    """URLs of one bucket's objects. `client` signs for its region; `credentials` returns those of
    its session, which may change; `payer`: boto3's argument for data whose reader pays.
    Thread-safe. Raises boto3's exceptions.
    """

    def __init__(
        self,
        bucket: str,
        client: Any,
        credentials: Callable[[], Any],
        payer: Mapping[str, str] = {},
    ) -> None:
        self._bucket, self._client, self._credentials = bucket, client, credentials
        self._payer = payer
        self._start: str | None = None
        """Of all URLs, before the key; "" if boto3 signs them; None before the first one."""

    def url(self, key: str, version: str, seconds: int) -> str:
        """Sign a GET on condition of `If-Match: version`, valid for `seconds`."""
        if self._payer or not key or key.startswith("/"):  # what endpoints make of these differs
            return self._theirs(key, version, seconds)
        if self._start is None:
            self._start = self._learned(key, version, seconds)
        if not self._start:
            return self._theirs(key, version, seconds)
        return self._ours(self._start, key, version, seconds)

    def _learned(self, key: str, version: str, seconds: int) -> str:
        for _ in range(TRIES):
            theirs = self._theirs(key, version, seconds)
            path = theirs.partition("?")[0]
            start = path.removesuffix(encoded(key))
            if start == path:
                return ""
            ours = self._ours(start, key, version, seconds)
            if ours == theirs:
                return start
        return ""

    def _theirs(self, key: str, version: str, seconds: int) -> str:
        params = {"Bucket": self._bucket, "Key": key, "IfMatch": version, **self._payer}
        url: str = self._client.generate_presigned_url(
            "get_object", Params=params, ExpiresIn=seconds
        )
        return url

    def _ours(self, start: str, key: str, version: str, seconds: int) -> str:
        from botocore.auth import AUTH_TYPE_MAPS  # another signer with botocore's `crt`
        from botocore.awsrequest import AWSRequest

        frozen = self._credentials().get_frozen_credentials()
        region = self._client.meta.region_name
        request = AWSRequest("GET", start + encoded(key), headers={"If-Match": version})
        signer = AUTH_TYPE_MAPS["s3v4-query"]
        signer(frozen, "s3", region, expires=seconds).add_auth(request)
        url: str = request.url
        return url


def encoded(key: str) -> str:
    from botocore.compat import quote

    text: str = quote(key.encode("utf-8", "surrogatepass"), safe=UNRESERVED)
    return text
