"""Artifacts in Amazon S3, or in a store that speaks its API, with boto3."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloudtrain.core import errors
from cloudtrain.core.model import Artifact
from cloudtrain.core.protocols import SMALL, StoredObject, Swapped
from cloudtrain.identities.aws import identity
from cloudtrain.stores import StoreWishes
from cloudtrain.stores.objects import AGAIN, CountingReader, ObjectStore, age_of, split
from cloudtrain.stores.presign.s3 import S3Presigner, encryption_arguments

CHUNK = 1 << 20
AT_ONCE = 32
"""Connections to keep open: the number of files transferred in parallel."""

UNFINISHED_DAYS = 7
"""Days after which an unfinished upload cannot be continued: no request is valid for longer."""

LARGE = 8 << 20
"""Bytes from which boto3 uploads in parts (multipart_threshold): the ETag is no MD5 then."""

SAMPLE_BYTES = 1 << 20
"""Maximum size in bytes of an object that is read to find out whether ETags are MD5s."""

GIVEN_BY_DEFAULT = "us-east-1"


def opened(
    uri: str, *, endpoint: str | None, project: str | None, wishes: StoreWishes
) -> ObjectStore:
    """Open `s3://BUCKET/prefix`. Uses boto3's standard credential chain; `project`: its profile."""
    name, prefix = split(uri)
    return _Store(uri, _Bucket(name, endpoint, project, wishes), prefix)


class _Store(ObjectStore):
    bucket: _Bucket

    def check(self) -> None:
        """Check the store; also aborts uploads older than a week, whose parts S3 keeps billing."""
        super().check()
        with self.explained(""):
            self.bucket.presigner.clear(self.prefix, older=UNFINISHED_DAYS * 24 * 3600.0)

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        with self.explained(prefix):
            for found in super().list(prefix, known):
                md5 = self.bucket.md5(self._key(found.path), found.size, found.version)
                yield replace(found, md5=md5)


