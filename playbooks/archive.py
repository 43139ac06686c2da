"""A tar that is packed once, when the first node lacks it, and streamed to every node."""

from __future__ import annotations

import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

from cloudtrain.playbooks.folder import LeftOut

CHUNK = 1 << 18


@dataclass
class Archive:
    """Archive filled by `pack`, with the files to deliver in `code/`.

    It has no name on disk and disappears with the process; every reader gets an error that `pack`
    raises.
    """

    pack: Callable[[tarfile.TarFile], None]
    keys: list[LeftOut] = field(default_factory=list)
    """Files of keys that `pack` has left out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _file: IO[bytes] | None = None
    _failure: Exception | None = None

    def make(self) -> None:
        """Pack it now, unless it is packed: what fails does so before a node waits for it."""
        self._made()

    def chunks(self) -> Iterator[bytes]:
        number = self._made().fileno()
        place = 0
        while chunk := os.pread(number, CHUNK, place):
            place += len(chunk)
            yield chunk

    def _made(self) -> IO[bytes]:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._file is None:
                try:
                    self._file = self._make()
                except Exception as failure:
                    self._failure = failure
                    raise
            return self._file

    def _make(self) -> IO[bytes]:
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
