"""Base of the config file's sections: reads their known fields, makes values of model.py."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from cloudtrain.config import fields as kinds
from cloudtrain.config.yaml_source import Block, Scalar


def optional(meaning: str) -> Any:
    return Field(default=None, description=meaning)


def required(meaning: str) -> Any:
    return Field(description=meaning)


class Section(BaseModel):
    """A mapping of the file with known fields; its docstring is the section's documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    of: ClassVar[type]
    """The class of model.py that it is converted to."""

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
            if not (_empty(value) and name in cls.by_key())
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


def _empty(node: object) -> bool:
    return isinstance(node, Scalar) and node.plain and not node.source


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_model()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
