"""Holds a request's body against the model classes that azure-mgmt's libraries are "
"generated with."""

from __future__ import annotations

import base64
import binascii
import datetime
import enum
import functools
import sys
import typing
from collections.abc import Iterator
from typing import Any

from tests.standins.azure_errors import Body, Refusal, real

STALE = frozenset({"properties.hardwareProfile.vmSize"})
"""The library names some sizes of 2017 only; which there are is told by Microsoft.Compute/skus."""


def checked(model: Any, body: Any) -> Body:
    """The body with the values of enums in their own case and without what only the cloud writes.

    Raises Refusal for a property that the model has not, one of another type, a value that its
    enum has not, one that is required and missing.
    """
    return _of_model(model, body, "", answer=False)


def check_answer(model: Any, body: Any) -> None:
    """The same for what the cloud answers, where it writes what only it may write."""
    _of_model(model, body, "", answer=True)


class Field(typing.NamedTuple):
    type: Any
    required: bool
    read_only: bool


@functools.cache
def fields(model: Any) -> dict[str, Field]:
    """By name on the wire."""
    model.__new__(model)  # It computes its names when it is first made.
    models = _models_of(model)
    hints = typing.get_type_hints(model, localns={"_models": models})
    types = {name: _named(kind, models) for name, kind in hints.items()}
    found = {}
    for attribute, field in model._attr_to_rest_field.items():
        read_only = field._visibility == ["read"]
        required = type(None) not in typing.get_args(types[attribute]) and not read_only
        found[field._rest_name] = Field(types[attribute], required, read_only)
    return found


def _models_of(model: Any) -> Any:
    return sys.modules[model.__module__.rpartition(".")[0]]


def _value(kind: Any, value: Any, path: str, answer: bool) -> Any:
    if kind is Any or kind is object:
        return value
    choices = typing.get_args(kind) if _is_union(kind) else (kind,)
    if value is None:
        return None
    enums = [one for one in choices if isinstance(one, type) and issubclass(one, enum.Enum)]
    if enums:
        return _of_enum(enums[0], value, path)
    kind = next(one for one in choices if one is not type(None))
    if typing.get_origin(kind) is list:
        if not isinstance(value, list):
            raise _unfit(value, "an array", path)
        (inner,) = typing.get_args(kind)
        return [_value(inner, one, f"{path}[{at}]", answer) for at, one in enumerate(value)]
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise _unfit(value, "an object", path)
        inner = typing.get_args(kind)[1]
        return {key: _value(inner, one, f"{path}.{key}", answer) for key, one in value.items()}
    if getattr(kind, "_is_model", False):
        return _of_model(kind, value, path, answer)
    return _plain(kind, value, path)


def _named(kind: Any, models: Any) -> Any:
    """Python 3.10 leaves the name in `list["_models.Subnet"]` a string (bpo-41370)."""
    if isinstance(kind, str):
        return getattr(models, kind.removeprefix("_models."))
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, dict, typing.Union):
        return origin[tuple(_named(one, models) for one in given)]
    return kind


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Union


def _of_model(model: Any, value: Any, path: str, answer: bool) -> Body:
    if not isinstance(value, dict):
        raise _unfit(value, "an object", path)
    model = _of_discriminator(model, value)
    known = fields(model)
    found = {}
    for name, one in value.items():
        at = f"{path}.{name}".lstrip(".")
        if name not in known:
            raise real("member-unknown", name=name, model=model.__name__, at=at)
        if (answer or not known[name].read_only) and one is not None:
            found[name] = _value(known[name].type, one, at, answer)
    for name, field in known.items():
        if field.required and name not in found:
            raise real(
                "parameter-missing", name=f"{path}.{name}".lstrip(".").removeprefix("properties.")
            )
    return found


def _of_discriminator(model: Any, value: Body) -> Any:
    for name in getattr(model, "__mapping__", {}):
        if name in value.values():
            return model.__mapping__[name]
    return model


def _of_enum(kind: Any, value: Any, path: str) -> Any:
    if path in STALE and isinstance(value, str):
        return value
    names = {str(one.value).lower(): one.value for one in kind}
    if not isinstance(value, str) or value.lower() not in names:
        raise real(
            "value-not-of-enum",
            value=value,
            path=path.removeprefix("properties."),
            known=", ".join(sorted(map(str, names.values()))),
            target=path,
        )
    return names[value.lower()]


def _plain(kind: Any, value: Any, path: str) -> Any:
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if kind in (datetime.datetime, datetime.date, datetime.timedelta, datetime.time) and isinstance(
        value, str
    ):
        return value
    if kind is bytes and isinstance(value, str):
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            raise _unfit(value, "base64", path) from None
        return value
    raise _unfit(value, getattr(kind, "__name__", str(kind)), path)


def _unfit(value: Any, wanted: str, path: str) -> Refusal:
    return real("type-of-value-wrong", given=type(value).__name__, wanted=wanted, path=path)


def paths(value: Any, path: str = "") -> Iterator[str]:
    """`properties.ipConfigurations[].name`: of everything in a body."""
    if isinstance(value, dict):
        for name, one in value.items():
            at = f"{path}.{name}".lstrip(".")
            yield at
            yield from paths(one, at)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{path}[]")
