"""Contents of a spool archive, and landing its files from a local copy."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Any, Protocol

from cloudtrain.artifacts.manifest import LandedFile
from cloudtrain.artifacts.manifest_writer import ManifestWriter
from cloudtrain.model import Artifact
from cloudtrain.node import formats
from cloudtrain.node.listing import nanoseconds
from cloudtrain.paths import is_inside, shown

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpoolFile:
    """One file of an archive, as the archive's index describes it, and where its bytes are.

    `at`: offset in a local copy, or number on a node. `found`: SHA-256 of the actual bytes.
    """

    name: str
    size: int
    stamp: str
    sha256: str
    whole: bool
    at: int
    found: str = ""

    @property
    def path(self) -> str:
        return self.name[len(formats.ARCHIVED_WORK) :]

    @property
    def is_intact(self) -> bool:
        return self.whole and self.found == self.sha256


class SpoolArchive(Protocol):
    """An archive whose files can land."""

    @property
    def files(self) -> Sequence[SpoolFile]: ...

    @property
    def checkpoint(self) -> Mapping[str, Any] | None: ...

    def land(self, due: Mapping[str, SpoolFile]) -> list[LandedFile]:
        """Land all of these files (by path in the manifest). Raises an error unless all landed."""

    def rest(self, path: str, log: SpoolFile, start: int) -> Iterator[bytes]:
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
        places = {each.name: (each.size, each.offset_data) for each in members.values()}
        files, self.checkpoint = parse_index(text, places)
        digests = pool.map(self._digest, files)
        self.files = tuple(replace(each, found=next(digests)) for each in files)

    def land(self, due: Mapping[str, SpoolFile]) -> list[LandedFile]:
        return list(self._pool.map(self._landed, due, due.values()))

    def rest(self, path: str, log: SpoolFile, start: int) -> Iterator[bytes]:
        return self._pieces(log, start)

    def _landed(self, path: str, file: SpoolFile) -> LandedFile:
        key = self._ledger.key(self._ledger.place(path))
        return landed(path, file, self._ledger.store.upload(key, self._pieces(file)), self._ledger)

    def _digest(self, file: SpoolFile) -> str:
        digest = hashlib.sha256()
        for piece in self._pieces(file):
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self, file: SpoolFile, skip: int = 0) -> Iterator[bytes]:
        """Read by position, as several threads read at once."""
        end = file.at + file.size
        for start in range(file.at + skip, end, _CHUNK):
            yield os.pread(self._spool.fileno(), min(_CHUNK, end - start), start)


def parse_index(
    text: bytes | str, members: Mapping[str, tuple[int, int]]
) -> tuple[list[SpoolFile], Mapping[str, Any] | None]:
    """Parse the index of an archive with these members (name → size and place).

    Raises ValueError, KeyError or TypeError for an invalid one.
    """
    facts = json.loads(text)
    files = []
    for each in facts["files"]:
        name = str(each["name"])
        size, at = members[name]
        if not is_inside(name) or size != each["size"]:
            raise ValueError(f"archive index does not match member {shown(name)}")
        files.append(
            SpoolFile(
                name=name,
                size=size,
                stamp=str(each["stamp"]),
                sha256=str(each["sha256"]),
                whole=each["whole"] == 1,
                at=at,
            )
        )
    checkpoint = facts["checkpoint"]
    is_whole = facts["whole"] == 1 and all(is_inside(path) for path in checkpoint["files"])
    return files, {**checkpoint, "whole": is_whole} if checkpoint["folder"] else None


def landed(path: str, file: SpoolFile, artifact: Artifact, ledger: ManifestWriter) -> LandedFile:
    mtime = nanoseconds(file.stamp.split("/")[0]) if "/" in file.stamp else 0
    return LandedFile(
        path=path,
        size=artifact.size,
        sha256=artifact.sha256,
        md5=artifact.md5,
        at=ledger.place(path),
        mtime=mtime,
        stamp=file.stamp if mtime else "",
    )
