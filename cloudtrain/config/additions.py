"""Additions to a file's tree: the values of `--set`, and what this user's own defaults have for
fields that it leaves out (`~/.config/cloudtrain/config.yaml`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cloudtrain.config import defaults_path
from cloudtrain.config.candidates import list_of
from cloudtrain.config.fields import InvalidValue, is_null
from cloudtrain.config.section import Providers, rows
from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.validation import problem, validate
from cloudtrain.config.yaml_source import (
    SET,
    Block,
    Items,
    Scalar,
    SourceLocation,
    Tree,
    dotted,
    parse,
    parse_value,
    place_of,
    shown,
    value_at,
)
from cloudtrain.config.yaml_source import Path as Field
from cloudtrain.core.cloud import cloud_of, facts_of, providers
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem

ONLY_TYPED = ("yes", "discard", "owner", "running", "trust")
"""Flags that only a command line may give: no variable and no defaults file stands for them."""


Written = tuple[Block, list[Problem], dict[str, str]]
"""A tree, its problems, and file and line of each default that was taken."""


def written_tree(
    data: bytes,
    file: str,
    environ: Mapping[str, str],
    overrides: Sequence[str],
    defaults: Path | None,
) -> Written:
    """The file's tree with the values of `--set`, then with the user's defaults. That of a file
    that is not YAML is empty."""
    tree, problems = parse(data, file, environ)
    if problems and not tree:
        return tree, problems, {}
    tree, wrong = with_overrides(tree, overrides, environ)
    problems += wrong
    if defaults is None:
        return tree, problems, {}
    tree, wrong, taken = with_defaults(tree, defaults, environ)
    return tree, [*problems, *wrong], taken


def tree_now(config: ClusterConfig, file: str) -> Block:
    """The tree of a config's file as it is now, called `file`; empty if it cannot be read."""
    defaults = defaults_path() if config.defaults else None
    try:
        data = Path(config.source).read_bytes()
        return written_tree(data, file, os.environ, config.overrides, defaults)[0]
    except (OSError, CloudtrainError):
        return Block(SourceLocation(file, 0))


# ── the user's own defaults ──────────────────────────────────────────────────


@cache
def fields() -> dict[str, Providers]:
    """Fields of which a user may have a default, and on which providers it counts."""
    return {row.name: row.default for row in rows(ConfigFile) if row.default is not None}


def with_defaults(tree: Block, path: Path, environ: Mapping[str, str]) -> Written:
    """Fill in the defaults of `path`, which need not exist, where the tree has nothing. `project`
    is not taken if the environment names one. Every problem of the defaults is reported, also of
    fields that this file does not need. Raises UsageError if they cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return tree, [], {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not data.strip():
        return tree, [], {}
    defaults, problems = parse(data, str(path), environ)
    problems += _problems(defaults, str(path))
    if problems:
        return tree, problems, {}
    taken = {}
    for field in _fitting(tree, defaults, environ):
        default = value_at(defaults, field)
        place = place_of(defaults, field)
        assert default is not None
        assert place is not None
        tree = tree.having(field, default, place)
        taken[dotted(field)] = str(place)
    return tree, [], taken


def _problems(defaults: Block, file: str) -> Iterator[Problem]:
    for name in ONLY_TYPED:
        if name in defaults:
            text = f"no defaults file may stand for --{name}: give it on the command line"
            yield problem(defaults, file, (name,), text)
    known = [name for name in defaults if name not in ONLY_TYPED]
    rest = Block(defaults.place)
    for name in known:
        rest.put(name, defaults[name], defaults.keys_at[name])
    wrong = [each for each in validate(rest, file).problems if each.text != "is missing"]
    yield from wrong
    said = {each.field for each in wrong}
    for field in _leaves(rest):
        name = dotted(field)
        if _of(field) not in fields() and not any(name.startswith(each) for each in said):
            text = f"belongs in each cluster's own file; a default can be {', '.join(fields())}"
            yield problem(rest, file, field, text)
        elif fields().get(_of(field)) == "one cloud" and "provider" not in rest:
            names = " or ".join(each.name for each in providers() if cloud_of(each.name))
            text = f"is of one cloud: add `provider:` beside it, which is {names}"
            yield problem(rest, file, field, text)


def _leaves(tree: Tree, above: Field = ()) -> Iterator[Field]:
    """Fields that are given; of a section, its own, and all else as a whole."""
    if isinstance(tree, Block) and len(above) < 2 and tree:
        for name, value in tree.items():
            yield from _leaves(value, (*above, name))
    elif above and not is_null(tree) and (tree or not isinstance(tree, Block)):
        yield above


def _of(field: Field) -> str:
    """The field's name in the lists above: each tag is a default of its own."""
    return "tags" if field[0] == "tags" else dotted(field)


def _fitting(tree: Block, defaults: Block, environ: Mapping[str, str]) -> Iterator[Field]:
    """Defaults that the tree lacks and that its provider has a use for."""
    usual = _text(defaults.get("provider"))
    provider = _text(tree.get("provider")) or usual
    useful = _useful(tree, provider, usual)
    cloud = cloud_of(provider)
    for field in _leaves(defaults):
        if fields()[_of(field)] not in useful or (list_of(tree) and field == ("provider",)):
            continue
        if field == ("project",) and cloud and environ.get(cloud.project_variable):
            continue
        section, given = value_at(tree, field[:1]), value_at(tree, field)
        if (
            section is None
            or is_null(section)
            or (isinstance(section, Block) and (given is None or is_null(given)))
        ):
            yield field


def _useful(tree: Block, provider: str, usual: str) -> tuple[Providers, ...]:
    """Defaults for which the tree's provider has a use. Candidates name their own clouds."""
    if list_of(tree):
        return ("any", "clouds")
    if provider not in {each.name for each in providers()} or facts_of(provider).on_this_machine:
        return ()
    if cloud_of(provider) is None:
        return ("any",)
    return ("any", "clouds", "one cloud") if provider == usual else ("any", "clouds")


def _text(node: Tree | None) -> str:
    """The text; "" for none, and for what validation reports."""
    try:
        return node.text() if isinstance(node, Scalar) and not is_null(node) else ""
    except ValueError:
        return ""


# ── `--set nodes.worker.count=4` ─────────────────────────────────────────────


_PART = r"[^\s.=\[\]]+"
_FIELD = re.compile(rf"{_PART}(\[\d{{1,6}}\]|\.{_PART})*")
_HERE = SourceLocation(SET, 0)


def with_overrides(
    tree: Block, given: Sequence[str], environ: Mapping[str, str]
) -> tuple[Block, list[Problem]]:
    """The tree with each `FIELD=VALUE` in place, in order, and what is wrong with them. An empty
    VALUE leaves the field out. The file's own tree is not changed: aliases share blocks."""
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


def path_of(field: str, *, complete: bool = True) -> Field:
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


def _put(tree: Tree, path: Field, value: Tree, above: Field) -> Block:
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


def _put_item(tree: Tree | None, path: Field, value: Tree, above: Field) -> Items:
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


def _mapping(tree: Tree, above: Field) -> Block:
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
