"""Rules on `train.command`: a line for each role, and the roles that `{ROLE.hosts}` names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from cloudtrain.config.fields import nearest
from cloudtrain.config.sections import TrainSection
from cloudtrain.config.yaml_source import Path, shown

Found = Iterator[tuple[Path, str]]

DEFAULT = "default"
"""Key of the line of all roles that have none of their own."""

_HOSTS = re.compile(r"\{([^{}\s.]+)\.hosts\}")


def broken_command_rules(train: TrainSection, roles: Collection[str]) -> Found:
    """Every rule that the section breaks; `roles` are those of the cluster, none if not known."""
    if not roles:
        return
    lines = train.command or {}
    if "" not in lines:
        yield from _by_role(lines, roles)
    for path, text in train.texts().items():
        for role in dict.fromkeys(_HOSTS.findall(text)):
            if role not in roles:
                yield (
                    ("train", *path),
                    f"names {{{shown(role)}.hosts}}, but {_unknown(role, roles)}",
                )


def _by_role(lines: Collection[str], roles: Collection[str]) -> Found:
    for role in lines:
        if role not in (*roles, DEFAULT):
            yield ("train", "command", role), _unknown(role, (*roles, DEFAULT))
    without = [role for role in roles if role not in lines]
    if lines and without and DEFAULT not in lines:
        names = ", ".join(without)
        yield ("train", "command"), f"has no line for {names}: add one, or `{DEFAULT}`"


def _unknown(role: str, roles: Collection[str]) -> str:
    meant = nearest(role, roles)
    after = f"did you mean {meant!r}?" if meant else f"the roles are {', '.join(roles)}"
    return f"no node has the role {shown(role)!r}: {after}"
