"""Lists a local folder as code: what is delivered of it, and what is left out and why."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cloudtrain.core import paths
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.paths import some
from cloudtrain.node.key_shapes import file_reason
from cloudtrain.playbooks import ignore
from cloudtrain.playbooks.ignore import IgnoreRule

OWN_IGNORE_FILE = ".cloudtrainignore"
IGNORE_FILES = (".gitignore", OWN_IGNORE_FILE)
NAMED = 5
"""Files of keys that are named in a note; the others are counted."""
LARGEST = 10**9
"""Limit in bytes: more is probably data or results by mistake, and would go to every node."""


@dataclass(frozen=True, kw_only=True)
class FolderEntry:
    """One file or symlink, by its path in the folder. Unlike a task's file (node/listing.py), a
    symlink is delivered as one, not followed, and the executable bit counts."""

    path: str
    executable: bool = False
    size: int = 0
    """Bytes when it was listed: a file that has only grown since is delivered as far."""
    link: str | None = None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A file or folder that is not delivered. The path of a folder ends with `/`."""

    path: str
    why: str
    """``.gitignore:1 `data/` ``, `fetched from a run`, `a socket`"""
    way: str = ""
    """A way to deliver it anyway, as an imperative; empty if it cannot be."""
    is_key: bool = False
    """It is a file of keys, which nobody has named on purpose."""


