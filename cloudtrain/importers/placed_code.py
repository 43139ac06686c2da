"""Finds the one folder whose delivery puts the files where COPY, ADD and mounts put them in an
image."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from cloudtrain.core.dataclass import dataclass
from cloudtrain.importers.values import Value


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One file or folder here, and its path in the image. `target` is absolute and normal."""

    source: Path
    target: str
    origin: Value

    @property
    def is_python(self) -> bool:
        """A module, or a folder with one."""
        if self.source.is_dir():
            return any(self.source.glob("*.py")) or any(self.source.glob("*/*.py"))
        return self.source.suffix == ".py"

    def imported_from(self, folders: Sequence[str]) -> Path | None:
        """The folder here from which Python imports it, as from one of `folders` in the image."""
        if self.is_python and self.source.is_dir() and self.target in folders:
            return self.source
        parent, name = posixpath.split(self.target)
        found = self.is_python and parent in folders and self.source.name == name
        return self.source.parent if found else None


@dataclass(frozen=True, kw_only=True)
class PlacedCode:
    """`root` is delivered, and `folder` in it stands for the image's `workdir`: its `own_workdir`,
    or if that has none of the files, the folder of the program."""

    root: Path
    folder: Path
    own_workdir: str
    workdir: str
    imports: tuple[Path, ...]
    """Folders from which Python also imports, as if what they hold were beside the program."""
    copies: tuple[Copy, ...]
    missing: tuple[Copy, ...]
    """Copies whose files are not where the image has them."""

    def source_of(self, path: str) -> Path | None:
        """File or folder here that the image has at an absolute path; None if it has none of ours
        there."""
        for copy in reversed(self.copies):
            inside = _below(path, copy.target)
            if inside is not None and (copy.source / inside).exists():
                return copy.source / inside
        return None

    def here(self, path: str) -> str | None:
        """The delivered file or folder for a path of the image, relative to `folder`."""
        return self._relative(path, self.folder)

    def in_code(self, path: str) -> str | None:
        """The same, relative to the code."""
        return self._relative(path, self.root)

    def _relative(self, path: str, folder: Path) -> str | None:
        found = self.source_of(path)
        delivered = found is not None and found.is_relative_to(self.root)
        return os.path.relpath(found, folder) if found and delivered else None


def place_code(
    copies: Sequence[Copy], workdir: str, scripts: Iterable[str], imports: Sequence[str], top: Path
) -> PlacedCode | None:
    """The folder, `top` or one below it, that has the scripts and the most copies at their places,
    and the rest importable where Python would find it. None if no folder has. `scripts` are paths
    in the image that a command may start, `imports` the folders of PYTHONPATH."""
    own, starts = posixpath.normpath(workdir or "/"), list(scripts)
    started = [c for c in copies if any(_below(path, _folder_of(c)) is not None for path in starts)]
    for workdir in (own, *map(_folder_of, [*started, *reversed(copies)])):
        pairs = [pair for copy in copies for pair in _pairs(copy, workdir, top)]
        if pairs:
            break
    else:
        return None
    pair = max(pairs, key=lambda pair: _fit(pair, copies, starts))
    root, place = pair
    folder = root / posixpath.relpath(workdir, place)
    searched = [*imports, workdir, *(posixpath.dirname(path) for path in starts)]
    left = {c: c.imported_from(searched) for c in copies if not _is_in_place(c, pair)}
    extra = [each for each in left.values() if each is not None]
    return PlacedCode(
        root=Path(os.path.commonpath([root, *extra])),
        folder=folder,
        own_workdir=own,
        workdir=workdir,
        imports=tuple(dict.fromkeys(each for each in extra if each != folder)),
        copies=tuple(copies),
        missing=tuple(copy for copy, found in left.items() if found is None),
    )


def _fit(pair: tuple[Path, str], copies: Sequence[Copy], starts: Sequence[str]) -> tuple[int, ...]:
    """Number of scripts and copies a folder has at their places, and how deep it is."""
    root, place = pair
    inside = [below for path in starts if (below := _below(path, place)) is not None]
    started = sum((root / below).is_file() for below in inside)
    return started, sum(_is_in_place(copy, pair) for copy in copies), len(root.parts)


def _pairs(copy: Copy, workdir: str, top: Path) -> list[tuple[Path, str]]:
    """Folders here, each with its place in the image, that would put this copy in its place and
    have the working folder in them."""
    source, target = copy.source, PurePosixPath(copy.target)
    found = []
    if source.is_dir():
        found.append((source, str(target)))
    while source.name == target.name and source != top and len(target.parts) > 1:
        source, target = source.parent, target.parent
        found.append((source, str(target)))
    return [
        (root, place)
        for root, place in found
        if (inside := _below(workdir, place)) is not None and (root / inside).is_dir()
    ]


def _is_in_place(copy: Copy, pair: tuple[Path, str]) -> bool:
    root, place = pair
    inside = _below(copy.target, place)
    return inside is not None and root / inside == copy.source


def _folder_of(copy: Copy) -> str:
    return copy.target if copy.source.is_dir() else posixpath.dirname(copy.target)


def _below(path: str, folder: str) -> str | None:
    """The path relative to the folder, if it is that or below."""
    path, folder = posixpath.normpath(path), posixpath.normpath(folder)
    if path == folder:
        return "."
    head = folder.rstrip("/") + "/"
    return path[len(head) :] if path.startswith(head) else None
