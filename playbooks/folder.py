"""Delivers a local folder as code: all files that are not ignored, as one tar stream."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from cloudtrain.errors import CloudtrainError, ConfigError
from cloudtrain.model import ClusterConfig, Problem
from cloudtrain.playbooks import ignore
from cloudtrain.playbooks.archive import CHUNK, Archive, member
from cloudtrain.playbooks.ignore import IgnoreRule

IGNORE_FILES = (".gitignore", ".cloudtrainignore")
LARGEST = 10**9
"""Limit in bytes: more is probably data or results by mistake, and would go to every node."""


@dataclass(frozen=True, kw_only=True)
class FolderEntry:
    """One file or symlink, by its path in the folder.

    Unlike a task's file (node/listing.py), a symlink is delivered as one, not followed, and the
    executable bit counts.
    """

    path: str
    executable: bool = False
    size: int = 0
    link: str | None = None


def entries(config: ClusterConfig, root: Path) -> tuple[FolderEntry, ...]:
    """Files to deliver, sorted by path. Raises ConfigError with all files that cannot be
    delivered.
    """
    if not root.is_dir():
        raise ConfigError([_problem(config, f"{root} is not a folder")])
    found: list[FolderEntry] = []
    problems: list[Problem] = []
    try:
        for path, status in _walk(root, _outer_rules(root)):
            try:
                found.append(_entry(root, path, status))
            except ValueError as error:
                problems.append(_problem(config, f"{_shown(path)}: {error}"))
    except OSError as error:
        problems.append(_problem(config, f"{error.filename}: {error.strerror}"))
    if problems:
        raise ConfigError(problems, hint=f"list what is not needed in {root}/.cloudtrainignore")
    _refuse_too_much(config, root, found)
    return tuple(sorted(found, key=lambda entry: os.fsencode(entry.path)))


def digest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Digest of paths, executable bits and contents. Raises CloudtrainError if a file
    disappears.
    """
    total = hashlib.sha256()
    for entry in entries:
        if entry.link is None:
            with _opened(root, entry) as file:
                content = hashlib.sha256()
                while chunk := file.read(CHUNK):
                    content.update(chunk)
            _add(total, entry, content.digest())
        else:
            _add(total, entry, os.fsencode(entry.link))
    return total.hexdigest()[:16]


def archive(root: Path, entries: Sequence[FolderEntry], digest: str) -> Archive:
    """Archive of the folder. Its chunks raise CloudtrainError if the folder changed since the
    digest was taken.
    """

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
        status = os.fstat(file.fileno())
        info.size, info.mtime = status.st_size, int(status.st_mtime)
        reader = _Hashed(file)
        try:
            tar.addfile(info, reader)
        except OSError:  # raised by tarfile for a file that became shorter
            raise _changed(root, entry.path) from None
    return reader.sum.digest()


class _Hashed(io.RawIOBase):
    """Hashes what tarfile reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sum.update(data)
        return data


def _walk(root: Path, rules: Sequence[IgnoreRule]) -> Iterator[tuple[Path, os.stat_result]]:
    """Every path that is neither a folder nor ignored.

    An ignored folder is not entered, so that nothing in it can be re-included, as in git.
    """
    rules = (*rules, *ignore.rules(root, IGNORE_FILES))
    with os.scandir(root) as listing:
        children = sorted(listing, key=lambda child: child.name)
    for child in children:
        folder = child.is_dir(follow_symlinks=False)
        if child.name == ".git" or ignore.ignored(child.path, folder, rules):
            continue
        if folder:
            yield from _walk(Path(child.path), rules)
        else:
            yield Path(child.path), child.stat(follow_symlinks=False)


def _outer_rules(root: Path) -> tuple[IgnoreRule, ...]:
    """Rules of ignore files above the folder, up to the top of its git checkout.

    Empty if they ignore the folder itself: the user chose it anyway.
    """
    checkout: list[Path] = []
    for parent in (root, *root.parents):
        checkout.insert(0, parent)
        if (parent / ".git").exists():
            break
    else:
        return ()
    rules: tuple[IgnoreRule, ...] = ()
    for outer, inner in pairwise(checkout):
        rules = (*rules, *ignore.rules(outer, IGNORE_FILES))
        if ignore.ignored(str(inner), True, rules):
            return ()
    return rules


def _entry(root: Path, path: Path, status: os.stat_result) -> FolderEntry:
    inner = str(path.relative_to(root))
    if stat.S_ISLNK(status.st_mode):
        return FolderEntry(path=inner, link=_link(root, path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("neither a file nor a folder nor a symlink")
    if not os.access(path, os.R_OK):
        raise ValueError("not readable")
    executable = bool(status.st_mode & stat.S_IXUSR)
    return FolderEntry(path=inner, executable=executable, size=status.st_size)


def _link(root: Path, path: Path) -> str:
    """Check a symlink: both the written and the resolved target must be inside the folder.

    The former is for the node, the latter catches detours over further symlinks.
    """
    target = path.readlink()
    top = os.path.realpath(root)
    followed = os.path.realpath(path)
    written = os.path.normpath(path.relative_to(root).parent / target)
    outside = target.is_absolute() or written == ".." or written.startswith("../")
    if outside or os.path.commonpath([top, followed]) != top:
        raise ValueError(f"a symlink leads out of the folder, to {_shown(target)}")
    return str(target)


def _refuse_too_much(config: ClusterConfig, root: Path, found: Sequence[FolderEntry]) -> None:
    total = sum(entry.size for entry in found)
    if total <= LARGEST:
        return
    by_place: dict[str, int] = {}
    for entry in found:
        place = entry.path.split("/", 1)[0]
        by_place[place] = by_place.get(place, 0) + entry.size
    biggest = max(by_place, key=by_place.__getitem__)
    raise ConfigError(
        [
            _problem(
                config,
                f"{root} has {total / 1e9:.1f} GB to deliver to every node, "
                f"{by_place[biggest] / 1e9:.1f} GB of it in {_shown(Path(biggest))}",
            )
        ],
        hint=f"list what is not needed in {root}/.cloudtrainignore",
    )


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
        f"{root} changed while it was read: {_shown(Path(path))}",
        hint="run the command again; list a file that is written all the time, such as this "
        f"command's own output, in {root}/.cloudtrainignore",
    )


def _newest(root: Path, entries: Sequence[FolderEntry]) -> str:
    """Path of the file that was written last."""

    def written(entry: FolderEntry) -> float:
        try:
            return (root / entry.path).lstat().st_mtime
        except OSError:
            return 0.0

    return max(entries, key=written).path


def _problem(config: ClusterConfig, text: str) -> Problem:
    return Problem(file=config.source, line=None, field="code.path", text=text)


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")