@dataclass(frozen=True, kw_only=True)
class CodeListing:
    """A folder as code; both sorted by path, and nothing of a folder that is left out."""

    entries: tuple[FolderEntry, ...]
    left_out: tuple[LeftOut, ...]
    problems: tuple[str, ...] = ()
    """Files that cannot be delivered, with the reason."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    def by_place(self) -> dict[str, int]:
        """Bytes of each file and folder (`results/`) at its top, the largest first."""
        found: dict[str, int] = {}
        for entry in self.entries:
            top, slash, _ = entry.path.partition("/")
            found[top + slash] = found.get(top + slash, 0) + entry.size
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    @property
    def keys(self) -> tuple[LeftOut, ...]:
        return tuple(each for each in self.left_out if each.is_key)

    def without(self, path: str) -> LeftOut | None:
        """Entry that keeps a path from being delivered; None if nothing here leaves it out."""
        for each in self.left_out:
            if path == each.path or (each.path.endswith("/") and f"{path}/".startswith(each.path)):
                return each
        return None


def listing(config: ClusterConfig, root: Path) -> CodeListing:
    """Files delivered and left out. Raises ConfigError with all that cannot be delivered."""
    found = looked_through(config, root)
    hint = f"list what is not needed in {root}/{OWN_IGNORE_FILE}"
    if found.problems:
        raise ConfigError([_problem(config, text) for text in found.problems], hint=hint)
    if found.size > LARGEST:
        biggest, size = next(iter(found.by_place().items()))
        text = f"{root} has {found.size / 1e9:.1f} GB to deliver to every node, "
        text += f"{size / 1e9:.1f} GB of it in {shown(Path(biggest))}"
        raise ConfigError([_problem(config, text)], hint=hint)
    return found


def looked_through(config: ClusterConfig, root: Path) -> CodeListing:
    """The same, whether it can be delivered or not. Raises ConfigError if it is no folder."""
    if not root.is_dir():
        text = f"{root} is not a folder"
        hint = "code.path is relative to the config file"
        raise ConfigError([_problem(config, text)], hint=hint)
    uri = config.artifacts.store or ""
    store = os.path.realpath(unquote(urlsplit(uri).path)) if uri.startswith("file://") else None
    walk = _Walk(root, store, paths.own_streams())
    try:
        walk.folder(root, _outer_rules(root))
    except OSError as error:  # an ignore file above
        walk.problems.append(f"{error.filename}: {error.strerror}")
    return CodeListing(
        entries=tuple(sorted(walk.entries, key=lambda entry: os.fsencode(entry.path))),
        left_out=tuple(sorted(walk.left_out, key=lambda each: os.fsencode(each.path))),
        problems=tuple(walk.problems),
    )


@dataclass
class _Walk:
    root: Path
    store: str | None
    """The folder that `artifacts.store` names on this machine."""
    streams: frozenset[tuple[int, int]]
    entries: list[FolderEntry] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def folder(self, path: Path, outer: Sequence[IgnoreRule]) -> None:
        """Add what is in a folder. An ignored folder is not entered, so that nothing in it can be
        re-included, as in git."""
        try:
            rules = (*outer, *ignore.rules(path, IGNORE_FILES))
            with os.scandir(path) as children:
                found = sorted(children, key=lambda child: child.name)
        except OSError as error:
            self.problems.append(f"{error.filename}: {error.strerror}")
            return
        for child in found:
            if child.name == ".git":
                continue
            if child.is_dir(follow_symlinks=False):
                left_out = self._ignored(child.path, True, rules, paths.folder_by_us)
                if left_out is None and self.store and os.path.realpath(child.path) == self.store:
                    left_out = LeftOut(path=self._inner(child.path) + "/", why="artifacts.store")
                if left_out is None:
                    self.folder(Path(child.path), rules)
            else:
                left_out = self._file(child, rules)
            if left_out is not None:
                self.left_out.append(left_out)

    def _file(self, child: os.DirEntry[str], rules: Sequence[IgnoreRule]) -> LeftOut | None:
        try:
            status = child.stat(follow_symlinks=False)
        except OSError:
            return None  # deleted meanwhile

        def by_us(path: Path) -> str | None:
            return paths.file_by_us(path, status, self.streams)

        left_out = self._ignored(child.path, False, rules, by_us)
        if left_out is not None:
            return left_out
        if stat.S_ISREG(status.st_mode):
            seen = (status.st_size, status.st_ctime_ns, status.st_ino)
            why = _reason(os.fsencode(child.path), *seen)
            left_out = key_file(Path(child.path), self._inner(child.path), why, rules)
            if left_out is not None:
                return left_out
        special = next((name for is_it, name in _SPECIAL if is_it(status.st_mode)), None)
        if special is not None:
            return LeftOut(path=self._inner(child.path), why=special)
        try:
            self.entries.append(_entry(self.root, Path(child.path), status))
        except ValueError as error:
            self.problems.append(f"{shown(Path(child.path))}: {error}")
        return None

    def _ignored(
        self,
        path: str,
        is_folder: bool,
        rules: Sequence[IgnoreRule],
        by_us: Callable[[Path], str | None],
    ) -> LeftOut | None:
        """A line of an ignore file decides, then whether we have written it ourselves."""
        rule = ignore.deciding(path, is_folder, rules)
        if rule is not None and not rule.ignores:
            return None
        inner = self._inner(path) + ("/" if is_folder else "")
        if rule is not None:
            why = f"{os.path.relpath(rule.file, self.root)}:{rule.line} `{rule.text.strip()}`"
            return LeftOut(path=inner, why=why, way=self._way(rule, path, is_folder))
        ours = by_us(Path(path))
        if ours is None:
            return None
        return LeftOut(path=inner, why=ours, way=f"add `!{inner}` to {OWN_IGNORE_FILE}")

    def _way(self, rule: IgnoreRule, path: str, is_folder: bool) -> str:
        """A later line wins: one of our own file in the same folder, or in the top one."""
        file = Path(rule.file)
        if file.name == OWN_IGNORE_FILE:
            return "remove that line, or add `!` and its path below it"
        folder = file.parent if file.is_relative_to(self.root) else self.root
        inner = os.path.relpath(path, folder) + ("/" if is_folder else "")
        return f"add `!{inner}` to {os.path.relpath(folder / OWN_IGNORE_FILE, self.root)}"

    def _inner(self, path: str) -> str:
        return os.path.relpath(path, self.root)


@lru_cache(maxsize=20_000)
def _reason(path: bytes, size: int, _changed: int, _inode: int) -> str:
    """`plan` and `up` look through the code several times."""
    return file_reason(path, size)


def key_file(path: Path, inner: str, why: str, rules: Sequence[IgnoreRule]) -> LeftOut | None:
    """A file of keys by the reason `why`, unless a `!` line of our own ignore file names it."""
    own = [rule for rule in rules if Path(rule.file).name == OWN_IGNORE_FILE]
    rule = ignore.deciding(str(path), False, own) if why else None
    if not why or (rule is not None and not rule.ignores):
        return None
    return LeftOut(path=inner, why=why, way=f"add `!{inner}` to {OWN_IGNORE_FILE}", is_key=True)


def keys_note(keys: Sequence[LeftOut]) -> str:
    """`.env is not delivered: a file of keys by its name`; empty without any."""
    if not keys:
        return ""
    named = some([f"{shown(Path(each.path))} ({each.why})" for each in keys], NAMED)
    return f"code: not delivered, as it looks like keys: {named}; {keys[0].way} to deliver it"


_SPECIAL = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _outer_rules(root: Path) -> tuple[IgnoreRule, ...]:
    """Rules of ignore files above the folder, up to the top of its git checkout. Empty if they
    ignore the folder itself: the user chose it anyway."""
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
        rule = ignore.deciding(str(inner), True, rules)
        if rule is not None and rule.ignores:
            return ()
    return rules


def _entry(root: Path, path: Path, status: os.stat_result) -> FolderEntry:
    inner = str(path.relative_to(root))
    if stat.S_ISLNK(status.st_mode):
        return FolderEntry(path=inner, link=_link(root, path))
    if not os.access(path, os.R_OK):
        raise ValueError("not readable")
    executable = bool(status.st_mode & stat.S_IXUSR)
    return FolderEntry(path=inner, executable=executable, size=status.st_size)


def _link(root: Path, path: Path) -> str:
    """Check a symlink: both the written and the resolved target must be inside the folder. The
    former is for the node, the latter catches detours over further symlinks."""
    target = path.readlink()
    top = os.path.realpath(root)
    followed = os.path.realpath(path)
    written = os.path.normpath(path.relative_to(root).parent / target)
    outside = target.is_absolute() or written == ".." or written.startswith("../")
    if outside or os.path.commonpath([top, followed]) != top:
        raise ValueError(f"a symlink leads out of the folder, to {shown(target)}")
    return str(target)


def _problem(config: ClusterConfig, text: str) -> Problem:
    return Problem(file=config.source, line=None, field="code.path", text=text)


def shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")
