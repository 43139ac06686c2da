"""Artifacts in Amazon S3, or in a store that speaks its API, with boto3."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.errors import CloudtrainError, CredentialsError, PermissionsError, StoreError
from cloudtrain.protocols import Receipt, Ticket
from cloudtrain.stores.objects import ObjectStore, split

CHUNK = 1 << 20
AT_ONCE = 32
"""Connections kept open: as many as files are brought home side by side."""


class S3Store(ObjectStore):
    """`s3://BUCKET/prefix`. Credentials are those of boto3's own chain."""

    def __init__(
        self, uri: str, *, endpoint: str | None = None, profile: str | None = None
    ) -> None:
        bucket, prefix = split(uri, "s3://BUCKET/prefix", 1)
        super().__init__(uri, _Bucket(bucket, endpoint, profile), prefix)


class _Bucket:
    def __init__(self, name: str, endpoint: str | None, profile: str | None) -> None:
        import boto3
        import botocore.config
        import botocore.exceptions

        self._errors = botocore.exceptions
        self._name = name
        try:
            session = boto3.Session(profile_name=profile)
        except botocore.exceptions.ProfileNotFound as error:
            raise CredentialsError(f"AWS: {error}", hint="`aws configure list-profiles`") from error
        self._client: Any = session.client(
            "s3",
            endpoint_url=endpoint,
            # A bucket is reached through any region; S3 tells its own in a redirect.
            region_name=session.region_name or os.environ.get("AWS_REGION") or "us-east-1",
            config=botocore.config.Config(
                max_pool_connections=AT_ONCE, retries={"mode": "standard", "max_attempts": 6}
            ),
        )

    def put(self, key: str, data: io.RawIOBase) -> None:
        self._client.upload_fileobj(data, self._name, key)

    def get(self, key: str) -> Iterator[bytes]:
        body = self._client.get_object(Bucket=self._name, Key=key)["Body"]
        with body:
            yield from body.iter_chunks(CHUNK)

    def keys(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._name, Prefix=prefix):
            for found in page.get("Contents", ()):
                yield found["Key"], found["Size"], ""

    def copy(self, source: str, target: str) -> None:
        where = {"Bucket": self._name, "Key": source}
        self._client.copy(where, self._name, target)

    def create(self, location: str | None) -> bool:
        raise NotImplementedError

    def ticket(self, key: str, size: int | None, *, lasts: float) -> Ticket | None:
        return None

    def commit(self, ticket: Ticket, receipts: Sequence[Receipt]) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._name, Key=key)

    def explain(self, error: Exception) -> CloudtrainError | None:
        """Codes: the S3 API reference, "Error responses"."""
        import boto3.exceptions

        if isinstance(error, boto3.exceptions.S3UploadFailedError) and error.__context__:
            error = error.__context__ if isinstance(error.__context__, Exception) else error
        if isinstance(error, self._errors.NoCredentialsError | self._errors.TokenRetrievalError):
            return CredentialsError(str(error), hint="`aws configure` or `aws sso login`")
        if isinstance(error, self._errors.ClientError):
            told = error.response.get("Error", {})
            code, words = str(told.get("Code", "")), str(told.get("Message") or error)
            return _refusal(code, f"{code}: {words}")
        if isinstance(error, self._errors.BotoCoreError | boto3.exceptions.Boto3Error):
            return StoreError(str(error), hint="see that the store is reachable")
        return None


def _refusal(code: str, text: str) -> CloudtrainError:
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return CredentialsError(text, hint="`aws sts get-caller-identity` tells who you are")
    if code in ("AccessDenied", "403", "AllAccessDisabled"):
        return PermissionsError(text, hint="s3:PutObject, GetObject, DeleteObject, ListBucket")
    if code in ("NoSuchBucket", "404"):
        return StoreError(text, hint="`aws s3 mb s3://BUCKET` makes a bucket")
    return StoreError(text, hint="run the same command again; it goes on from here")
