"""Reads the files that an imported file names: below its own folder alone, over no link, and not
large, as the imported file may come from anybody."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 1 << 20
"""Limit of a file in bytes."""


class NotInside(ValueError):
    """A name that leads out of the folder."""


def below(folder: Path, name: str | Path) -> Path | None:
    """The place of that name, whether something is there or not; None if it is not below the
    folder, or if a link in the folder leads there."""
    top = Path(os.path.normpath(folder.absolute()))
    path = Path(os.path.normpath(top / name))
    if not path.is_relative_to(top):
        return None
    on_the_way = (top / part for part in (path.relative_to(top), *path.relative_to(top).parents))
    return None if any(each != top and each.is_symlink() for each in on_the_way) else path


def text_of(folder: Path, name: str | Path) -> str:
    """The text of a file below the folder. Raises OSError, or ValueError with the reason."""
    path = below(folder, name)
    if path is None:
        raise NotInside("it is outside of the folder, or a link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("it is too large")
    return data.decode("utf-8-sig")
