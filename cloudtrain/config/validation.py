"""Validates each field, also for keys in the wrong place; says so in sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from cloudtrain.config.fields import did_you_mean, nearest
from cloudtrain.config.section import FieldFault
from cloudtrain.config.sections import ConfigFile, section_at
from cloudtrain.config.yaml_source import (
    Block,
    Items,
    Path,
    Scalar,
    SourceLocation,
    Tree,
    dotted,
    only_variable,
    place_of,
    scalars,
    shown,
    value_at,
    variables,
)
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import Problem
from cloudtrain.node.key_shapes import given_keys, is_no_key, kind_of_key, looks_like_key_name

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
    """Every problem of a single field. Invalid values are removed and the rest is validated again,
    so that the rules between fields are checked in the same run."""
    problems: list[Problem] = []
    unread, removed = set(broken), set[Path]()
    rest = tree
    while True:
        faults: list[FieldFault] = []
        found = ConfigFile.read(rest, (), faults)
        if not faults:
            return ValidatedFile(found, problems, frozenset(unread))
        for fault in faults:
            path = fault.path
            text, meant = _sentence(tree, fault)
            unread |= {_reach(path), (*path[:-1], meant)} if meant else {_reach(path)}
            rest = _without(rest, path)
            if path not in removed:  # a required field whose value was invalid
                problems.append(problem(tree, file, path, text))
            removed.add(path)


def problem(tree: Tree, file: str, path: Path, text: str) -> Problem:
    return (place_of(tree, path) or SourceLocation(file, 0)).problem(path, text)


def _sentence(tree: Block, fault: FieldFault) -> tuple[str, str | None]:
    """The problem's sentence, and for an unknown field the one that was probably meant."""
    path, text = fault.path, fault.text
    if text is None:
        section, name = section_at(path[:-1]), str(path[-1])
        names = sorted(section.by_key()) if section else []
        hint = did_you_mean(name, names, f"the fields here are {', '.join(names)}")
        return f"unknown field: {hint}", nearest(name, names)
    if text.startswith("must"):  # variables are not expanded: they may be secret
        node = value_at(tree, path)
        written = "a mapping" if isinstance(node, Block) else "a list"
        if isinstance(node, Scalar):
            written = f"'{shown(node.source)}'" if node.source else "nothing"
        text += f", not {written}"
    return ": ".join([text, *fault.hints]), None


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


# ── `${VAR}`: a credential goes to tasks under `secrets`, and nowhere else ───


def misused_variables(tree: Block) -> Iterator[Problem]:
    """Uses of credentials outside `secrets`, by which they would be in names, addresses, records,
    process lists and errors. No text has a value."""
    section = tree.get("secrets")
    values = section.values() if isinstance(section, Block) else ()
    secret = {only_variable(value.source) for value in values if isinstance(value, Scalar)}
    for path, value in scalars(tree.without("secrets")):
        field = dotted(path)
        for variable in sorted(variables(value.source)):
            text = _misused(field, variable, value, variable in secret)
            if text:
                yield value.place.problem(path, text)


def _misused(field: str, variable: str, value: Scalar, is_secret: bool) -> str:
    if is_secret:
        return f"{variable} is listed under `secrets`, and may be used only there"
    kind = "" if looks_like_key_name(variable) else kind_of_key(value.environ.get(variable, ""))
    if not kind and not looks_like_key_name(variable):
        return ""
    why = f"the value of {variable} looks like {kind}" if kind else f"{variable} is a credential"
    way = f"write `token: {variable}` under `code`, and" if field == "code.git" else "there, write"
    name = field.removeprefix("train.env.") if field.startswith("train.env.") else variable
    line = f'`{name}: "${{{variable}}}"`'
    return f"{why}, and may be used only under `secrets`: {way} {line}"


# ── keys that stand elsewhere than under `secrets:`, where records and reports keep them ──────


_KEPT = "which records, reports and process lists would keep"


def exposed_keys(tree: Block, known: Collection[str]) -> Iterator[Problem]:
    """One problem for each field with a key, by name or by value, without its text. `known`: fields
    that have a problem already."""
    section = tree.get("secrets")
    secrets = section if isinstance(section, Block) else {}
    for path, value in scalars(tree.without("secrets")):
        twice = path[:2] == ("train", "env") and path[-1] in secrets
        text = "" if twice else _fault(path, value)
        if text and dotted(path) not in known:
            yield value.place.problem(path, text)


def _fault(path: Path, value: Scalar) -> str:
    try:
        text = value.text()
    except ValueError:
        return ""  # reported with its field
    kind = kind_of_key(text)
    if path[:2] == ("train", "env") and len(path) == 3:
        name = str(path[2])
        if looks_like_key_name(name) and (variables(value.source) or not is_no_key(text)):
            return f"looks like a key, {_KEPT}: {_way(name, value)}"
        if kind and not looks_like_key_name(name):
            return f"has {kind} in it, {_KEPT}: {_way(name, value)}"
    if path[:2] == ("train", "command"):
        if kind:
            return f"has {kind} in it, {_KEPT}: {_in_line('NAME')}"
        name = next((name for name, _ in given_keys(text)), "")
        own = re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        return f"gives {name}, {_KEPT}: {_in_line(own)}" if name else ""
    return f"has {kind} in it, {_KEPT}: remove it" if kind else ""


def _in_line(name: str) -> str:
    return f"write `{name}: ${{{name}}}` under `secrets:`, and `$${{{name}}}` here"


def _way(name: str, value: Scalar) -> str:
    variable = only_variable(value.source)
    export = "" if variable else f", and export {name}"
    return f"write `{name}: ${{{variable or name}}}` under `secrets:` instead{export}"
