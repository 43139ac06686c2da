"""Base of the config file's sections: reads their known fields, makes values of model.py.

A field is one row of its section: its docstring is its meaning in the documentation, `optional(…)`
or `required(…)` has the effect of a change, whether it may be a user's default, and how nodes are
compared. `rows` lists them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from cloudtrain.config import fields as kinds
from cloudtrain.config.yaml_source import Block, Path, is_empty
from cloudtrain.core.dataclass import dataclass, field

Kind = Literal["next run", "live", "replace", "down first"]


class Effect(NamedTuple):
    """Effect of a field's change on a cluster that is up."""

    kind: Kind
    note: str = ""


NEXT_RUN, REPLACE, DOWN_FIRST = Effect("next run"), Effect("replace"), Effect("down first")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A field that the journal keeps with a node's creation, by which `drift` compares nodes."""

    key: str = ""
    """Its key there, if it is not the field's own."""
    form: str = "{}"
    """Its value in a sentence."""
    words: Mapping[Any, str] = field(default_factory=dict)
    """Sentences on single values."""
    empty: str | None = ""
    """Value of an empty list or mapping."""

    def recorded(self, value: Any) -> Any:
        """The value as JSON has it."""
        if isinstance(value, Mapping):
            value = [f"{name}={each}" for name, each in sorted(value.items())]
        if isinstance(value, tuple | list):
            return ", ".join(value) or self.empty
        return value if isinstance(value, bool | int | None) else str(value)

    def worded(self, value: Any) -> str:
        return self.words.get(value) or self.form.format(value)


Providers = Literal["any", "clouds", "one cloud"]
"""Where a user's own default of a field counts: everywhere but on `local`, whose clusters need no
account; on each cloud; or on the one whose `provider` stands beside it."""


class Field(NamedTuple):
    """A field of a section. `change` and `default` are None if the section's holds, and none."""

    change: Effect | None = None
    default: Providers | None = None
    fact: Fact | None = None
    key: str = ""
    """In the file."""
    text: str = ""
    """Its meaning, if that is no docstring."""
    required: bool = False
    name: str = ""
    """Of the section's attribute."""
    type: Any = None


def optional(
    change: Effect | None = None,
    *,
    default: Providers | None = None,
    fact: Fact | None = None,
    key: str = "",
    text: str = "",
) -> Any:
    """A field that may be left out, as one without this is. `change`: if not the section's;
    `default`: if it may be a user's own; `key`: in the file, if it is not the attribute's name;
    `text`: its meaning, if that is no docstring."""
    return Field(change, default, fact, key, text)


def required(change: Effect | None = None) -> Any:
    return Field(change, required=True)


class FieldFault(NamedTuple):
    """The reason why a value cannot be read. `text` is None for an unknown field."""

    path: Path
    text: str | None
    hints: tuple[str, ...] = ()


class Section:
    """A mapping of the file with known fields; its docstring is the section's documentation."""

    of: ClassVar[type]
    """The class of model.py that it is converted to."""
    below: ClassVar[str] = ""
    """How names of fields show which of the user's entries it is: `.ROLE`, `[]`."""
    change: ClassVar[Effect | None] = None
    """Effect of a change of its fields, if they have none of their own."""

    def __init__(self, **given: Any) -> None:
        self.given = frozenset(given)
        """Names of the fields that the file has; the others are None."""
        vars(self).update(dict.fromkeys(self.names()), **given)

    @classmethod
    @cache
    def by_key(cls) -> dict[str, Field]:
        """The section's fields by their keys in the file."""
        types = get_type_hints(cls, include_extras=True)
        named = {
            name: vars(kind).get(name, Field())
            for kind in reversed(cls.__mro__[: cls.__mro__.index(Section)])
            for name in vars(kind).get("__annotations__", ())
        }
        return {
            entry.key or name: entry._replace(name=name, type=types[name])
            for name, entry in named.items()
        }

    @classmethod
    def names(cls) -> list[str]:
        return [entry.name for entry in cls.by_key().values()]

    @classmethod
    def read(cls, node: Any, path: Path, faults: list[FieldFault]) -> Any:
        """The section of a tree's node; what is wrong is added to `faults`. A field with nothing
        after the colon counts as left out."""
        if isinstance(node, cls):
            return node
        if not isinstance(node, Block) and not kinds.is_null(node):
            faults.append(FieldFault(path, "must be a mapping: `field: value` lines, indented"))
            return None
        block = node if isinstance(node, Block) else {}
        found = {}
        for key, entry in cls.by_key().items():
            if key in block and not is_empty(block[key]):
                value = None if kinds.is_null(block[key]) else block[key]
                found[entry.name] = _read(entry.type, value, (*path, key), faults)
            elif entry.required:
                faults.append(FieldFault((*path, key), "is missing"))
        faults += [FieldFault((*path, key), None) for key in block if key not in cls.by_key()]
        return cls(**found)

    def to_model(self, **changes: Any) -> Any:
        """The section's frozen value of model.py. Raises nothing for a section that is valid."""
        given = {
            name: _plain(getattr(self, name))
            for name in self.given & field_names(self.of)
            if getattr(self, name) is not None or takes_none(self.of, name)
        }
        return self.of(**{**given, **changes})


def _read(kind: Any, node: Any, path: Path, faults: list[FieldFault]) -> Any:
    """The value of a field's type: of sections, lists, mappings, and of what readers return."""
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        for reader in kind.__metadata__:
            if isinstance(reader, kinds.Before):
                try:
                    node = reader.read(node)
                except ValueError as error:
                    text, *hints = error.args
                    faults.append(FieldFault(path, text, tuple(hints)))
                    return None
        return _read(inner[0], node, path, faults)
    if origin in (Union, UnionType):
        return None if node is None else _read(inner[0], node, path, faults)
    if origin is tuple:
        if not isinstance(node, list | tuple):
            faults.append(
                FieldFault(path, "must be a list: [one, two], or a line with `- ` for each")
            )
            return None
        items = enumerate(node)
        return tuple(_read(inner[0], each, (*path, number), faults) for number, each in items)
    if origin is dict:
        return {
            _read(inner[0], key, (*path, key), faults): _read(inner[1], each, (*path, key), faults)
            for key, each in node.items()
        }
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind.read(node, path, faults)
    return node


@cache
def field_names(model_class: type) -> frozenset[str]:
    """Without the section's fields that are short for another one."""
    return frozenset(item.name for item in fields(model_class))


@cache
def takes_none(model_class: type, name: str) -> bool:
    return type(None) in get_args(get_type_hints(model_class)[name])


class FieldRow(NamedTuple):
    """One field of the file: `nodes.ROLE.machine`."""

    name: str
    change: Effect
    default: Providers | None
    fact: Fact | None


def rows(section: type[Section], above: str = "") -> Iterator[FieldRow]:
    """Fields of a section and of those in it. A section whose own field has an effect is one."""
    for key, entry in section.by_key().items():
        inner, change = section_in(entry.type), entry.change or section.change
        if inner is not None and entry.change is None:
            yield from rows(inner, f"{above}{key}{inner.below}.")
        else:
            assert change is not None, f"{above}{key} does not say what its change does"
            yield FieldRow(above + key, change, entry.default, entry.fact)


def section_in(annotation: Any) -> type[Section] | None:
    """The section in a field's type: of itself, its items or its entries."""
    inner = get_args(annotation)
    if not inner and isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(section_in, inner)), None)


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_model()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
