"""JSON Schema of the config file, and what its fields mean: by the rows of cloudtrain/config."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from cloudtrain.config import fields as kinds
from cloudtrain.config.section import Section
from cloudtrain.config.sections import ConfigFile
from cloudtrain.core.cloud import clouds


@cache
def meanings(section: type[Section]) -> Mapping[str, str]:
    """Meaning of each field, by its attribute: its docstring, or its `text`."""
    found = {entry.name: entry.text for entry in section.by_key().values()}
    for kind in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (parsed,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(parsed, ast.ClassDef)
        for one, after in pairwise(parsed.body):
            if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[ast.unparse(one.target)] = " ".join(ast.literal_eval(after.value).split())
    return found


def defaults(model_class: type) -> dict[str, Any]:
    """Defaults by field, without fields that have none."""
    found = {}
    for item in fields(model_class):
        if item.default is not MISSING:
            found[item.name] = item.default
        elif item.default_factory is not MISSING:
            found[item.name] = item.default_factory()
    return found


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the config file; configs/schema.json holds it."""
    parts: dict[str, Any] = {}
    generated = _section_schema(ConfigFile, parts)
    rented = [cloud.name for cloud in clouds()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cloudtrain config",
        **generated,
        "required": ["strategy"],
        "anyOf": [{"required": [name]} for name in ("provider", "any_of", "ordered")],
        "if": {"required": ["provider"], "properties": {"provider": {"enum": rented}}},
        "then": {"required": ["placement"]},
        "$defs": dict(sorted(parts.items())),
    }


def _section_schema(section: type[Section], parts: dict[str, Any]) -> dict[str, Any]:
    """Schema of a section; those of the sections in it are added to `parts`."""
    properties, known, said = {}, defaults(section.of), meanings(section)
    for key, entry in section.by_key().items():
        schema = {**_schema(entry.type, parts), "description": said[entry.name]}
        properties[key] = _sorted(schema)
        value = known.get(entry.name)
        if value not in (None, (), {}) and not is_dataclass(value):
            properties[key]["default"] = list(value) if isinstance(value, tuple) else value
    needed = [key for key, entry in section.by_key().items() if entry.required]
    return {
        "additionalProperties": False,
        "description": inspect.cleandoc(section.__doc__ or ""),
        "properties": properties,
        **({"required": needed} if needed else {}),
        "type": "object",
    }


def _schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        for reader in kind.__metadata__:
            if isinstance(reader, kinds.Reads):
                return dict(reader.schema)
        found = _schema(inner[0], parts)
        for also in kind.__metadata__:
            if isinstance(also, kinds.Also):
                return {"anyOf": [also.form, *found.get("anyOf", [found])]}
        return found
    if origin in (Union, UnionType):
        found = _schema(inner[0], parts)
        return {"anyOf": [*(found["anyOf"] if set(found) == {"anyOf"} else [found]), NULL]}
    if origin is tuple:
        return {"items": _schema(inner[0], parts), "type": "array"}
    if origin is dict:
        value = {key: part for key, part in _schema(inner[1], parts).items() if key != "title"}
        return {"additionalProperties": value, "type": "object"}
    assert issubclass(kind, Section), f"{kind} has no reader: use one of config/fields.py"
    if kind.__name__ not in parts:
        parts[kind.__name__] = _section_schema(kind, parts)
    return {"$ref": f"#/$defs/{kind.__name__}"}


NULL = {"type": "null"}


def _sorted(schema: Any) -> Any:
    """The same with its keys in order, but for names of properties."""
    if isinstance(schema, dict):
        return {key: _sorted(part) for key, part in sorted(schema.items())}
    return [_sorted(part) for part in schema] if isinstance(schema, list) else schema
