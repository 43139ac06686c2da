"""Which cluster is meant: a FILE is accepted wherever a NAME is, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.cli.options import is_yaml
from cloudtrain.records import Records, known, resolve

if TYPE_CHECKING:
    from cloudtrain.model import ClusterConfig


class Target(NamedTuple):
    """`config` only where a file was given: else the cluster's own record counts."""

    name: str
    config: ClusterConfig | None


def target_of(argument: str | None) -> Target:
    """Of a file its name and config, otherwise a cluster that is known here."""
    if argument is not None and is_file(argument):
        from cloudtrain.config import load

        config = load(Path(argument))
        return Target(config.name, config)
    return Target(resolve(argument), None)


def name_of(argument: str | None) -> str:
    """A cluster that is known here, by its name or its file."""
    return resolve(target_of(argument).name)


def config_of(argument: str | None) -> ClusterConfig:
    """A file's config; of a cluster that is known here, the one of its last `up`."""
    name, config = target_of(argument)
    if config is not None:
        return config
    from cloudtrain.config import from_json

    return from_json(Records(name).config())


def is_file(argument: str) -> bool:
    if "/" in argument or is_yaml(argument):
        return True
    return argument not in known() and Path(argument).is_file()
