"""Values of another tool's file: each knows its line, and what nobody took is found at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cloudtrain.config.fields import is_null
from cloudtrain.config.yaml_source import Block, Items, Path, Scalar, Tree, dotted, shown
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import Problem

MAX_VALUES = 5_000


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value as written, and where."""

    text: str = ""
    file: str
    line: int | None = None
    field: str
    is_null: bool = False

    def with_text(self, text: str, field: str | None = None) -> Value:
        """Another text from the same line, by default of the same field."""
        return replace(self, text=text, field=field or self.field)

    @property
    def number(self) -> int | None:
        """The number that it is, if it is one of at most five digits."""
        return int(self.text) if self.text.isdecimal() and len(self.text) < 6 else None

    def problem(self, text: str) -> Problem:
        return Problem(file=self.file, line=self.line, field=self.field, text=text)


class Values:
    """The values of one source by path, or those below one path. `problems` has what was said to
    be lost; `rest` adds what nobody took."""

    def __init__(self, file: str, prefix: Path = (), store: _Store | None = None) -> None:
        self.file = file
        self.prefix = prefix
        self._store = store or _Store()

    @property
    def problems(self) -> list[Problem]:
        return self._store.problems

    def put(self, path: Path, value: Value) -> None:
        """Add a value; one at the same path is replaced."""
        whole = (*self.prefix, *path)
        self._store.values[whole] = value

    def at(self, *path: str | int) -> Values:
        return Values(self.file, (*self.prefix, *path), self._store)

    def rename(self, name: Callable[[str], str]) -> None:
        """Change the keys of the whole source; fields in messages keep those of the file."""
        store = self._store
        store.values = {_renamed(path, name): value for path, value in store.values.items()}
        store.lines = {_renamed(path, name): line for path, line in store.lines.items()}

    def has(self, *path: str | int) -> bool:
        return next(self._below((*self.prefix, *path)), None) is not None

    def names(self, *path: str | int) -> list[str | int]:
        """Names or indexes directly below a path, in order."""
        whole, size = (*self.prefix, *path), len(self.prefix) + len(path)
        return list(dict.fromkeys(key[size] for key in self._below(whole, deeper=True)))

    def take(self, *path: str | int) -> Value | None:
        """The single value at this path; None if it is missing, null or no single value."""
        whole = (*self.prefix, *path)
        value = self._store.values.get(whole)
        if value is None:
            return None
        self._store.taken.add(whole)
        return None if value.is_null else value

    def text(self, *path: str | int) -> str:
        value = self.take(*path)
        return value.text if value else ""

    def take_list(self, *path: str | int) -> list[Value]:
        """The items of a list of single values; a single value is a list of one."""
        one = self.take(*path)
        if one is not None:
            return [one]
        found = (self.take(*path, name) for name in self.names(*path))
        return [value for value in found if value is not None]

    def whole(self, *path: str | int) -> Value | None:
        """Beginning of the block or value at this path, without taking it; None without one."""
        whole = (*self.prefix, *path)
        first = next(iter(self._below(whole)), None)
        if first is None:
            return None
        line = self._store.lines.get(whole, self._store.values[first].line)
        return Value(file=self.file, line=line, field=dotted(whole))

    def drop(self, *path: str | int) -> None:
        """Ignore everything at this path: it needs no counterpart."""
        self._store.taken.update(self._below((*self.prefix, *path)))

    def lose(self, *path: str | int, why: str) -> None:
        """Report everything at this path, if it exists, as not mapped."""
        where = self.whole(*path)
        if where is not None:
            self.drop(*path)
            self.problems.append(where.problem(why))

    def rest(self, why: str = "not mapped") -> None:
        """Report what nobody took, each by its topmost path that nothing was taken from."""
        used = {key[:size] for key in self._store.taken for size in range(len(key) + 1)}
        seen: set[Path] = set()
        for key, value in self._store.values.items():
            if key in self._store.taken or value.is_null:
                continue
            top = next(key[:size] for size in range(1, len(key) + 1) if key[:size] not in used)
            if top not in seen:
                seen.add(top)
                line = self._store.lines.get(top, value.line)
                at = Problem(file=value.file, line=line, field=dotted(top), text=why)
                self.problems.append(at)

    def _below(self, whole: Path, *, deeper: bool = False) -> Iterator[Path]:
        size = len(whole)
        for key in list(self._store.values):
            if key[:size] == whole and (len(key) > size or not deeper):
                yield key

    def line_at(self, path: Path, line: int) -> None:
        self._store.lines[path] = line


def _renamed(path: Path, name: Callable[[str], str]) -> Path:
    return tuple(name(part) if isinstance(part, str) else part for part in path)


class _Store:
    def __init__(self) -> None:
        self.values: dict[Path, Value] = {}
        self.lines: dict[Path, int] = {}
        self.taken: set[Path] = set()
        self.problems: list[Problem] = []


def values_of(tree: Block, file: str) -> Values:
    """All values of a parsed file. Raises UsageError if aliases make it too large."""
    found = Values(file)
    left: list[tuple[Path, Tree]] = [((), tree)]
    count = 0
    while left:
        path, node = left.pop()
        count += 1
        if count > MAX_VALUES:
            raise UsageError(f"{shown(file, 200)} has more than {MAX_VALUES} values")
        if isinstance(node, Scalar):
            one = Value(text=node.source, file=file, line=node.place.line, field=dotted(path))
            found.put(path, replace(one, is_null=is_null(node)))
        elif isinstance(node, Block):
            for key, at in node.keys_at.items():
                found.line_at((*path, key), at.line)
            left += [((*path, key), value) for key, value in reversed(list(node.items()))]
        elif isinstance(node, Items):
            for index, value in enumerate(node):
                found.line_at((*path, index), value.place.line)
            left += [((*path, index), value) for index, value in reversed(list(enumerate(node)))]
    return found


def refuse(value: Value, text: str, hint: str | None = None) -> ConfigError:
    """Error for a value that no config can be made of."""
    return ConfigError([value.problem(text)], hint=hint)