class _Bucket:
    def __init__(
        self, name: str, endpoint: str | None, profile: str | None, wishes: StoreWishes
    ) -> None:
        import botocore.exceptions

        self._sse = encryption_arguments(wishes.encryption)
        self._pays = {"RequestPayer": "requester"} if wishes.requester_pays else {}

        self._errors = botocore.exceptions
        self._name, self._endpoint = name, endpoint
        self._identity = identity(profile)
        self._identity.ask_ahead()
        self._lock = threading.Lock()
        self._made: tuple[Any, S3Presigner] | None = None
        self._etags_are_md5s: bool | None = None

    @property
    def _client(self) -> Any:
        return self._connected()[0]

    @property
    def url(self) -> str:
        return str(self._client.meta.endpoint_url)

    @property
    def presigner(self) -> S3Presigner:
        return self._connected()[1]

    def _connected(self) -> tuple[Any, S3Presigner]:
        """boto3's client, and what signs with it."""
        with self._lock:
            if self._made is None:
                region = self._identity.session().region_name or os.environ.get("AWS_REGION")
                # A bucket can be reached through any region; S3 redirects to its own.
                client = self._client_for(region or GIVEN_BY_DEFAULT)
                self._made = client, self._presigner(client)
            return self._made

    def _presigner(self, client: Any) -> S3Presigner:
        credentials = self._identity.session().get_credentials
        return S3Presigner(self._name, client, self._client_for, credentials, self._sse, self._pays)

    def _client_for(self, region: str, **options: Any) -> Any:
        import botocore.config

        made = self._identity.client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=region,
            config=botocore.config.Config(
                max_pool_connections=AT_ONCE,
                retries={"mode": "standard", "max_attempts": 6},
                **options,
            ),
        )
        made.meta.events.register("before-sign.s3.PutObject", _send_at_once)
        return made

    def put(self, key: str, data: CountingReader) -> str:
        self._client.upload_fileobj(data, self._name, key, ExtraArgs=self._sse or None)
        self.presigner.give_up(key)
        if data.size < LARGE:
            return ""
        return str(self._client.head_object(Bucket=self._name, Key=key)["ETag"])

    def get(self, key: str) -> Iterator[bytes]:
        body = self._client.get_object(Bucket=self._name, Key=key)["Body"]
        with body:
            yield from body.iter_chunks(CHUNK)

    def stat(self, key: str) -> StoredObject | None:
        try:
            found = self._client.head_object(Bucket=self._name, Key=key, **self._pays)
        except self._errors.ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "403"):
                return None  # without the right to list, S3 answers 403: the listing explains it
            raise
        return StoredObject(
            key=key,
            size=found["ContentLength"],
            version=found["ETag"],
            is_archived=found.get("StorageClass") in _ARCHIVED
            and 'ongoing-request="false"' not in found.get("Restore", ""),
        )

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """List objects without MD5: with KMS an ETag is none, and a listing does not show that."""
        return self._listed(Prefix=prefix)

    def between(
        self, prefix: str, after: str, last: str, *, page: int
    ) -> list[StoredObject] | None:
        """Directory buckets have neither StartAfter nor an order:
        https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html"""
        start = {"StartAfter": after} if after else {}
        found: list[StoredObject] = []
        with suppress(self._errors.ClientError):
            for each in self._listed(Prefix=prefix, **start, PaginationConfig={"PageSize": page}):
                if after and each.key <= after:
                    return None
                if last and each.key > last:
                    break
                found.append(each)
                if each.key == last:
                    break
            return found
        return None

    def _listed(self, **wanted: Any) -> Iterator[StoredObject]:
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._name, **wanted, **self._pays):
            for found in page.get("Contents", ()):
                yield StoredObject(
                    key=found["Key"],
                    size=found["Size"],
                    version=found["ETag"],
                    is_archived=found.get("StorageClass") in _ARCHIVED,
                )

    def read(self, key: str, version: str, offset: int) -> Iterator[bytes]:
        wanted = {**self._pays, **({"Range": f"bytes={offset}-"} if offset else {})}
        found = self._client.get_object(Bucket=self._name, Key=key, IfMatch=version, **wanted)
        body = found["Body"]
        with body:
            yield from body.iter_chunks(CHUNK)

    def location(self) -> str:
        return self.presigner.region()

    def md5(self, key: str, size: int, tag: str) -> str:
        """The ETag if it is the MD5; else "". It is not an MD5 for multipart uploads, with KMS or
        SSE-C, or in directory buckets, though it may look like one (S3 user guide, "Checking object
        integrity"). As listings do not show which applies, the first small object is read and
        decides for all.
        """
        etag = tag.strip('"')
        if not re.fullmatch("[0-9a-f]{32}", etag):
            return ""
        if self._etags_are_md5s is None and size <= SAMPLE_BYTES:
            with suppress(self._errors.ClientError):  # just replaced or deleted: the next one
                digest = hashlib.md5(usedforsecurity=False)
                for data in self.get(key):
                    digest.update(data)
                self._etags_are_md5s = digest.hexdigest() == etag
        return etag if self._etags_are_md5s else ""

    def copy(self, source: str, target: str) -> None:
        where = {"Bucket": self._name, "Key": source}
        self._client.copy(where, self._name, target, ExtraArgs=self._sse or None)

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create the bucket, private to its account; unfinished uploads expire after a week. The
        creating call sets the tags, as a policy may require (botocore's model of S3,
        CreateBucketConfiguration.Tags)."""
        if self._exists():
            return False
        region = _region(location) or self._client.meta.region_name
        client = self._client_for(region)
        # us-east-1 is the one region that must be omitted.
        where: dict[str, Any] = {} if region == "us-east-1" else {"LocationConstraint": region}
        if tags:
            where["Tags"] = [{"Key": name, "Value": value} for name, value in tags.items()]
        try:
            client.create_bucket(
                Bucket=self._name, **({"CreateBucketConfiguration": where} if where else {})
            )
        except client.exceptions.BucketAlreadyOwnedByYou:
            return False
        # S3 itself has blocked public access to new buckets since April 2023:
        # https://aws.amazon.com/about-aws/whats-new/2022/12/amazon-s3-automatically-enable-block-public-access-disable-access-control-lists-buckets-april-2023/
        # Stores that only speak its API may not know these calls.
        with suppress(self._errors.ClientError):
            client.put_public_access_block(
                Bucket=self._name, PublicAccessBlockConfiguration=dict.fromkeys(_BLOCKED, True)
            )
        with suppress(self._errors.ClientError):
            client.put_bucket_lifecycle_configuration(
                Bucket=self._name, LifecycleConfiguration={"Rules": [_UNFINISHED_GO]}
            )
        self._made = client, self._presigner(client)
        return True

    def _exists(self) -> bool:
        """True if the bucket exists, even if we may not inspect it."""
        try:
            self._client.head_bucket(Bucket=self._name)
        except self._errors.ClientError as error:
            return _status(error) != 404
        return True

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._name, Key=key)

    def swap(self, key: str, data: bytes | None, version: str) -> Swapped:
        """https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html and
        …/conditional-deletes.html"""
        where = {"Bucket": self._name, "Key": key}
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
        try:
            if data is not None:
                made = self._client.put_object(**where, Body=data, **condition, **self._sse)
                return Swapped(done=True, version=made["ETag"])
            if version:
                self._client.delete_object(**where, **condition)
            return Swapped(done=True)
        except self._errors.ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _NOT_THAT_VERSION:
                raise
        return self.peek(key)

    def peek(self, key: str) -> Swapped:
        try:
            answer = self._client.get_object(Bucket=self._name, Key=key)
        except self._client.exceptions.NoSuchKey:
            return Swapped(done=False)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        with answer["Body"] as body:
            return Swapped(
                done=False,
                version=answer["ETag"],
                data=body.read(SMALL),
                age=age_of(answer["LastModified"], date),
            )

    def explain(self, error: Exception) -> errors.CloudtrainError | None:
        """Convert an exception. Codes: the S3 API reference, "Error responses"."""
        import boto3.exceptions

        if isinstance(error, boto3.exceptions.S3UploadFailedError) and error.__context__:
            error = error.__context__ if isinstance(error.__context__, Exception) else error
        if isinstance(error, self._errors.ClientError):
            refusal = error.response.get("Error", {})
            code, text = str(refusal.get("Code", "")), str(refusal.get("Message") or error)
            if _status(error) >= 500 or _status(error) == 429:
                return errors.StoreAway(f"{code}: {text}", hint=AGAIN)
            refused = _refusal(code, f"{code}: {text}")
            return self._identity.cured(refused) if code in _WHO else refused
        if isinstance(error, self._errors.ConnectionError | self._errors.HTTPClientError):
            return errors.StoreAway(str(error), hint="check that the store is reachable")
        if isinstance(error, self._errors.BotoCoreError | boto3.exceptions.Boto3Error):
            return errors.StoreError(str(error), hint="check that the store is reachable")
        return None


def _send_at_once(request: Any, **_: object) -> None:
    """Without `Expect: 100-continue`, which boto3 adds to every body (botocore/handlers.py,
    add_expect_header): a round trip before an object that is sent in one request."""
    del request.headers["Expect"]


_ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes that must be restored before a read:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html"""

