"""The config under construction: values by path, each with its origin and a comment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.config.yaml_source import Path as FieldPath
from cloudtrain.config.yaml_source import dotted
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.importers.placed_code import PlacedCode
from cloudtrain.importers.values import Value
from cloudtrain.node.key_shapes import without_keys

Plain = str | int | bool | list[Any] | dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One value of the config. `origin` is where the source says it."""

    value: Plain
    origin: Value | None = None
    comment: str = ""
    fill_in: bool = False
    """The source has no such value: the user must."""


@dataclass
class Draft:
    """Findings of an importer so far."""

    kind: str
    """The source's kind, in words."""
    file: str
    entries: dict[FieldPath, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    gpus: int = 0
    """The most GPUs of any node."""
    tpu: bool = False
    container: tuple[str, ...] = ()
    """Words that the image starts by itself: ENTRYPOINT and CMD."""
    workdir: str = ""
    """The image's working folder."""
    placed: PlacedCode | None = None
    """Where the image's files are here."""
    exports: dict[str, str] = field(default_factory=dict)
    """By variable: what each command begins with."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the source's own files set, for those that the environment does not."""

    def put(
        self,
        path: str | FieldPath,
        value: Plain | None,
        origin: Value | None = None,
        comment: str = "",
        *,
        fill_in: bool = False,
    ) -> None:
        """Set a value, unless it is None."""
        if value is None:
            return
        at = tuple(path.split(".")) if isinstance(path, str) else path
        self.entries[at] = Entry(value=value, origin=origin, comment=comment, fill_in=fill_in)

    def keep(self, path: str | FieldPath, value: Value | None, comment: str = "") -> None:
        """Set what a value of the source says, if there is one."""
        self.put(path, value.text if value else None, value, comment)

    def get(self, path: str) -> Any:
        entry = self.entries.get(tuple(path.split(".")))
        return entry.value if entry else None

    def has(self, *path: str) -> bool:
        return any(key[: len(path)] == path for key in self.entries)

    def lose(self, origin: Value, text: str) -> None:
        """Report what the source says and the config does not."""
        self.problems.append(origin.problem(without_keys(text)))

    def counts(self) -> dict[str, int]:
        """Number of nodes by role; 0 for a role that is explicitly off."""
        found: dict[str, int] = {}
        for path, entry in self.entries.items():
            if path[0] == "nodes" and len(path) > 1:
                role = str(path[1])
                found.setdefault(role, 1)
                if len(path) == 2 and entry.value is False:
                    found[role] = 0
                elif path[2:] == ("count",) and isinstance(entry.value, int):
                    found[role] = entry.value
        return found

    def role(self, role: str, count: int, origin: Value | None = None) -> None:
        """Add a role with `count` nodes; do nothing if that is 0."""
        if count > 0:
            self.put(("nodes", role, "count"), count, origin)

    def rename_role(self, old: str, new: str) -> None:
        self.entries = {
            (path[0], new, *path[2:]) if path[:2] == ("nodes", old) else path: entry
            for path, entry in self.entries.items()
        }

    def without(self, field_name: str) -> Iterator[Entry]:
        """Remove the entry of a field, or those below it, or the one that it is part of; yield
        what was removed."""
        for path in list(self.entries):
            short, long = sorted((dotted(path), field_name), key=len)
            if long == short or long.startswith((f"{short}.", f"{short}[")):
                yield self.entries.pop(path)

    def fill_ins(self) -> tuple[str, ...]:
        return tuple(dotted(path) for path, entry in self.entries.items() if entry.fill_in)


@dataclass(frozen=True, kw_only=True)
class Options:
    """`here` is the folder of the submit line's paths, `folder` that of the imported file, `base`
    that of the config to write."""

    here: Path
    folder: Path
    base: Path
    provider: str | None = None
    strategy: str | None = None
    strategy_in_code: Callable[[ClusterConfig], str | None] | None = None
    """The strategy that the script of a config uses; None if it cannot be told."""
