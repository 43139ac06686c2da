"""Keeps archives in the store of the artifacts, and lets nodes read them.

Nodes upload the parts to a folder of that upload alone. Only this machine writes to the folder from
which later clusters read: it copies the parts there inside the store once all have arrived."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.artifacts.uploads import Upload, upload_from_node
from cloudtrain.core import moments
from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import StoreError
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.datasets.dataset import DataFile
from cloudtrain.node.listing import File
from cloudtrain.setup.programs import FORMAT, ArchivePart, EnvironmentArchive, OnNode, StorePlace
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.folder import home

if TYPE_CHECKING:
    from cloudtrain.stores.data import DataStore

FOLDER = ".environments"
"""In the store, beside the runs: no run's id begins with a dot."""

AT_ONCE = 16


def store_archive(
    packed: OnNode, place: StorePlace, store: ArtifactStore, transport: Transport, stop: Stop
) -> EnvironmentArchive:
    """Upload the parts from their node, copy them to their place, and record the archive here.
    `store` is the one at `place`. Raises StoreError, NodeUnreachable."""
    archive = packed.archive
    staging = Staging(
        id=uuid.uuid4().hex,
        store=place,
        folder=f"{FOLDER}/staging-{uuid.uuid4().hex}",
        begun=moments.now(),
    )
    save(staging)
    final = folder_of(archive)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        due = {
            f"{staging.folder}/{part.name}": File(part.name, part.name, part.size, "")
            for part in archive.parts
        }
        upload = Upload(transport=transport, store=store, pool=pool, stop=stop)
        sent = upload_from_node(packed.node, f"{packed.folder}/parts", due, upload)
        for part in archive.parts:
            arrived = sent.arrived.get(part.name)
            if arrived is None:
                raise StoreError(f"{part.name} was not uploaded: {sent.why or 'it changed'}")
            if (arrived.size, arrived.sha256) != (part.size, part.sha256):
                raise StoreError(f"{part.name} was changed between packing and uploading")
        names = [part.name for part in archive.parts]
        stop.check()
        kept = replace(archive, store=place, folder=final, created=moments.now())
        # Recorded before the first copy: a killed one is found by `gc`. Without versions it is
        # not used.
        save(kept)
        copies = [(f"{staging.folder}/{name}", f"{final}/{name}") for name in names]
        list(pool.map(lambda copy: store.copy(*copy), copies))
        list(pool.map(lambda copy: store.delete(copy[0]), copies))
    kept = replace(kept, parts=tuple(listed(kept, archive_data(place, kept))), used=moments.now())
    save(kept)
    forget(staging)
    return kept


def folder_of(archive: EnvironmentArchive) -> str:
    return f"{FOLDER}/{archive.key}/{archive.sha256[:32]}"


def listed(archive: EnvironmentArchive, data: DataStore) -> Iterator[ArchivePart]:
    """The parts with their objects and versions as the store lists them. Raises StoreError."""
    found = {each.key.rpartition("/")[2]: each for each in data.objects()}
    for part in archive.parts:
        stored = found.get(part.name)
        if stored is None or stored.size != part.size:
            raise StoreError(f"{part.name}: the store does not list it with {part.size:,} bytes")
        yield replace(part, object=stored.key, version=stored.version)


class StoreSigner:
    """Signs the downloads of an archive's parts in a store, for the versions that were listed."""

    def __init__(self, archive: EnvironmentArchive, data: DataStore) -> None:
        self._objects = {part.name: part for part in archive.parts}
        self._data = data

    def sign(self, file: DataFile, *, expires_in: float) -> PresignedRequest | None:
        part = self._objects[file.path]
        return self._data.sign(part.object, part.version, expires_in=expires_in)

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        part = self._objects[file.path]
        if offset < part.size:
            yield from self._data.read(part.object, part.version, offset)


def delete(record: EnvironmentArchive | Staging, store: ArtifactStore) -> None:
    """Delete the files in the record's folder, and then the record. Raises StoreError."""
    if not record.folder.startswith(f"{FOLDER}/"):
        raise StoreError(f"{record.folder!r} is not the folder of an environment")
    for file in list(store.list(f"{record.folder}/")):
        store.delete(file.path)
    forget(record)


def archive_data(place: StorePlace, archive: EnvironmentArchive) -> DataStore:
    """Reads the archive's folder in the store."""
    from cloudtrain.stores.data import open_data  # with urllib.request, slow to import

    uri = f"{place.uri.rstrip('/')}/{folder_of(archive)}/"
    return open_data(uri, endpoint=place.endpoint, project=place.project)


# ── What this machine knows of archives in stores: their SHA-256, which no store can change ───
# `<state>/environments/` has one file for each archive, and one for each upload that has begun; the
# latter names the folder in which a killed upload has left its parts.


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """Folder in a store into which a node uploads the parts of one archive."""

    id: str
    store: StorePlace
    folder: str
    begun: float = field(metadata=UNIX_TIME)


def archives() -> tuple[EnvironmentArchive, ...]:
    """All that are known, the last one created first."""
    found = _read("archive-*.json", EnvironmentArchive)
    return tuple(sorted(found, key=lambda each: each.created, reverse=True))


def archive_for(key: str, store: StorePlace) -> EnvironmentArchive | None:
    """The newest archive of that store for nodes with this key, copied to its end."""
    fitting = (
        each
        for each in archives()
        if (each.key, each.store, each.format) == (key, store, FORMAT)
        and all(part.object for part in each.parts)
    )
    return next(fitting, None)


def stagings() -> tuple[Staging, ...]:
    """Uploads that have begun and not ended, or whose end is not known."""
    return tuple(_read("staging-*.json", Staging))


def mark_used(archive: EnvironmentArchive, now: float) -> None:
    """Record its use, if it is still known."""
    if _path(archive).exists():
        save(replace(archive, used=now))


def save(record: EnvironmentArchive | Staging) -> None:
    path = _path(record)
    make_folder(path.parent)
    write_whole(path, json.dumps(asdict(record)).encode())


def forget(record: EnvironmentArchive | Staging) -> None:
    _path(record).unlink(missing_ok=True)


def _path(record: EnvironmentArchive | Staging) -> Path:
    if isinstance(record, Staging):
        return home() / f"environments/staging-{record.id}.json"
    return home() / f"environments/archive-{record.key}-{record.sha256[:16]}.json"


def _read(pattern: str, kind: type[T]) -> Iterator[T]:
    for path in sorted((home() / "environments").glob(pattern)):
        try:
            yield decode(kind, json.loads(path.read_bytes()))
        except (OSError, ValueError, InvalidRecord):
            continue
