"""Input data in a folder or file of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.core.errors import PermissionsError, StoreError
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import StoredObject
from cloudtrain.stores.file import folder_of

_CHUNK = 1 << 20


class FileData:
    """DataStore of a path; keys are absolute paths. Links are followed, as a user's own tools
    would; one that is broken or leads back to its own folder raises StoreError.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.prefix = os.path.normpath(folder_of(uri))

    def stat(self) -> StoredObject | None:
        try:
            facts = Path(self.prefix).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _explained(self.prefix, error) from error
        return None if stat.S_ISDIR(facts.st_mode) else _described(self.prefix, facts)

    def objects(self) -> Iterator[StoredObject]:
        if Path(self.prefix).is_dir():
            yield from _walk(self.prefix, (os.path.realpath(self.prefix),))

    def read(self, key: str, version: str, offset: int = 0) -> Iterator[bytes]:
        try:
            with Path(key).open("rb", buffering=0) as file:
                file.seek(offset)
                while True:
                    data = file.read(_CHUNK)
                    if _version(os.fstat(file.fileno())) != version:
                        raise StoreError(
                            f"{shown(key)}: changed since it was listed",
                            hint="run the command again once nothing writes to it",
                        )
                    if not data:
                        return
                    yield data
        except OSError as error:
            raise _explained(key, error) from error

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        """Sign nothing: nodes cannot reach files of this machine."""
        return None

    def location(self) -> str:
        return ""


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[StoredObject]:
    """Yield every file below; `above` are the real paths of the folder and those it is in."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        for entry in entries:
            if entry.is_dir():
                below = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if entry.is_symlink() and below in above:
                    raise StoreError(
                        f"{shown(entry.path)}: this link leads back to a folder that it is in",
                        hint="remove the link, or name another folder",
                    )
                yield from _walk(entry.path, (*above, os.path.realpath(entry.path)))
            else:
                yield _described(entry.path, entry.stat())
    except OSError as error:
        raise _explained(error.filename or folder, error) from error


def _described(path: str, facts: os.stat_result) -> StoredObject:
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError(f"{shown(path)}: is not a regular file", hint="remove it from the data")
    return StoredObject(key=path, size=facts.st_size, version=_version(facts))


def _version(facts: os.stat_result) -> str:
    return f"{facts.st_mtime_ns}-{facts.st_ino}-{facts.st_size}"


def _explained(path: object, error: OSError) -> StoreError | PermissionsError:
    text = f"{shown(path)}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        return PermissionsError(text, hint="give yourself read access")
    if isinstance(error, FileNotFoundError) and Path(str(path)).is_symlink():
        return StoreError(f"{shown(path)}: this link is broken", hint="remove the link")
    return StoreError(text, hint="check that it can be read")
