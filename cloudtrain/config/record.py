"""A resolved config as JSON data and back, as a cluster's records hold it; no secret's value."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cloudtrain.cloud import providers
from cloudtrain.errors import ConfigError
from cloudtrain.model import ClusterConfig, Problem


def to_json(config: ClusterConfig) -> dict[str, Any]:
    data = _data(config)
    assert isinstance(data, dict)
    return data


def from_json(data: Any) -> ClusterConfig:
    """Raises ConfigError where `data` is not what to_json made.

    A field that this version does not know is passed over: a cluster made by a newer version
    can still be taken down. Without pydantic, so that `status` stays quick.
    """
    try:
        config = _value(ClusterConfig, data, "")
        if config.provider not in (row.name for row in providers()):
            raise _Damaged("provider")
    except _Damaged as error:
        text = "is not what cloudtrain wrote"
        raise ConfigError(
            [Problem(file="the recorded config", line=None, field=str(error), text=text)]
        ) from None
    assert isinstance(config, ClusterConfig)
    return config


class _Damaged(Exception):
    pass


def _data(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _data(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _data(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_data(item) for item in value]
    return value


def _value(kind: Any, data: Any, at: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _noun(kind, data, at)
    if origin in (Union, types.UnionType):
        return _first(inner, data, at)
    if origin is Literal and data in inner:
        return data
    if origin is tuple and isinstance(data, list):
        return tuple(_value(inner[0], item, f"{at}[{n}]") for n, item in enumerate(data))
    if origin is Mapping and isinstance(data, dict):
        return {str(key): _value(inner[1], item, f"{at}.{key}") for key, item in data.items()}
    if kind is float and type(data) in (int, float):
        return float(data)
    if origin is None and type(data) is kind:
        return data
    raise _Damaged(at)


def _noun(kind: Any, data: Any, at: str) -> Any:
    if not isinstance(data, dict):
        raise _Damaged(at)
    hints = get_type_hints(kind)
    try:
        return kind(
            **{
                item.name: _value(
                    hints[item.name], data[item.name], f"{at}.{item.name}".lstrip(".")
                )
                for item in fields(kind)
                if item.name in data
            }
        )
    except TypeError:
        raise _Damaged(at) from None


def _first(kinds: tuple[Any, ...], data: Any, at: str) -> Any:
    for kind in kinds:
        try:
            return _value(kind, data, at)
        except _Damaged:
            continue
    raise _Damaged(at)
