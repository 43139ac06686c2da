"""A resolved config as JSON data and back, as a cluster's records hold it; no secret's value."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cloudtrain.core.cloud import providers
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem


def to_json(config: ClusterConfig) -> dict[str, Any]:
    return asdict(config)


def from_json(data: Any) -> ClusterConfig:
    """Decode a recorded config, also of a newer version: its cluster can still be taken down.

    Raises ConfigError.
    """
    try:
        config = decode(ClusterConfig, _as_now(data))
        if config.provider not in (row.name for row in providers()):
            raise InvalidRecord("provider", "is not a provider of this version")
    except InvalidRecord as error:
        text = f"{error.fault}; the record is not what cloudtrain wrote"
        problem = Problem(file="the recorded config", line=None, field=error.key, text=text)
        raise ConfigError([problem]) from None
    return config


def _as_now(data: Any) -> Any:
    """The record as written today: earlier versions wrote a role's `spot` as true or false."""
    if not isinstance(data, dict):
        return data
    data = dict(data)
    if isinstance(data.get("nodes"), dict):
        data["nodes"] = {role: _bought(group) for role, group in data["nodes"].items()}
    if isinstance(data.get("candidates"), list):
        data["candidates"] = [_as_now(each) for each in data["candidates"]]
    return data


def _bought(group: Any) -> Any:
    if isinstance(group, dict) and group.get("spot") is True:
        return {"provisioning": {"market": "spot"}, **group}
    return group