_NOT_THAT_VERSION = ("PreconditionFailed", "412", "ConditionalRequestConflict", "NoSuchKey")
_BLOCKED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_UNFINISHED_GO = {
    "ID": "unfinished uploads go",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UNFINISHED_DAYS},
}


def _region(location: str | None) -> str | None:
    """The region for a region, zone or local zone: us-east-1, us-east-1a, us-west-2-lax-1a."""
    found = re.match(r"[a-z]{2}(-[a-z]+)+-[0-9]+", location or "")
    return found[0] if found else location


_WHO = (
    "InvalidAccessKeyId",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
)


def _refusal(code: str, text: str) -> errors.CloudtrainError:
    if code in _WHO:
        return errors.CredentialsError(text)
    if code in ("AccountProblem", "NotSignedUp", "AllAccessDisabled"):
        # https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, read 2026-11-26
        return errors.PermissionsError(
            text,
            hint="see https://console.aws.amazon.com/billing for what AWS wants of the account",
        )
    if code in ("AccessDenied", "403"):
        return errors.PermissionsError(
            text,
            hint="docs/aws.md lists the permissions that an s3:// store needs; a bucket's policy "
            "may also demand `artifacts.encryption`, and for `data:` its owner `requester_pays`",
        )
    if code in ("NoSuchBucket", "404"):
        return errors.NoBucketError(
            text, hint="run `aws s3 mb s3://BUCKET`, or set `artifacts.create: true`"
        )
    if code == "BucketAlreadyExists":
        return errors.NameTakenError(text, hint="names are shared by all accounts: use another one")
    return errors.StoreError(text, hint=AGAIN)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
