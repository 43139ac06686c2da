"""Where artifacts are kept: one file per kind of store."""

from __future__ import annotations

import importlib.util

from cloudtrain.errors import UsageError
from cloudtrain.protocols import StoreBackend

KINDS = (
    "file:///absolute/path, gs://BUCKET/prefix, s3://BUCKET/prefix, az://ACCOUNT/CONTAINER/prefix"
)
EXTRAS = {
    "gs": ("google.cloud.storage", "gcp"),
    "s3": ("boto3", "aws"),
    "az": ("azure.storage.blob", "azure"),
}
"""What each needs, and the extra of cloudtrain that brings it."""


def open_store(
    uri: str,
    *,
    endpoint: str | None = None,
    project: str | None = None,
) -> StoreBackend:
    """The store that a URI names. Asks nothing yet. Raises UsageError.

    `endpoint` is another address of its service, `project` what `project:` names on the cloud whose
    store it is: the AWS profile for s3, the Google project in which a gs bucket is made.
    """
    scheme = scheme_of(uri)
    if scheme == "file":
        from cloudtrain.stores.file import FileStore

        return FileStore(uri)
    if scheme not in EXTRAS:
        raise UsageError(f"artifacts.store: {uri}: no such kind of store", hint=f"it is {KINDS}")
    _refuse_missing(uri, *EXTRAS[scheme])
    if scheme == "gs":
        from cloudtrain.stores.gs import GoogleStore

        return GoogleStore(uri, endpoint=endpoint, project=project)
    if scheme == "s3":
        from cloudtrain.stores.s3 import S3Store

        return S3Store(uri, endpoint=endpoint, profile=project)
    from cloudtrain.stores.az import AzureStore

    return AzureStore(uri, endpoint=endpoint)


def scheme_of(uri: str) -> str:
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def _refuse_missing(uri: str, package: str, extra: str) -> None:
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # a namespace around it is not there
        found = None
    if found is None:
        raise UsageError(
            f"artifacts.store: {uri}: it needs {package}, which is not installed",
            hint=f"pip install 'cloudtrain[{extra}]'",
        )
