"""Base of the config file's sections: reads their known fields, makes values of model.py.

A field is one row of its section: `optional(…)` or `required(…)` has its meaning, the effect of a
change, whether it may be a user's default, and how nodes are compared. `rows` lists them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from cloudtrain.config import fields as kinds
from cloudtrain.config.yaml_source import Block, is_empty
from cloudtrain.core.cloud import clouds
from cloudtrain.core.dataclass import dataclass, field

Kind = Literal["next run", "live", "replace", "down first"]

KINDS: dict[Kind, str] = {
    "next run": "the next `train` reads it",
    "live": "`up` applies it to the existing nodes",
    "replace": "existing nodes stay as created: `up` and `train` refuse the file, `up --replace` "
    "recreates the nodes that differ",
    "down first": "it describes another cluster: `up` refuses the file until `down`",
}


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


@dataclass(frozen=True)
class _Row:
    """Facts on a field besides its type and meaning, kept where pydantic takes a function on its
    JSON Schema, of which it changes nothing."""

    change: Effect | None
    default: Providers | None
    fact: Fact | None

    def __call__(self, schema: dict[str, Any]) -> None: ...


def optional(
    meaning: str,
    change: Effect | None = None,
    *,
    default: Providers | None = None,
    fact: Fact | None = None,
    key: str | None = None,
) -> Any:
    """A field that may be left out. `change`: if not the section's; `default`: if it may be a
    user's own; `key`: in the file, if it is not the attribute's name."""
    row = _Row(change, default, fact)
    return Field(default=None, alias=key, description=meaning, json_schema_extra=row)


def required(meaning: str, change: Effect | None = None) -> Any:
    return Field(description=meaning, json_schema_extra=_Row(change, None, None))


class Section(BaseModel):
    """A mapping of the file with known fields; its docstring is the section's documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    of: ClassVar[type]
    """The class of model.py that it is converted to."""
    below: ClassVar[str] = ""
    """How names of fields show which of the user's entries it is: `.ROLE`, `[]`."""
    change: ClassVar[Effect | None] = None
    """Effect of a change of its fields, if they have none of their own."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, node: Any) -> Any:
        """Drop fields with nothing after the colon: they count as left out."""
        if kinds.is_null(node):
            return {}
        if not isinstance(node, Block):
            raise kinds.InvalidValue("must be a mapping: `field: value` lines, indented")
        return {
            name: None if kinds.is_null(value) else value
            for name, value in node.items()
            if not (is_empty(value) and name in cls.by_key())
        }

    @classmethod
    def by_key(cls) -> dict[str, FieldInfo]:
        """The section's fields by their keys in the file."""
        return {info.alias or name: info for name, info in cls.model_fields.items()}

    def to_model(self, **changes: Any) -> Any:
        """The section's frozen value of model.py. Raises nothing for a section that is valid."""
        given = {
            name: _plain(getattr(self, name))
            for name in self.model_fields_set & field_names(self.of)
            if getattr(self, name) is not None or takes_none(self.of, name)
        }
        return self.of(**{**given, **changes})


@cache
def field_names(model_class: type) -> frozenset[str]:
    """Without the section's fields that are short for another one."""
    return frozenset(item.name for item in fields(model_class))


@cache
def takes_none(model_class: type, name: str) -> bool:
    return type(None) in get_args(get_type_hints(model_class)[name])


def defaults(model_class: type) -> dict[str, Any]:
    """Defaults by field, without fields that have none."""
    found = {}
    for item in fields(model_class):
        if item.default is not MISSING:
            found[item.name] = item.default
        elif item.default_factory is not MISSING:
            found[item.name] = item.default_factory()
    return found


class Row(NamedTuple):
    """One field of the file: `nodes.ROLE.machine`."""

    name: str
    change: Effect
    default: Providers | None
    fact: Fact | None


def rows(section: type[Section], above: str = "") -> Iterator[Row]:
    """Fields of a section and of those in it. A section whose own field has an effect is one."""
    for key, info in section.by_key().items():
        row, inner = info.json_schema_extra, section_in(info.annotation)
        assert isinstance(row, _Row)
        change = row.change or section.change
        if inner is not None and row.change is None:
            yield from rows(inner, f"{above}{key}{inner.below}.")
        else:
            assert change is not None, f"{above}{key} does not say what its change does"
            yield Row(above + key, change, row.default, row.fact)


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


# ── JSON Schema ──────────────────────────────────────────────────────────────


def json_schema(file: type[Section]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file that is this section."""
    generated = file.model_json_schema(schema_generator=_WithoutTitles)
    for section in Section.__subclasses__():
        part = generated if section is file else generated["$defs"].get(section.__name__, {})
        part.pop("title", None)
        known = defaults(section.of) if part else {}
        for name, entry in part["properties"].items() if part else ():
            entry.pop("default", None)
            value = known.get(name)
            if value not in (None, (), {}) and not is_dataclass(value):
                entry["default"] = list(value) if isinstance(value, tuple) else value
    rented = [cloud.name for cloud in clouds()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cloudtrain config",
        **{name: part for name, part in generated.items() if name != "$defs"},
        "required": ["strategy"],
        "anyOf": [{"required": [name]} for name in ("provider", "any_of", "ordered")],
        "if": {"required": ["provider"], "properties": {"provider": {"enum": rented}}},
        "then": {"required": ["placement"]},
        "$defs": generated["$defs"],
    }


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles that repeat a field's name, which are noise in an editor."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
