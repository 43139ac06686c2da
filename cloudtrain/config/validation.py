"""Validates each field with pydantic and reports in plain sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cloudtrain.config.fields import nearest
from cloudtrain.config.sections import ConfigFile, section_at
from cloudtrain.config.yaml_source import (
    Block,
    Items,
    Path,
    Scalar,
    Tree,
    dotted,
    place_of,
    shown,
    value_at,
)
from cloudtrain.core.model import Problem

_SENTENCES = {
    "missing": "is missing",
    "tuple_type": "must be a list: [one, two], or a line with `- ` for each",
}


_CHOICES: tuple[Path, ...] = (("network", "ssh_proxy"),)
"""Sections that have exactly one field: without one that could not be read they seem empty."""


@dataclass(frozen=True)
class ValidatedFile:
    """Result of validation: `file` holds every readable field, `broken` the paths of the others."""

    file: ConfigFile
    problems: list[Problem]
    broken: frozenset[Path]

    def shadows(self, path: Path) -> bool:
        """True if a rule that fails at `path` may fail only because a field could not be read."""
        return any(
            path[: len(broken)] == broken
            or (len(path) == 1 and len(broken) <= 2 and broken[:1] == path)
            or (path in _CHOICES and broken[:-1] == path)
            for broken in self.broken
        )


def validate(tree: Block, file: str, broken: Iterable[Path] = ()) -> ValidatedFile:
    """Every problem of a single field.

    Invalid values are removed and the rest is validated again, so that the rules between fields are
    checked in the same run.
    """
    problems: list[Problem] = []
    unread, removed = set(broken), set[Path]()
    rest = tree
    while True:
        try:
            return ValidatedFile(ConfigFile.model_validate(rest), problems, frozenset(unread))
        except ValidationError as error:
            for found in error.errors(include_url=False, include_input=False):
                path = tuple(part for part in found["loc"] if part != "[key]")
                text, meant = _sentence(tree, path, found)
                unread |= {_reach(path), (*path[:-1], meant)} if meant else {_reach(path)}
                rest = _without(rest, path)
                if path not in removed:  # a required field whose value was invalid
                    problems.append(problem(tree, file, path, text))
                removed.add(path)


def problem(tree: Tree, file: str, path: Path, text: str) -> Problem:
    place = place_of(tree, path)
    if place is None:
        return Problem(file=file, line=None, field=dotted(path), text=text)
    return Problem(file=place.file, line=place.line or None, field=dotted(path), text=text)


def _sentence(tree: Block, path: Path, found: Mapping[str, Any]) -> tuple[str, str | None]:
    """The problem's sentence, and for an unknown field the one that was probably meant."""
    if found["type"] == "extra_forbidden":
        return _unknown(path)
    if found["type"] == "value_error":
        text, *hints = found["ctx"]["error"].args
    else:
        text, hints = _SENTENCES.get(found["type"], "has an invalid value"), []
    if text.startswith("must"):
        text += f", not {_as_written(value_at(tree, path))}"
    return ": ".join([text, *hints]), None


def _unknown(path: Path) -> tuple[str, str | None]:
    section = section_at(path[:-1])
    names = sorted(section.by_key()) if section else []
    meant = nearest(str(path[-1]), names)
    if meant:
        return f"unknown field: did you mean {meant!r}?", meant
    return f"unknown field: the fields here are {', '.join(names)}", None


def _as_written(node: Tree | None) -> str:
    """The value as written, with variables not expanded: they may be secret."""
    if isinstance(node, Scalar):
        return f"'{shown(node.source)}'" if node.source else "nothing"
    return "a mapping" if isinstance(node, Block) else "a list"


def _reach(path: Path) -> Path:
    """Path that counts as wrong: a list with a wrong item is wrong itself."""
    return next((path[:i] for i, part in enumerate(path) if isinstance(part, int)), path)


def _without(tree: Block, path: Path) -> Block:
    """A copy without the mapping's entry nearest to `path`; lists lose no single item."""
    head, tail = str(path[0]), path[1:]
    value = tree.get(head)
    copy = tree.without(head)
    if not tail or value is None:
        return copy
    if isinstance(value, Block) and tail[0] in value:
        copy.put(head, _without(value, tail), tree.keys_at[head])
    elif isinstance(value, Items) and _inside_item(value, tail):
        items = Items(value.place)
        items.extend(_without(v, tail[1:]) if i == tail[0] else v for i, v in enumerate(value))  # type: ignore[arg-type]
        copy.put(head, items, tree.keys_at[head])
    return copy


def _inside_item(items: Items, path: Path) -> bool:
    item = value_at(items, path[:1])
    return len(path) > 1 and isinstance(item, Block) and path[1] in item
