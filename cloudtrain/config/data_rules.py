"""Rules on `data:`: roles, shards, and the datasets that the command names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from cloudtrain.config.fields import nearest
from cloudtrain.config.sections import ConfigFile, DataEntry
from cloudtrain.config.yaml_source import Path, shown

Found = Iterator[tuple[Path, str]]

TRAIN_ALONE = ("ps", "evaluator")
"""Roles that read no shard: they do not train on data."""

TRAIN = ("chief", "worker")
"""Roles that shards without a role are for."""

_PLACEHOLDER = re.compile(r"\{data\.([^{}\s]*)\}")


def broken_data_rules(file: ConfigFile, roles: Collection[str]) -> Found:
    """Every rule on `data:` that the file breaks; `roles` are those of the cluster."""
    for name, entry in (file.data or {}).items():
        yield from _entry(("data", name), entry, roles)
    if file.train is not None:
        for path, text in file.train.texts().items():
            for unknown in _unknown(text, file.data or {}):
                yield ("train", *path), unknown
            with_line = _roles_with(path, file.train.command or {}, roles)
            for absent in _absent(text, file.data or {}, with_line):
                yield ("train", *path), absent


def _roles_with(path: Path, lines: Collection[str], roles: Collection[str]) -> list[str]:
    """Roles whose tasks get the text at this path of `train:`."""
    role = path[1] if path[0] == "command" and len(path) > 1 else None
    if role == "default":
        return [each for each in roles if each not in lines]
    return [each for each in roles if role in (None, each)]


def _absent(text: str, data: Mapping[str, DataEntry], roles: Collection[str]) -> Iterator[str]:
    """Sentences on placeholders of datasets that tasks with this text do not get."""
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        if name in data:
            source, variable = data[name], f"CLOUDTRAIN_DATA_{name.upper()}"
            to = [source.role] if source.role else TRAIN if source.shard else roles
            without = [role for role in roles if role not in to]
            if without:
                yield (
                    f"names {{data.{name}}}, which {' and '.join(without)} nodes do not get: "
                    f"write a line for each role, or read {variable}, which is set where the data "
                    "is"
                )


def _entry(at: Path, entry: DataEntry, roles: Collection[str]) -> Found:
    if entry.source is None:
        yield (*at, "from"), "is missing: the URI of the data, such as gs://BUCKET/prefix"
    role = entry.role
    if role is not None and roles and role not in roles:
        meant = nearest(role, roles)
        after = f"did you mean {meant!r}?" if meant else f"the roles are {', '.join(roles)}"
        yield (*at, "role"), f"{shown(role)} is no role of this cluster: {after}"
    elif entry.shard and role in TRAIN_ALONE:
        yield (*at, "shard"), f"is for nodes that train: {role} reads no shard of the data"
    elif entry.shard and role is None and roles and not set(TRAIN) & set(roles):
        yield (*at, "role"), "is missing: `shard` without it is for chief and workers"
    if entry.rest is not None and not entry.shard:
        yield (*at, "rest"), "requires `shard: true`"


def _unknown(text: str, known: Collection[str]) -> Iterator[str]:
    """Sentences on placeholders of datasets that `data:` does not have."""
    for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
        if name in known:
            continue
        if not known:
            after = "add it, such as `data: {digits: gs://BUCKET/prefix}`"
        else:
            meant = nearest(name, known)
            after = f"did you mean {meant!r}?" if meant else f"it has {', '.join(known)}"
        yield f"names {{data.{shown(name)}}}, which `data:` does not have: {after}"
