"""Decodes records, dataclasses as JSON, with pydantic's core; `dataclasses.asdict` encodes them,
`encode` and `pick` what commands print for scripts.

The validators are built here, not by pydantic's TypeAdapter: with it `status --offline` takes twice
as long, and none of its modes accepts JSON's lists and objects and lone surrogates (bytes of a
log), yet refuses "1" for 1.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cloudtrain.core.paths import is_inside

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

T = TypeVar("T")

UNIX_TIME = {"ge": 0, "lt": 253_370_764_800}
"""Metadata of a field that is a Unix time, before the year 9999: calendars go no further."""
ANY_TEXT = {"type": "str", "strict": True}
"""Metadata of a Literal of which a newer version may have more."""


def _inside(path: str) -> str:
    if not is_inside(path):
        raise ValueError("is not a path inside its folder")
    return path


PATH = {"check": _inside}
"""Metadata of a path that names one file below its folder."""

_PLAIN: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "str", "strict": True},
    int: {"type": "int", "strict": True},
    float: {"type": "float", "strict": True, "allow_inf_nan": False},
    bool: {"type": "bool", "strict": True},
}
_WORDS = {
    "dataclass_type": "should be an object",
    "dict_type": "should be an object",
    "missing": "is missing",
    "tuple_type": "should be a list",
}
"""By pydantic's name for the fault."""


class InvalidRecord(ValueError):
    """Names the first missing or wrong key, `attempts[0].started`, "" for the whole; no value."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"`{key}` {fault}" if key else f"it {fault}")
        self.key, self.fault = key, fault


def decode(kind: type[T], data: object) -> T:
    """Make a `kind` of what `json.loads` returns. Raises InvalidRecord. Unknown keys are ignored,
    missing ones take the field's default. Types are strict, but an int may stand for a float. NaN
    and infinity are refused."""
    from pydantic_core import ValidationError

    try:
        value: T = _validator(kind).validate_python(data)  # type: ignore[arg-type]  # hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        message = first["msg"]
        for start in ("Input ", "String ", "Value error, "):
            message = message.removeprefix(start)
        fault = _WORDS.get(first["type"], message)
        keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        raise InvalidRecord("".join(keys).removeprefix("."), fault) from None
    return value


@cache
def _validator(kind: type) -> SchemaValidator:
    from pydantic_core import SchemaValidator

    return SchemaValidator(_dataclass_schema(kind))


def _dataclass_schema(kind: type[Any]) -> Any:
    hints = get_type_hints(kind)
    rows = []
    for item in fields(kind):
        schema = _schema(hints[item.name], item.metadata)
        if item.default is not MISSING:
            schema = {"type": "default", "schema": schema, "default": item.default}
        elif item.default_factory is not MISSING:
            made = item.default_factory
            schema = {"type": "default", "schema": schema, "default_factory": made}
        row = {"type": "dataclass-field", "name": item.name, "kw_only": True, "schema": schema}
        rows.append(row)
    arguments = {"type": "dataclass-args", "dataclass_name": kind.__name__, "fields": rows}
    return {
        "type": "dataclass",
        "cls": kind,
        "fields": [row["name"] for row in rows],
        "schema": arguments,
        "post_init": hasattr(kind, "__post_init__"),
    }


def _schema(kind: Any, more: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
    """Core schema of an annotation; `more`, the field's metadata, is added to the scalar's: more of
    the schema, or a `check` of the value, which raises ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_schema(kind)  # type: ignore[arg-type]  # no instance is an annotation
    if origin is Literal:
        return {"type": "literal", "expected": list(inner), **more}
    if origin is tuple:
        items = [_schema(inner[0], more)]
        return {"type": "tuple", "items_schema": items, "variadic_item_index": 0}
    if origin is Mapping:
        keys, values = _schema(inner[0]), _schema(inner[1], more)
        return {"type": "dict", "keys_schema": keys, "values_schema": values}
    if origin in (Union, types.UnionType):
        return _union_schema(inner, more)
    if kind in (object, Any):
        return {"type": "any"}
    schema = {**_PLAIN[kind], **more}
    check = schema.pop("check", None)
    if check is None:
        return schema
    function = {"type": "no-info", "function": check}
    return {"type": "function-after", "function": function, "schema": schema}


def _union_schema(kinds: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
    choices = [_schema(kind, more) for kind in kinds if kind is not type(None)]
    schema = choices[0]
    if len(choices) > 1:
        fault = "should be of another type"
        custom = {"custom_error_type": "union", "custom_error_message": fault}
        schema = {"type": "union", "choices": choices, **custom}
    return {"type": "nullable", "schema": schema} if type(None) in kinds else schema


# ── documents for scripts ──────────────────────────────────────────────────────

View = Callable[[Any], Any] | str
"""Form of an object in a document: the keys of `pick`, or a function that returns another value."""


def pick(
    value: object, keys: str, views: Mapping[str, View] = types.MappingProxyType({})
) -> dict[str, Any]:
    """JSON object with some attributes: `name kind=gpu.kind`, each as `encode` has it."""
    pairs = (key.partition("=") for key in keys.split())
    return {key: encode(attrgetter(path or key)(value), views) for key, _, path in pairs}


def encode(value: Any, views: Mapping[str, View] = types.MappingProxyType({})) -> Any:
    """Value for `json.dumps`: an object by the view of its class's name; without one, a dataclass
    with all fields, and a date in ISO format.
    """
    view = views.get(type(value).__name__)
    if view is not None:
        return pick(value, view, views) if isinstance(view, str) else encode(view(value), views)
    if is_dataclass(value):
        return {item.name: encode(getattr(value, item.name), views) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(each, views) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each, views) for each in value]
    return value.isoformat() if isinstance(value, date) else value
