"""Reads an INI `[cluster]` with `chief=`, `worker=`, `ps=` lists of `host:port`."""

from __future__ import annotations

import re

from cloudtrain.config.hosts_ini import Ini
from cloudtrain.config.yaml_source import Block, Scalar, SourceLocation
from cloudtrain.core.cloud import providers
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.network import is_loopback
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.values import Value, Values


def read(draft: Draft, values: Values, options: Options) -> None:
    """Existing machines; all on this machine are local nodes. Raises ConfigError for a file that
    `hosts:` would refuse, too."""
    file, text = values.file, values.text()
    ini = Ini(file, text)
    hosts = [host for host in ini.hosts(SourceLocation(file, 1)) if isinstance(host, Block)]
    if ini.problems:
        raise ConfigError(ini.problems)
    for number, written in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*(\[[^\]]+\])", written)
        if match and match[1] != "[cluster]":
            draft.lose(Value(file=file, line=number, field=match[1]), "not mapped")
    found = []
    for host in hosts:
        role, line = _text(host, "role"), host.place.line
        if role == "master":  # TensorFlow 1's is TensorFlow 2's chief
            why = "is `chief` here: a script that looks for `master` must be changed"
            draft.lose(Value(file=file, line=line, field=role), why)
        found.append((_text(host, "address"), "chief" if role == "master" else role, line))
    is_local = options.provider is None and all(is_loopback(address) for address, _, _ in found)
    names = {row.name for row in providers() if row.takes_hosts}
    if not is_local and (options.provider is None or options.provider in names):
        draft.put("provider", next(iter(names)))
        listed = [{"address": address, "role": role} for address, role, _ in found]
        draft.put("hosts", listed, comment="user and key: ~/.ssh/config, or user: and key: here")
    else:
        draft.put("provider", next(row.name for row in providers() if row.on_this_machine))
        for role in dict.fromkeys(role for _, role, _ in found):
            first = next(at for _, each, at in found if each == role)
            count = sum(each == role for _, each, _ in found)
            draft.role(role, count, Value(file=file, line=first, field=role))
    where = Value(file=file, line=ini.line_of("[cluster]"), field="cluster")
    if len(ini.ports) == 1 or (ini.ports and not is_local):
        draft.put("train.port", min(ini.ports), where)
    if len(ini.ports) > 1 and not is_local:
        ports = ", ".join(map(str, sorted(ini.ports)))
        draft.lose(where, f"has different ports ({ports}): train.port is one for all tasks")


def _text(host: Block, key: str) -> str:
    value = host[key]
    return value.source if isinstance(value, Scalar) else ""
