"""Fills fields that a file leaves out from this user's own `~/.config/cloudtrain/config.yaml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cloudtrain.config.candidates import list_of
from cloudtrain.config.fields import is_null
from cloudtrain.config.section import Providers, rows
from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.validation import problem, validate
from cloudtrain.config.yaml_source import (
    Block,
    Scalar,
    SourceLocation,
    Tree,
    dotted,
    parse,
    place_of,
    value_at,
)
from cloudtrain.config.yaml_source import Path as Field
from cloudtrain.core.cloud import cloud_of, facts_of, providers
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import Problem

ONLY_TYPED = ("yes", "discard", "owner", "running", "trust")
"""Flags that only a command line may give: no variable and no defaults file stands for them."""


class Filled(NamedTuple):
    """A file's tree with the defaults filled in."""

    tree: Block
    taken: dict[str, str]
    """Field → file and line of the default that was taken."""
    problems: list[Problem]


def defaults_path() -> Path:
    """`$CLOUDTRAIN_CONFIG`, or config.yaml in this user's folder for settings."""
    chosen = os.environ.get("CLOUDTRAIN_CONFIG")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_config_path

    return user_config_path("cloudtrain") / "config.yaml"


@cache
def fields() -> dict[str, Providers]:
    """Fields of which a user may have a default, and on which providers it counts."""
    return {row.name: row.default for row in rows(ConfigFile) if row.default is not None}


def with_defaults(tree: Block, path: Path, environ: Mapping[str, str]) -> Filled:
    """Fill in the defaults of `path`, which need not exist, where the tree has nothing.

    `project` is not taken if the environment names one. Every problem of the defaults is reported,
    also of fields that this file does not need. Raises UsageError if they cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Filled(tree, {}, [])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not data.strip():
        return Filled(tree, {}, [])
    defaults, problems = parse(data, str(path), environ)
    problems += _problems(defaults, str(path))
    if problems:
        return Filled(tree, {}, problems)
    taken = {}
    for field in _fitting(tree, defaults, environ):
        default = value_at(defaults, field)
        place = place_of(defaults, field)
        assert default is not None
        assert place is not None
        tree = _filled(tree, field, default, place)
        taken[dotted(field)] = str(place)
    return Filled(tree, taken, [])


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


def _filled(tree: Block, field: Field, value: Tree, place: SourceLocation) -> Block:
    """A copy with the value; aliases may share the tree's blocks."""
    head, tail = str(field[0]), field[1:]
    copy = tree.without(head)
    if not tail:
        copy.put(head, value, place)
        return copy
    section = tree.get(head)
    inside = section if isinstance(section, Block) else Block(place)
    at = tree.keys_at[head] if isinstance(section, Block) else place
    copy.put(head, _filled(inside, tail, value, place), at)
    return copy
