"""Presigns requests to S3, one URL for each part of a large file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from cloudtrain.core import moments
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.shell import Secret

SMALL = 16 << 20
"""Maximum size in bytes of a file that is sent in one request."""

PART = 10 << 20
"""Bytes of a part of a larger file; S3 accepts 5 MiB to 5 GiB, and 10,000 parts:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
Not boto3's 8 MiB: an upload that boto3 left needs checksums that a node's parts do not have."""

MOST_PARTS = 10_000
LONGEST = 7 * 24 * 3600
"""Maximum validity of a signature, in seconds; one by temporary credentials expires with them."""


class S3Presigner:
    """Presigner for one bucket; objects are named by key. Thread-safe. Raises boto3's exceptions.
    `client` works for any region, one of `make(region, **options)` signs by `credentials()`."""

    def __init__(
        self,
        bucket: str,
        client: Any,
        make: Callable[..., Any],
        credentials: Callable[[], Any],
        encryption: Mapping[str, str] = {},
        payer: Mapping[str, str] = {},
    ) -> None:
        """`encryption`: arguments of each upload; `payer`: those of each read of input data."""
        self._bucket, self._client, self._make = bucket, client, make
        self._credentials = credentials
        self._urls: QuickUrls | None = None
        self._lock = threading.Lock()
        self._signing: Any = None
        self._encryption, self._payer = encryption, payer
        self._open: set[str] = set()
        """Keys with unfinished uploads."""

    def sign_upload(self, key: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        if size is None or size <= SMALL:
            url = self._quick().url("put_object", key, _valid(expires_in), self._encryption)
            headers = _headers(self._encryption)
            whole = PresignedRequest(url=Secret(url), headers=headers)
            return PresignedUpload(path=key, requests=(whole,))
        length = part_length(size)
        upload, uploaded = self._begun(key, size, length)
        requests = tuple(
            PresignedRequest(
                url=self._signed(
                    "upload_part", expires_in, Key=key, UploadId=upload, PartNumber=number
                ),
                offset=offset,
                length=min(length, size - offset),
            )
            for number, offset in enumerate(range(0, size, length), 1)
        )
        return PresignedUpload(path=key, requests=requests, upload_id=upload, uploaded=uploaded)

    def sign_download(self, key: str, *, expires_in: float) -> PresignedRequest:
        return PresignedRequest(url=self._signed("get_object", expires_in, Key=key), method="GET")

    def sign_read(
        self, key: str, version: str, *, inside: str, expires_in: float
    ) -> PresignedRequest:
        """Sign a GET of that version: the condition is part of the signature."""
        wanted = {"IfMatch": version, **self._payer}
        url = self._quick().url("get_object", key, _valid(expires_in), wanted)
        return PresignedRequest(url=Secret(url), method="GET", headers=_headers(wanted))

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        """Complete an upload. S3 checks each part's ETag: of an earlier attempt's, the MD5."""
        tags = [part.etag or f'"{part.md5}"' for part in parts]
        numbered = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        version = ""
        try:
            made = self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=upload.path,
                UploadId=upload.upload_id,
                MultipartUpload={"Parts": numbered},
            )
            version = str(made.get("ETag", ""))
        except self._client.exceptions.NoSuchUpload:
            # A retry after a lost answer: S3 no longer knows the upload.
            if not self._is_whole(upload.path, tags):
                raise
        self._open.discard(upload.path)
        return version

    def give_up(self, key: str) -> None:
        """Abort uploads of a file that arrived in another way: their parts are billed."""
        if key in self._open:
            for _, upload, _ in self._uploads(key, key):
                self._abort(key, upload)
            self._open.discard(key)

    def clear(self, prefix: str, *, older: float) -> None:
        """Abort uploads of any file below `prefix` that began more than `older` seconds ago."""
        for key, upload, begun in self._uploads(prefix):
            if moments.now() - begun > older:
                self._abort(key, upload)

    def _begun(self, key: str, size: int, length: int) -> tuple[str, frozenset[str]]:
        """Continue an upload that was left, or begin one; abort others. Returns ID and parts."""
        self._open.add(key)
        chosen, had = "", frozenset[str]()
        for _, upload, _ in self._uploads(key, key):
            blocks = None if chosen else self._blocks(key, upload, size, length)
            if blocks:
                chosen, had = upload, blocks
            else:
                self._abort(key, upload)
        if not chosen:
            # The signing client: with the other one, boto3 would make S3 expect CRCs of parts.
            made = self._signer().create_multipart_upload(
                Bucket=self._bucket, Key=key, **self._encryption
            )
            chosen = made["UploadId"]
        return chosen, had

    def _uploads(self, prefix: str, key: str | None = None) -> list[tuple[str, str, float]]:
        """Key, ID and start (Unix time) of unfinished uploads; empty if they cannot be listed."""
        found = []
        with suppress(self._client.exceptions.ClientError):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                found += [
                    (each["Key"], each["UploadId"], each["Initiated"].timestamp())
                    for each in page.get("Uploads", ())
                    if each["Key"].startswith(prefix) and key in (None, each["Key"])
                ]
        return found

    def _blocks(self, key: str, upload: str, size: int, length: int) -> frozenset[str] | None:
        """Existing parts by the names that nodes give them; None if their sizes are not ours."""
        blocks = set()
        with suppress(self._client.exceptions.ClientError):
            listing = self._client.get_paginator("list_parts")
            pages = listing.paginate(Bucket=self._bucket, Key=key, UploadId=upload)
            for part in (each for page in pages for each in page.get("Parts", ())):
                offset = (part["PartNumber"] - 1) * length
                if part["Size"] != min(length, size - offset):
                    return None
                with suppress(ValueError):  # not an MD5: the part is sent again
                    blocks.add(block(offset, bytes.fromhex(part["ETag"].strip('"'))))
        return frozenset(blocks)

    def _abort(self, key: str, upload: str) -> None:
        with suppress(self._client.exceptions.ClientError):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    def _is_whole(self, key: str, tags: Sequence[str]) -> bool:
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=key)
            digests = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
        except (self._client.exceptions.ClientError, ValueError):
            return False
        digest = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        return str(found["ETag"]).strip('"') == f"{digest}-{len(tags)}"

    def _signed(self, action: str, expires_in: float, **arguments: Any) -> Secret:
        """Sign only the method, host and query, as a node adds Content-MD5. Not a CRC: S3 refuses
        `x-amz-` headers that are not signed, so its value would have to be known here
        (https://github.com/aws/aws-sdk-go-v2/pull/2387)."""
        params, seconds = {"Bucket": self._bucket, **arguments}, _valid(expires_in)
        sign = self._signer().generate_presigned_url
        return Secret(sign(action, Params=params, ExpiresIn=seconds))

    def _quick(self) -> QuickUrls:
        if self._urls is None:
            self._urls = QuickUrls(self._bucket, self._signer(), self._credentials)
        return self._urls

    def _signer(self) -> Any:
        with self._lock:
            if self._signing is None:
                self._signing = self._make(self.region(), **self._options())
            return self._signing

    def region(self) -> str:
        """The bucket's own region: S3 refuses signatures for another one."""
        try:
            answer = self._client.head_bucket(Bucket=self._bucket)
        except self._client.exceptions.ClientError as error:
            answer = error.response  # a refusal has the region as well
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return str(headers.get("x-amz-bucket-region") or self._client.meta.region_name)

    def _options(self) -> dict[str, Any]:
        import botocore.config

        options: dict[str, Any] = {"signature_version": "s3v4"}
        # Since 1.36 botocore would sign a checksum of the body, which is empty here.
        if "request_checksum_calculation" in botocore.config.Config.OPTION_DEFAULTS:
            options["request_checksum_calculation"] = "when_required"
        s3 = dict(self._client.meta.config.s3 or {})
        host = urlsplit(self._client.meta.endpoint_url).hostname or ""
        if ".amazonaws.com" in host and s3.get("addressing_style") in (None, "auto"):
            # Otherwise it uses the global host, which redirects, for every region.
            s3["addressing_style"] = "virtual"
        return {**options, "s3": s3} if s3 else options


def _valid(expires_in: float) -> int:
    return max(1, min(int(expires_in), LONGEST))


HEADERS = {
    "IfMatch": "If-Match",
    "ServerSideEncryption": "x-amz-server-side-encryption",
    "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
    "RequestPayer": "x-amz-request-payer",
}
"""boto3's arguments as headers (botocore's model of S3): signed, so that a node must send them."""


def _headers(arguments: Mapping[str, str]) -> dict[str, str]:
    return {HEADERS[name]: value for name, value in arguments.items()}


def encryption_arguments(wish: str | None) -> Mapping[str, str]:
    """boto3's arguments for `AES256`, `aws:kms` or `aws:kms:KEY`.
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/specifying-kms-encryption.html"""
    if not wish:
        return {}
    key = wish.removeprefix("aws:kms:") if wish.startswith("aws:kms:") else ""
    kind = {"ServerSideEncryption": "aws:kms" if key else wish}
    return {**kind, "SSEKMSKeyId": key} if key else kind


def part_length(size: int) -> int:
    """The bytes in every part except the last, a multiple of 1 MiB."""
    least = -(-size // MOST_PARTS)
    return max(PART, -(-least // (1 << 20)) << 20)


def block(offset: int, md5: bytes) -> str:
    """The name of a block, as in node/uploader.py."""
    return base64.b64encode(f"{offset:016d}{md5.hex()}".encode()).decode()


# ── requests signed here ───────────────────────────────────────────────────────
# `generate_presigned_url` builds and resolves a whole request for each URL: 0.27 ms, and botocore's
# signer alone 0.1 ms; 0.01 ms here (2026-11-27). What boto3 does for one key is learned from its
# first answer; if ours differs in a byte, boto3 signs all others of that action too.
# https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html


UNRESERVED = "/~"
"""Characters of a key that botocore does not encode in a path (botocore/serialize.py)."""
METHODS = {"get_object": "GET", "put_object": "PUT"}


class _Frame(NamedTuple):
    """Of a request, what is the same for all keys: before and after the key of what is hashed, then
    of the URL; `text` is before the hash, and `mac` keyed with the day's key."""

    before: str = ""
    after: str = ""
    query: str = ""
    text: str = ""
    mac: Any = None


class QuickUrls:
    """URLs of one bucket's objects. `client` signs for its region; `credentials` returns those of
    its session, which may change. Thread-safe. Raises boto3's exceptions."""

    def __init__(self, bucket: str, client: Any, credentials: Callable[[], Any]) -> None:
        self._bucket, self._client, self._credentials = bucket, client, credentials
        self._starts: dict[str, str] = {}
        """Of an action's URLs, before the key; "" if boto3 signs them."""
        self._derived: tuple[object, bytes] = None, b""
        """The last signing key, and of what it was derived."""
        self._framed: tuple[object, _Frame] = None, _Frame()

    def url(self, action: str, key: str, seconds: int, arguments: Mapping[str, str]) -> str:
        """Sign a request, valid for `seconds`; `arguments`: boto3's, all of them headers."""
        if "RequestPayer" in arguments or not key or key.startswith("/"):
            return self._theirs(
                action, key, seconds, arguments
            )  # what endpoints make of it differs
        if action not in self._starts:
            self._starts[action] = self._learned(action, key, seconds, arguments)
        if start := self._starts[action]:
            return self._ours(action, start, key, seconds, arguments)
        return self._theirs(action, key, seconds, arguments)

    def _learned(self, action: str, key: str, seconds: int, arguments: Mapping[str, str]) -> str:
        theirs = self._theirs(action, key, seconds, arguments)
        path, _, query = theirs.partition("?")
        start = path.removesuffix(encoded(key))
        moment = query.partition("&X-Amz-Date=")[2].partition("&")[0]
        same = self._ours(action, start, key, seconds, arguments, moment) == theirs
        return start if start != path and same else ""

    def _theirs(self, action: str, key: str, seconds: int, arguments: Mapping[str, str]) -> str:
        params = {"Bucket": self._bucket, "Key": key, **arguments}
        sign = self._client.generate_presigned_url
        return str(sign(action, Params=params, ExpiresIn=seconds))

    def _ours(
        self,
        action: str,
        start: str,
        key: str,
        seconds: int,
        arguments: Mapping[str, str],
        moment: str = "",
    ) -> str:
        given = self._credentials().get_frozen_credentials()
        moment = moment or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moments.now()))
        of = (action, start, seconds, *arguments.items(), given, moment)
        framed, frame = self._framed
        if framed != of:  # the same for all URLs of a second, but for those with an ETag of theirs
            frame = self._frame(action, start, seconds, arguments, given, moment)
            self._framed = of, frame
        key = encoded(key)
        request = hashlib.sha256(f"{frame.before}{key}{frame.after}".encode()).hexdigest()
        signature = frame.mac.copy()
        signature.update(f"{frame.text}{request}".encode())
        return f"{start}{key}?{frame.query}&X-Amz-Signature={signature.hexdigest()}"

    def _frame(
        self,
        action: str,
        start: str,
        seconds: int,
        arguments: Mapping[str, str],
        given: Any,
        moment: str,
    ) -> _Frame:
        scope = f"{moment[:8]}/{self._client.meta.region_name}/s3/aws4_request"
        host, path = _host_and_path(start)
        headers = sorted((name.lower(), value) for name, value in _headers(arguments).items())
        headers.insert(bisect_left(headers, ("host",)), ("host", host))
        signed = ";".join(name for name, _ in headers)
        query = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{given.access_key}/{scope}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(seconds),
            "X-Amz-SignedHeaders": signed,
            **({"X-Amz-Security-Token": given.token} if given.token is not None else {}),
        }
        encoded_query = {name: quote(value, safe="-._~") for name, value in query.items()}
        words = [f"{name}={value}" for name, value in encoded_query.items()]
        lines = ["", "&".join(sorted(words))]
        lines += [f"{name}:{' '.join(value.split())}" for name, value in headers]
        lines += ["", signed, "UNSIGNED-PAYLOAD"]
        return _Frame(
            before=f"{METHODS[action]}\n{path}",
            after="\n".join(lines),
            query="&".join(words),
            text=f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n",
            mac=hmac.new(self._signing_key(given.secret_key, scope), digestmod="sha256"),
        )

    def _signing_key(self, secret: str, scope: str) -> bytes:
        of, key = self._derived
        if of != (secret, scope):
            key = f"AWS4{secret}".encode()
            for word in scope.split("/"):
                key = _mac(key, word)
            self._derived = (secret, scope), key
        return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _host_and_path(url: str) -> tuple[str, str]:
    """As botocore signs them: without the scheme's own port (botocore/auth.py, _host_from_url)."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    return host.removesuffix({"http": ":80", "https": ":443"}.get(scheme, "")), f"/{path}"


def encoded(key: str) -> str:
    return quote(key.encode("utf-8", "surrogatepass"), safe=UNRESERVED)
