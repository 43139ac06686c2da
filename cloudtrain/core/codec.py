"""Decodes records, JSON as dataclasses; `dataclasses.asdict` encodes them, `encode` and `pick` what
commands print for scripts."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cloudtrain.core.paths import is_inside

T = TypeVar("T")

UNIX_TIME = {"ge": 0, "lt": 253_370_764_800}
"""Metadata of a field that is a Unix time, before the year 9999: calendars go no further."""
ANY_TEXT = {"any_text": True}
"""Metadata of a Literal of which a newer version may have more."""


def _inside(path: str) -> str:
    if not is_inside(path):
        raise ValueError("is not a path inside its folder")
    return path


PATH = {"check": _inside}
"""Metadata of a path that names one file below its folder."""

Reader = Callable[[Any], Any]


class InvalidRecord(ValueError):
    """Names the first missing or wrong key, `attempts[0].started`, "" for the whole; no value."""

    def __init__(self, key: str, fault: str) -> None:
        super().__init__(f"`{key}` {fault}" if key else f"it {fault}")
        self.key, self.fault = key, fault

    def below(self, name: str) -> InvalidRecord:
        """The same fault as the record says it that has this one under `name`."""
        dot = "." if self.key and not self.key.startswith("[") else ""
        return InvalidRecord(f"{name}{dot}{self.key}", self.fault)


def decode(kind: type[T], data: object) -> T:
    """Make a `kind` of what `json.loads` returns. Raises InvalidRecord. Unknown keys are ignored,
    missing ones take the field's default. Types are strict, but an int may stand for a float. NaN
    and infinity are refused."""
    value: T = _reader_of_class(kind)(data)  # type: ignore[arg-type]  # a class is hashable
    return value


@cache
def _reader_of_class(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    rows = []
    for item in fields(kind):
        required = item.default is MISSING and item.default_factory is MISSING
        rows.append((item.name, _reader(hints[item.name], item.metadata), required))

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise InvalidRecord("", "should be an object")
        found = {}
        for name, reader, required in rows:
            if name in data:
                try:
                    found[name] = reader(data[name])
                except InvalidRecord as error:
                    raise error.below(name) from None
            elif required:
                raise InvalidRecord(name, "is missing")
        try:
            return kind(**found)
        except ValueError as error:  # of its __post_init__
            raise InvalidRecord("", str(error)) from None

    return read


def _reader(kind: Any, more: Mapping[str, Any] = types.MappingProxyType({})) -> Reader:
    """Reader of an annotation; `more`, the field's metadata, holds for the scalars in it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _text if "any_text" in more else partial(_one_of, inner)
    if origin is tuple:
        return partial(_list, _reader(inner[0], more))
    if origin is Mapping:
        return partial(_mapping, _reader(inner[1], more))
    if origin in (Union, types.UnionType):
        choices = [_reader(each, more) for each in inner if each is not type(None)]
        reader = choices[0] if len(choices) == 1 else partial(_any_of, choices)
        return partial(_nullable, reader) if type(None) in inner else reader
    if is_dataclass(kind):
        return _reader_of_class(kind)  # type: ignore[arg-type]  # no instance is an annotation
    if kind in (object, Any):
        return _anything
    plain = _SCALARS[kind]
    return partial(_limited, plain, more) if more else plain


def _anything(data: Any) -> Any:
    return data


def _text(data: Any) -> str:
    if isinstance(data, str):
        return data
    raise InvalidRecord("", "should be a valid string")


def _integer(data: Any) -> int:
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    raise InvalidRecord("", "should be a valid integer")


def _number(data: Any) -> float:
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise InvalidRecord("", "should be a valid number")
    try:
        number = float(data)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        return number
    raise InvalidRecord("", "should be a finite number")


def _boolean(data: Any) -> bool:
    if isinstance(data, bool):
        return data
    raise InvalidRecord("", "should be a valid boolean")


_SCALARS: Mapping[Any, Reader] = {str: _text, int: _integer, float: _number, bool: _boolean}
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "should be greater than or equal to {}"),
    "le": (lambda value, limit: value <= limit, "should be less than or equal to {}"),
    "lt": (lambda value, limit: value < limit, "should be less than {}"),
    "pattern": (lambda value, limit: re.fullmatch(limit, value) is not None, "should match '{}'"),
}
"""Metadata of a field, besides `check`, which raises ValueError."""


def _limited(reader: Reader, more: Mapping[str, Any], data: Any) -> Any:
    value = reader(data)
    for name, limit in more.items():
        if name == "check":
            try:
                limit(value)
            except ValueError as error:
                raise InvalidRecord("", str(error)) from None
        elif not _LIMITS[name][0](value, limit):
            raise InvalidRecord("", _LIMITS[name][1].format(limit))
    return value


def _nullable(reader: Reader, data: Any) -> Any:
    return None if data is None else reader(data)


def _one_of(expected: tuple[Any, ...], data: Any) -> Any:
    if any(type(data) is type(each) and data == each for each in expected):
        return data
    *others, last = map(repr, expected)
    words = f"{', '.join(others)} or {last}" if others else last
    raise InvalidRecord("", f"should be {words}")


def _any_of(choices: list[Reader], data: Any) -> Any:
    for reader in choices:
        try:
            return reader(data)
        except InvalidRecord:
            continue
    raise InvalidRecord("", "should be of another type")


def _list(reader: Reader, data: Any) -> Any:
    if not isinstance(data, list | tuple):
        raise InvalidRecord("", "should be a list")
    found = []
    for number, each in enumerate(data):
        try:
            found.append(reader(each))
        except InvalidRecord as error:
            raise error.below(f"[{number}]") from None
    return tuple(found)


def _mapping(reader: Reader, data: Any) -> Any:
    if not isinstance(data, dict):
        raise InvalidRecord("", "should be an object")
    found = {}
    for key, each in data.items():
        try:
            found[_text(key)] = reader(each)
        except InvalidRecord as error:
            raise error.below(key) from None
    return found


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
    with all fields, and a date in ISO format."""
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
