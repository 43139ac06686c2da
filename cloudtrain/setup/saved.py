"""Facts that this machine knows of archives in stores: their SHA-256, which no store can change.

`<state>/environments/` has one file for each archive, and one for each upload that has begun; the
latter names the folder in which a killed upload has left its parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.setup.archive import FORMAT, Archive, StorePlace
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.folder import home

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """Folder in a store into which a node uploads the parts of one archive."""

    id: str
    store: StorePlace
    folder: str
    begun: float = field(metadata=UNIX_TIME)


def archives() -> tuple[Archive, ...]:
    """All that are known, the last one created first."""
    found = list(_read("archive-*.json", Archive))
    return tuple(sorted(found, key=lambda each: each.created, reverse=True))


def archive_for(key: str, store: StorePlace) -> Archive | None:
    """The newest archive in that store which nodes with this key can use: none whose copying was
    interrupted.
    """
    return next(
        (
            each
            for each in archives()
            if (each.key, each.store, each.format) == (key, store, FORMAT)
            and all(part.object for part in each.parts)
        ),
        None,
    )


def stagings() -> tuple[Staging, ...]:
    """Uploads that have begun and not ended, or whose end is not known."""
    return tuple(_read("staging-*.json", Staging))


def save_archive(archive: Archive) -> None:
    _write(_archive_path(archive), archive)


def mark_used(archive: Archive, now: float) -> None:
    """Record its use, if it is still known."""
    if _archive_path(archive).exists():
        save_archive(replace(archive, used=now))


def forget_archive(archive: Archive) -> None:
    _archive_path(archive).unlink(missing_ok=True)


def save_staging(staging: Staging) -> None:
    _write(_staging_path(staging), staging)


def forget_staging(staging: Staging) -> None:
    _staging_path(staging).unlink(missing_ok=True)


def _folder() -> Path:
    return home() / "environments"


def _archive_path(archive: Archive) -> Path:
    return _folder() / f"archive-{archive.key}-{archive.sha256[:16]}.json"


def _staging_path(staging: Staging) -> Path:
    return _folder() / f"staging-{staging.id}.json"


def _write(path: Path, record: Archive | Staging) -> None:
    make_folder(path.parent)
    write_whole(path, json.dumps(asdict(record)).encode())


def _read(pattern: str, kind: type[T]) -> Iterator[T]:
    for path in sorted(_folder().glob(pattern)):
        try:
            yield decode(kind, json.loads(path.read_bytes()))
        except (OSError, ValueError, InvalidRecord):
            continue
