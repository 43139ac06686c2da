"""Applies `--set nodes.worker.count=4` to the tree of a file, as if the file said so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cloudtrain.config.fields import InvalidValue, is_null
from cloudtrain.config.yaml_source import (
    SET,
    Block,
    Items,
    Path,
    SourceLocation,
    Tree,
    dotted,
    parse_value,
    shown,
)
from cloudtrain.core.model import Problem

_PART = r"[^\s.=\[\]]+"
_FIELD = re.compile(rf"{_PART}(\[\d{{1,6}}\]|\.{_PART})*")
_HERE = SourceLocation(SET, 0)


def with_overrides(
    tree: Block, given: Sequence[str], environ: Mapping[str, str]
) -> tuple[Block, list[Problem]]:
    """The tree with each `FIELD=VALUE` in place, in order, and what is wrong with them.

    An empty VALUE leaves the field out. The file's own tree is not changed: aliases share blocks.
    """
    problems = []
    for text in given:
        field, equals, value = text.partition("=")
        try:
            path = path_of(field.strip(), complete=bool(equals))
            tree = _put(tree, path, parse_value(value, environ), ())
        except ValueError as error:
            name = shown(field.strip(), 120)
            problems.append(Problem(file=SET, line=None, field=name, text=str(error)))
    return tree, problems


def path_of(field: str, *, complete: bool = True) -> Path:
    """Split `hosts[0].user` into its parts. Raises ValueError for what `--set` cannot give."""
    if not complete or not _FIELD.fullmatch(field):
        raise InvalidValue("must be FIELD=VALUE, such as nodes.worker.count=4 or hosts[0].port=22")
    parts = re.findall(rf"\[(\d+)\]|({_PART})", field)
    path = tuple(int(number) if number else name for number, name in parts)
    if path[0] == "secrets":
        raise InvalidValue(
            "a secret is not given by --set: other users of this machine can read a command line; "
            "write `NAME: ${VAR}` in the file, and set VAR in the environment or in --env-file"
        )
    return path


def _put(tree: Tree, path: Path, value: Tree, above: Path) -> Block:
    """A copy of the mapping with `value` at `path`. Raises ValueError."""
    copy = _mapping(tree, above)
    head, tail = path[0], path[1:]
    if isinstance(head, int):
        raise InvalidValue(f"{dotted(above) or 'the file'} is a mapping, not a list")
    if not tail:
        copy.put(head, value, _HERE)
    elif isinstance(tail[0], int):
        at = copy.keys_at.get(head, _HERE)
        items = _put_item(copy.get(head), tail, value, (*above, head))
        copy.put(head, items, at)
    else:
        at = copy.keys_at.get(head, _HERE)
        copy.put(head, _put(copy.get(head, Block(_HERE)), tail, value, (*above, head)), at)
    return copy


def _put_item(tree: Tree | None, path: Path, value: Tree, above: Path) -> Items:
    head, tail = path[0], path[1:]
    if not isinstance(tree, Items) or not isinstance(head, int):
        raise InvalidValue(f"{dotted(above)} is not a list{_written(tree)}")
    if head >= len(tree):
        raise InvalidValue(f"{dotted(above)} has {len(tree)} of them, from [0] on{_written(tree)}")
    copy = Items(tree.place)
    copy.extend(tree)
    if tail and isinstance(tail[0], int):
        copy[head] = _put_item(copy[head], tail, value, (*above, head))
    else:
        copy[head] = _put(copy[head], tail, value, (*above, head)) if tail else value
    return copy


def _mapping(tree: Tree, above: Path) -> Block:
    if is_null(tree):
        return Block(_HERE)
    if not isinstance(tree, Block):
        kind = "a list" if isinstance(tree, Items) else "one value"
        raise InvalidValue(f"{dotted(above)} is {kind}, without fields of its own{_written(tree)}")
    copy = Block(tree.place)
    for name, value in tree.items():
        copy.put(name, value, tree.keys_at[name])
    return copy


def _written(tree: Tree | None) -> str:
    return "" if tree is None or not tree.place.line else f" ({tree.place})"
