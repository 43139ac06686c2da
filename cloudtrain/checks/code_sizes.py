"""Sizes of what goes from a code folder to every node, and of what stays here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import folder as code_folder

MOST = 20_000
"""Files of what is left out that are counted: an environment or a dataset may have millions."""


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """A file or folder (`results/`) with its bytes."""

    path: str
    size: int
    why: str = ""
    """Why it is left out."""
    is_key: bool = False
    """A file of keys, which is named first."""
    whole: bool = True
    """False if it has more files than are counted."""


@dataclass(frozen=True, kw_only=True)
class CodeSizes:
    """`delivered`: by top-level place. Both with the largest first, files of keys before others."""

    files: int
    size: int
    delivered: tuple[CodePlace, ...]
    left_out: tuple[CodePlace, ...]
    problems: tuple[str, ...] = ()
    """Why `up` would refuse it."""


def code_sizes(config: ClusterConfig) -> CodeSizes | None:
    """None without a folder as code."""
    if config.code.path is None or config.code.git is not None:
        return None
    root = config.folder / Path(config.code.path).expanduser()
    try:
        found = code_folder.looked_through(config, root)
    except ConfigError as error:
        problems = tuple(problem.text for problem in error.problems)
        return CodeSizes(files=0, size=0, delivered=(), left_out=(), problems=problems)
    left, counted = [], 0
    for each in found.left_out:
        size, number, whole = _size(root / each.path, MOST - counted)
        counted += number
        place = CodePlace(path=each.path, size=size, why=each.why, is_key=each.is_key, whole=whole)
        left.append(place)
    problems = found.problems
    if found.size > code_folder.LARGEST:
        problems = (*problems, f"more than {code_folder.LARGEST / 1e9:.0f} GB")
    return CodeSizes(
        files=len(found.entries),
        size=found.size,
        delivered=tuple(CodePlace(path=path, size=size) for path, size in found.by_place().items()),
        left_out=tuple(sorted(left, key=lambda place: (not place.is_key, -place.size))),
        problems=problems,
    )


def _size(place: Path, most: int) -> tuple[int, int, bool]:
    """Bytes and number of at most so many files, and whether these are all."""
    files = iter([place])
    if place.is_dir() and not place.is_symlink():
        files = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    size = number = 0
    for path in files:
        if number >= most:
            return size, number, False
        number += 1
        with suppress(OSError):
            size += path.lstat().st_size
    return size, number, True
