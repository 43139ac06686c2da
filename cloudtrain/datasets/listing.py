"""Lists a dataset: every object with its version, and names that are safe as files on a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from cloudtrain.cluster.session import is_of_the_nodes_cloud
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import (
    CloudtrainError,
    DataError,
    NoBucketError,
    PermissionsError,
    StoreError,
)
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import StoredObject
from cloudtrain.core.store_kinds import KINDS, scheme_of
from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.stores import StoreWishes

if TYPE_CHECKING:
    from cloudtrain.stores.data import DataStore

MOST_FILES = 2_000_000
"""A dataset with more files is refused: about 1 GB of memory here, and hours on any node."""

LONGEST_NAME, LONGEST_PATH = 255, 3000
"""Bytes of a name and of a path on a node (NAME_MAX and PATH_MAX of Linux, with space for the
folder of the dataset)."""


def list_dataset(config: ClusterConfig, name: str, store: DataStore) -> Dataset:
    """List a dataset of the config, whose store is open. Raises DataError for a dataset without
    objects, with a name that no file can have, or with an object that cannot be read;
    CredentialsError, PermissionsError."""
    source = config.data[name]
    with named(name):
        single = None if source.source.endswith("/") else store.stat()
        below = iter(store.objects())
        try:
            first = next(below, None)
        except PermissionsError:
            if single is None:
                raise
            first = None  # one object needs no right to list
        if single is not None and not single.is_folder:
            if first is not None:
                raise StoreError(
                    f"{source.source}: is an object, and objects are below it too",
                    hint=f"write {source.source}/ for those below it",
                )
            path = single.key.rpartition("/")[2]
            if scheme_of(source.source) == "https":
                path = unquote(urlsplit(source.source).path.rpartition("/")[2])
            files = (_file(single, path),)
            return Dataset(name=name, source=source, files=files, base=single.key, single=True)
        if first is None:
            raise StoreError(f"no object under {source.source}", hint="check the URI")
        start = store.prefix.rstrip("/") + "/" if store.prefix else ""
        found = _files(chain([first], below), start)
        return Dataset(name=name, source=source, files=_sorted(source.source, found), base=start)


def open_source(config: ClusterConfig, name: str) -> DataStore:
    """Open a dataset, with `endpoints.storage` and `project` if they are of its service."""
    from cloudtrain.stores.data import open_data  # with urllib.request, slow to import

    uri = config.data[name].source
    with named(name):
        return open_data(
            uri,
            endpoint=config.endpoints.storage if _has_the_endpoint(config, uri) else None,
            project=config.project if is_of_the_nodes_cloud(uri, config) else None,
            wishes=StoreWishes(requester_pays=config.data[name].requester_pays),
        )


def _has_the_endpoint(config: ClusterConfig, uri: str) -> bool:
    if config.artifacts.store is not None:
        return scheme_of(config.artifacts.store) == scheme_of(uri)
    cloud = cloud_of(config.provider)
    return cloud is None or cloud.store_scheme == scheme_of(uri)


def _files(objects: Iterable[StoredObject], start: str) -> Iterator[DataFile]:
    for found in objects:
        path = found.key[len(start) :]
        is_marker = not found.size and (not path or path.endswith("/"))
        if not (found.is_folder or is_marker):
            yield _file(found, path)


def _file(found: StoredObject, path: str) -> DataFile:
    fault = name_fault(path)
    if fault is not None:
        raise StoreError(f"{shown(found.key)}: {fault}", hint="rename or move this object")
    if found.is_archived:
        raise StoreError(f"{shown(found.key)}: is archived", hint="restore it, then try again")
    sums = {"md5": found.md5, "crc32c": found.crc32c}
    return DataFile(path=path, size=found.size, version=found.version, **sums)


def _sorted(source: str, files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Sort the files by path; refuse a file that is also the folder of another."""
    found = []
    for file in files:
        found.append(file)
        if len(found) > MOST_FILES:
            raise StoreError(
                f"{source}: has more than {MOST_FILES:,} objects",
                hint="pack them into fewer files, such as TFRecords or tar",
            )
    if not found:
        raise StoreError(f"no object under {source}, only empty folders", hint="check the URI")
    found.sort(key=lambda file: file.path)
    names = {file.path for file in found}
    for file in found:
        at = file.path.find("/")
        while at >= 0:
            if file.path[:at] in names:
                raise StoreError(
                    f"{shown(file.path[:at])} and {shown(file.path)}: one would be both a file "
                    "and a folder",
                    hint="rename or move one of the two objects",
                )
            at = file.path.find("/", at + 1)
    return tuple(found)


def name_fault(path: str) -> str | None:
    """Reason for which no file on a node can have this path; None if one can."""
    names = path.split("/")
    if path.startswith("/"):
        return "its path is absolute below the prefix"
    if path.endswith("/"):
        return "its name ends with /, yet it has content"
    if "" in names:
        return "its path contains //"
    if {".", ".."}.intersection(names):
        return "its path contains . or .. as a folder"
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        return "its name contains a control character"
    try:
        size = max(len(name.encode()) for name in names)
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    if size > LONGEST_NAME:
        return f"a part of its name has {size} bytes; files take at most {LONGEST_NAME}"
    if len(path.encode()) > LONGEST_PATH:
        return f"its path has more than {LONGEST_PATH} bytes"
    return None


@contextmanager
def named(name: str) -> Iterator[None]:
    """Name the dataset in errors, with hints for reading."""
    try:
        yield
    except CloudtrainError as error:
        changes = {"what": f"data.{name}", "text": error.message.removeprefix("data: ")}
        if isinstance(error, NoBucketError):
            changes["hint"] = "check the name: the bucket or container must exist"
        elif isinstance(error, PermissionsError) and "://" in error.what:  # of a bucket
            changes["hint"] = READERS
        named = error.copy_with(**changes)
        if isinstance(named, StoreError):
            named = DataError(named.text, hint=named.hint, what=named.what)
        raise named from None


READERS = "you need to list and read it: " + ", ".join(
    f"{kind.reader} ({kind.scheme})" for kind in KINDS if kind.reader
)


# ── Signs the downloads of one dataset, and reads it here where nodes cannot ──────────────────


class DataSigner:
    """Signer of one dataset, with the credentials of its open store. Thread-safe."""

    def __init__(self, dataset: Dataset, store: DataStore) -> None:
        self._dataset, self._store = dataset, store

    def sign(self, file: DataFile, *, expires_in: float) -> PresignedRequest | None:
        """Sign a GET of the listed version, for that object (Google: for the dataset's prefix).

        The request has all headers that a node must send; once the object has changed, the service
        answers 412 or 404. None if nodes cannot read it, or this machine may not sign: it has to
        relay it by `read`. Raises DataError.
        """
        key = self._dataset.key(file)
        try:
            with named(self._dataset.name):
                return self._store.sign(key, file.version, expires_in=expires_in)
        except PermissionsError:
            return None

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        """Yield bytes of the listed version. Raises DataError, also if the object has changed."""
        if offset >= file.size:
            return
        with named(self._dataset.name):
            yield from self._store.read(self._dataset.key(file), file.version, offset)

    def location(self) -> str:
        """The region of the data, "" if it is not known."""
        return self._store.location()
