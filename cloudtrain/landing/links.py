"""Symbolic links of a folder, followed on its listing alone: inside it, and never out of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudtrain.node.patterns import may_hold

MOST_HOPS = 40
"""Links in one path, as Linux has it (path_resolution(7))."""

MOST_FOLDERS = 2
"""Links to folders within each other: beyond it, folders that link to each other would multiply."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One name as `find` reports it. `kind` is find's letter, `target` a link's own text.

    `mtime` is in ns. While `stamp` (times of content and inode, and the inode) is the same,
    the content is, unless it was changed within the clock's tick or through a mapping.
    """

    kind: str
    size: int = 0
    mtime: int = 0
    stamp: str = ""
    target: str = ""


@dataclass(frozen=True)
class Lost:
    """Why a link is not followed, to be read after its name."""

    why: str


def resolved(
    roots: Sequence[str], entries: Mapping[str, Entry], patterns: Sequence[str]
) -> Iterator[tuple[str, str | Lost]]:
    """Each name that is no folder, and where it really is; below linked folders too.

    `roots` are the folder's own absolute paths. Folders that can hold nothing that a pattern
    means are left out.
    """
    children = _children(entries)
    waiting: list[tuple[str, str, tuple[str, ...]]] = [("", "", ())]
    while waiting:
        folder, real, through = waiting.pop()
        for name in children[real]:
            path, source = f"{folder}{name}", f"{real}{name}"
            if not any(may_hold(path, pattern) for pattern in patterns):
                continue
            found = follow(roots, entries, source)
            if isinstance(found, Lost) or (found != "" and entries[found].kind != "d"):
                yield path, found
            elif found == source:
                waiting.append((f"{path}/", f"{found}/", through))
            elif f"{source}/".startswith(f"{found}/") or found == "" or found in through:
                yield path, Lost("is a link to a folder that it is in")
            elif len(through) == MOST_FOLDERS:
                yield path, Lost("is reached through too many links")
            else:
                waiting.append((f"{path}/", f"{found}/", (*through, found)))


def _children(entries: Mapping[str, Entry]) -> Mapping[str, list[str]]:
    children: dict[str, list[str]] = defaultdict(list)
    for path in sorted(entries):
        folder, slash, name = path.rpartition("/")
        children[folder + slash].append(name)
    return children


def follow(roots: Sequence[str], entries: Mapping[str, Entry], path: str) -> str | Lost:
    """The path without links, `""` for the folder itself."""
    parts = deque(path.split("/"))
    at: list[str] = []
    hops = 0
    while parts:
        part = parts.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return _OUTSIDE
            at.pop()
            continue
        here = "/".join((*at, part))
        entry = entries.get(here)
        if entry is None or (at and entries["/".join(at)].kind != "d"):
            return Lost("is a link to nothing")
        if entry.kind != "l":
            at.append(part)
            continue
        hops += 1
        if hops > MOST_HOPS:
            return Lost("is a link in a circle")
        target = entry.target
        if target.startswith("/"):
            inside = _below(roots, target)
            if inside is None:
                return _OUTSIDE
            at, target = [], inside
        parts.extendleft(reversed(target.split("/")))
    return "/".join(at)


_OUTSIDE = Lost("is a link out of the work folder")


def _below(roots: Sequence[str], target: str) -> str | None:
    for root in roots:
        if f"{target}/".startswith(f"{root}/"):
            return target[len(root) :].lstrip("/")
    return None
