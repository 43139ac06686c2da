"""Contents of a spool archive, and landing its files from a local copy."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Protocol

from cloudtrain.artifacts.manifest_writer import ManifestWriter
from cloudtrain.core.codec import PATH, decode
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import is_inside, shown
from cloudtrain.node import formats

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpoolCheckpoint:
    """A checkpoint folder, if there is one, and its files' stamps by path in the work folder."""

    folder: str | None = field(metadata=PATH)
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SpoolIndex:
    """Index of an archive: the files that the node read whole, by member name.

    `checkpoint_is_whole`: nothing there changed while the archive was read. `left`: bytes by folder
    that were still to be stored when the node's end had been announced.
    """

    files: Mapping[str, Artifact]
    checkpoint: SpoolCheckpoint
    checkpoint_is_whole: bool
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Index:
    """An index as JSON has it. Its files are artifacts whose path is called `name`."""

    files: tuple[Mapping[str, object], ...]
    checkpoint: SpoolCheckpoint
    whole: int
    left: Mapping[str, int] = field(default_factory=dict)


class SpoolArchive(Protocol):
    """An archive whose files can land. `digests`: SHA-256 of its members' actual bytes."""

    @property
    def index(self) -> SpoolIndex: ...

    @property
    def digests(self) -> Mapping[str, str]: ...

    def land(self, due: Mapping[str, Artifact]) -> list[Artifact]:
        """Land members, by their paths in the manifest. Raises an error unless all landed."""

    def rest(self, path: str, log: Artifact, start: int) -> Iterator[bytes]:
        """The bytes of a log from `start` on; the manifest has it, in full, as `path`."""


class LocalSpool:
    """An archive in a local file. Raises ValueError, KeyError, TypeError or TarError for an invalid
    one.
    """

    def __init__(self, spool: IO[bytes], ledger: ManifestWriter, pool: ThreadPoolExecutor) -> None:
        self._spool, self._ledger, self._pool = spool, ledger, pool
        spool.seek(0)
        with tarfile.open(
            fileobj=spool, mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            members = {member.name: member for member in archive if member.isreg()}
        about = members[formats.ABOUT]
        text = os.pread(spool.fileno(), about.size, about.offset_data)
        self.index = parse_index(text, {each.name: each.size for each in members.values()})
        self._starts = {each.name: each.offset_data for each in members.values()}
        files = self.index.files
        self.digests = dict(zip(files, pool.map(self._digest, files.values()), strict=True))

    def land(self, due: Mapping[str, Artifact]) -> list[Artifact]:
        return list(self._pool.map(self._landed, due, due.values()))

    def rest(self, path: str, log: Artifact, start: int) -> Iterator[bytes]:
        return self._pieces(log, start)

    def _landed(self, path: str, member: Artifact) -> Artifact:
        key = self._ledger.key(self._ledger.place(path))
        stored = self._ledger.store.upload(key, self._pieces(member))
        return self._ledger.landed(path, stored, member.stamp)

    def _digest(self, member: Artifact) -> str:
        digest = hashlib.sha256()
        for piece in self._pieces(member):
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self, member: Artifact, skip: int = 0) -> Iterator[bytes]:
        """Read by position, as several threads read at once."""
        first = self._starts[member.path]
        end = first + member.size
        for start in range(first + skip, end, _CHUNK):
            yield os.pread(self._spool.fileno(), min(_CHUNK, end - start), start)


def parse_index(text: bytes | str, members: Mapping[str, int]) -> SpoolIndex:
    """Parse the index of an archive with these members and sizes.

    Raises ValueError, KeyError or TypeError for an invalid one.
    """
    index = decode(_Index, json.loads(text))
    files = {}
    for each in index.files:
        file = decode(Artifact, {**each, "path": each["name"]})
        if members[file.path] != file.size:
            raise ValueError(f"archive index does not match member {shown(file.path)}")
        if each["whole"] == 1:
            files[file.path] = file
    is_whole = index.whole == 1 and all(map(is_inside, index.checkpoint.files))
    return SpoolIndex(
        files=files, checkpoint=index.checkpoint, checkpoint_is_whole=is_whole, left=index.left
    )
