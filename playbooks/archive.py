"""A tar that is packed once, when the first node lacks it, and streamed to every node."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.playbooks.folder import FolderEntry, LeftOut, shown

CHUNK = 1 << 18


@dataclass
class Archive:
    """Archive filled by `pack`, with the files to deliver in `code/`. It has no name on disk and
    disappears with the process; every reader gets an error that `pack` raises."""

    pack: Callable[[tarfile.TarFile], None]
    keys: list[LeftOut] = field(default_factory=list)
    """Files of keys that `pack` has left out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _file: IO[bytes] | None = None
    _failure: Exception | None = None

    def chunks(self) -> Iterator[bytes]:
        number = self.make().fileno()
        offset = 0
        while chunk := os.pread(number, CHUNK, offset):
            offset += len(chunk)
            yield chunk

    def make(self) -> IO[bytes]:
        """Pack it now, unless it is packed: what fails does so before a node waits for it."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._file is None:
                try:
                    self._file = self._packed()
                except Exception as failure:
                    self._failure = failure
                    raise
            return self._file

    def _packed(self) -> IO[bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open for all nodes
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.addfile(member("code", tarfile.DIRTYPE, 0o755))
            self.pack(tar)
            # Last, so that a truncated stream is never taken for a complete one.
            tar.addfile(member("complete", tarfile.REGTYPE, 0o644))
        file.flush()
        return file


def member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info


# ── Digest and archive of a listed folder ─────────────────────────────────────────────────────


def folder_digest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Digest of paths, executable bits and contents, as long as they were when listed. Raises
    CloudtrainError if a file disappears or becomes shorter."""
    total = hashlib.sha256()
    for entry in entries:
        if entry.link is None:
            with _opened(root, entry) as file:
                reader = _Listed(file, entry.size)
                while reader.read(CHUNK):
                    pass
            if reader.left:
                raise _changed(root, entry.path)
            _add(total, entry, reader.sum.digest())
        else:
            _add(total, entry, os.fsencode(entry.link))
    return total.hexdigest()[:16]


def folder_archive(root: Path, entries: Sequence[FolderEntry], digest: str) -> Archive:
    """Archive of the folder. Its chunks raise CloudtrainError if what was listed has changed since
    the digest was taken; what a file has gained at its end is left out."""

    def pack(tar: tarfile.TarFile) -> None:
        total = hashlib.sha256()
        for entry in entries:
            _add(total, entry, _pack(tar, root, entry))
        if total.hexdigest()[:16] != digest:
            raise _changed(root, _newest(root, entries))

    return Archive(pack)


def _pack(tar: tarfile.TarFile, root: Path, entry: FolderEntry) -> bytes:
    name = f"code/{entry.path}"
    if entry.link is not None:
        link = member(name, tarfile.SYMTYPE, 0o777)
        link.linkname = entry.link
        tar.addfile(link)
        return os.fsencode(entry.link)
    info = member(name, tarfile.REGTYPE, 0o755 if entry.executable else 0o644)
    with _opened(root, entry) as file:
        info.size, info.mtime = entry.size, int(os.fstat(file.fileno()).st_mtime)
        reader = _Listed(file, entry.size)
        try:
            tar.addfile(info, reader)
        except OSError:  # raised by tarfile for a file that became shorter
            raise _changed(root, entry.path) from None
    return reader.sum.digest()


class _Listed(io.RawIOBase):
    """Reads and hashes the first `size` bytes of a file: a log may have grown since."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.left = file, size
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(data)
        self.sum.update(data)
        return data


def _opened(root: Path, entry: FolderEntry) -> IO[bytes]:
    try:
        return (root / entry.path).open("rb")
    except OSError:
        raise _changed(root, entry.path) from None


def _add(total: hashlib._Hash, entry: FolderEntry, content: bytes) -> None:
    kind = b"l" if entry.link is not None else b"x" if entry.executable else b"f"
    total.update(os.fsencode(entry.path) + b"\0" + kind + b"%d:" % len(content) + content)


def _changed(root: Path, path: str) -> CloudtrainError:
    return CloudtrainError(
        f"{root} changed while it was read: {shown(Path(path))}",
        hint="run the command again; list a file that is written again and again in "
        f"{root}/.cloudtrainignore",
    )


def _newest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Path of the file that was written last."""

    def written(entry: FolderEntry) -> float:
        try:
            return (root / entry.path).lstat().st_mtime
        except OSError:
            return 0.0

    return max(entries, key=written).path
