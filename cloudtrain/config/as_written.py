"""Fields whose text has variables: what leaves this machine shows the text, never its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from cloudtrain.config.yaml_source import Block, Items, Path, Scalar, Tree, variables
from cloudtrain.core.model import Train


def texts_with_variables(tree: Block) -> dict[str, str]:
    """JSON Pointer (RFC 6901) of each such field in the record of a config → its text. The tree is
    one that is valid: its aliases cannot multiply."""
    return {
        _pointer(_in_record(path)): value.source
        for path, value in _scalars(tree.without("secrets"), ())
        if variables(value.source)
    }


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config with `${VAR}` in the place of values."""
    shown = deepcopy(dict(config))
    for pointer, text in (shown.pop("written", None) or {}).items():
        parts = str(pointer).split("/")[1:]
        _put(shown, [part.replace("~1", "/").replace("~0", "~") for part in parts], text)
    return shown


def written_lines(train: Train, written: Mapping[str, str]) -> dict[str, str]:
    """Role → its line of `train.command` as written, where that has variables; "" for all roles."""
    lines = {"": written.get("/train/command")}
    lines |= {role: written.get(_pointer(("train", "commands", role))) for role in train.commands}
    return {role: line for role, line in lines.items() if line is not None}


def _scalars(tree: Tree, path: Path) -> Iterator[tuple[Path, Scalar]]:
    if isinstance(tree, Scalar):
        yield path, tree
    elif isinstance(tree, Items):
        for index, value in enumerate(tree):
            yield from _scalars(value, (*path, index))
    else:
        for key, value in tree.items():
            yield from _scalars(value, (*path, key))


def _in_record(path: Path) -> Path:
    """Path in ClusterConfig of a field of the file."""
    match path:
        case ("any_of" | "ordered", *rest):
            return ("candidates", *_in_record(tuple(rest)))
        case ("train", "command", "default"):
            return ("train", "command")
        case ("train", "command", role):
            return ("train", "commands", role)
        case ("data", name) | ("data", name, "from"):
            return ("data", name, "source")
        case (*above, "provisioning", _):
            return (*above, "provisioning", "name")
    return path


def _pointer(path: Path) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _put(node: Any, parts: list[str], text: str) -> None:
    """Replace the text at a place; a single value of the file may be a list in the record."""
    if isinstance(node, list | tuple):
        return
    here, *rest = parts
    value = node.get(here) if isinstance(node, dict) else None
    if isinstance(value, list | tuple):
        items = list(value)
        node[here] = items
        if not rest:
            node[here] = [text]
        elif rest[0].isdecimal() and int(rest[0]) < len(items):
            index = int(rest[0])
            if rest[1:]:
                _put(items[index], rest[1:], text)
            elif isinstance(items[index], str):
                items[index] = text
    elif rest:
        _put(value, rest, text)
    elif isinstance(value, str):
        node[here] = text
