"""Private files that are whole after a crash; errors name the file."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cloudtrain.core.errors import UsageError

_numbers = itertools.count()


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


CHOOSE = "choose another folder with CLOUDTRAIN_HOME"
NO_FOLDER = f"records need a folder that you may write to: {CHOOSE} (or HOME)"


class DiskFull(UsageError):
    """No space for a record."""


@contextmanager
def named_faults(path: Path) -> Iterator[None]:
    """Turn an OSError inside into one clear error that names the file (disk full, no
    permission)."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in FULL
        raise (DiskFull if is_full else UsageError)(
            f"{error.filename or path}: {error.strerror or error}",
            hint=f"free some space there, or {CHOOSE}" if is_full else NO_FOLDER,
        ) from error


def make_folder(path: Path) -> None:
    """Create `path` and missing folders above it with mode 0700."""
    with named_faults(path):
        missing = itertools.takewhile(lambda folder: not folder.is_dir(), (path, *path.parents))
        for folder in reversed(list(missing)):
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(folder))
            folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write atomically: old or new content, also after a power cut (another file, fsync,
    rename)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}")
    with named_faults(path):
        try:
            with _private(temporary, os.O_TRUNC) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Append one line, on disk on return. A torn last line is ended first, never joined."""
    with named_faults(path), _private(path, os.O_APPEND) as file:
        size = os.fstat(file.fileno()).st_size
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _private(path: Path, flag: int) -> IO[bytes]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flag, 0o600)
    return os.fdopen(descriptor, "r+b")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
