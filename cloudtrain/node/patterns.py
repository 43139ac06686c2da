"""Globs over relative paths with `/`: which paths match one, which folders may contain matches."""

import collections.abc
import re
from fnmatch import fnmatchcase


def matches(path: str, pattern: str) -> bool:
    """True if a pattern matches a relative path or a folder above it.

    `*`, `?` and `[…]` stay within one part of the path, `**` matches any number of parts, also
    none. Hidden files match like others; `.` matches everything. A pattern with `..` or a leading
    `/` matches nothing.
    """
    wanted = _parts(pattern)
    return len(wanted) in _reached(_parts(path), wanted) if _is_valid(pattern) else False


def may_hold(folder: str, pattern: str) -> bool:
    """True if the pattern can match the folder or something in it."""
    return bool(_reached(_parts(folder), _parts(pattern))) and _is_valid(pattern)


def literal(path: str) -> str:
    """Pattern that matches this one path."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _is_valid(pattern: str) -> bool:
    return pattern != "" and not pattern.startswith("/") and ".." not in pattern.split("/")


def _parts(path: str) -> "list[str]":
    return [part for part in path.split("/") if part not in ("", ".")]


def _reached(parts: "list[str]", pattern: "list[str]") -> "set[int]":
    """Positions in the pattern that the parts can lead to; once at its end, they stay there."""
    end = len(pattern)
    places = _past_stars({0}, pattern)
    for part in parts:
        if end in places:
            return {end}
        after = {there for place in places for there in _step(place, part, pattern)}
        places = _past_stars(after, pattern)
    return places


def _step(place: int, part: str, pattern: "list[str]") -> "collections.abc.Iterable[int]":
    if pattern[place] == "**":
        return (place,)
    return (place + 1,) if fnmatchcase(part, pattern[place]) else ()


def _past_stars(places: "set[int]", pattern: "list[str]") -> "set[int]":
    """Positions after `**`, which can also match nothing."""
    found = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == "**":
            place += 1
            found.add(place)
    return found
