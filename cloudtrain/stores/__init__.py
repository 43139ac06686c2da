"""Where artifacts are kept: one file per kind of store."""

from __future__ import annotations

from cloudtrain.errors import UsageError
from cloudtrain.protocols import ArtifactStore

_PLANNED = {"gs": "Google Cloud Storage", "s3": "Amazon S3", "az": "Azure Blob Storage"}


def open_store(uri: str) -> ArtifactStore:
    """The store that a URI names. Makes and asks nothing yet. Raises UsageError."""
    scheme, separator, _ = uri.partition("://")
    if separator and scheme.lower() == "file":
        from cloudtrain.stores.file import FileStore

        return FileStore(uri)
    name = _PLANNED.get(scheme.lower()) if separator else None
    raise UsageError(
        f"artifacts.store: {uri}: "
        + (f"{name} is not in this version of cloudtrain" if name else "no such kind of store"),
        hint="this version keeps artifacts in a folder: file:///absolute/path",
    )
