"""Location of a config field in its file: `gcp.yaml:9`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.config import candidate_number, load_again
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig, Problem

if TYPE_CHECKING:
    from cloudtrain.config.yaml_source import SourceLocation


def location_of(config: ClusterConfig, field: str) -> SourceLocation | None:
    """Location of `nodes.worker.machine`, or of the nearest line above it. None if there is none,
    or the config's file can no longer be read."""
    from cloudtrain.config.additions import tree_now
    from cloudtrain.config.yaml_source import place_of, value_at

    file = _shown(Path(config.source))
    tree = tree_now(config, file)
    if config.candidates:
        from cloudtrain.config.candidates import readings

        read, number = readings(tree, file), candidate_number(config)
        tree = read[number].tree if number is not None and number < len(read) else tree
    parts = re.findall(r"[^.\[\]]+", field)
    at = tuple(int(part) if part.isdecimal() else part for part in parts)
    short = (*at[:-1], "spot")  # in which the file may have `provisioning`
    is_short = parts[-1] == "provisioning" and value_at(tree, at) is None
    return place_of(tree, short if is_short else at)


def placed(config: ClusterConfig, problem: Problem) -> Problem:
    """The problem at its field's file and line, unless it has a line of its own."""
    if problem.line is not None:
        return problem
    place = location_of(config, problem.field)
    return replace(problem, file=place.file, line=place.line or None) if place else problem


def place_in_file(config: ClusterConfig, field: str) -> str:
    """Format a field's location, `gcp.yaml:9`. `the config` if the file has changed since or the
    config was not read from a file."""
    path = Path(config.source)
    if not config.source or not _is_current(config):
        return "the config"
    place = location_of(config, field)
    if place is None:
        return _shown(path)
    return str(place) if place.line else f"{place} {field}"


def _shown(path: Path) -> str:
    """The path, relative if it is in the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _is_current(config: ClusterConfig) -> bool:
    """True if the file still says what this config holds."""
    from cloudtrain.config.section import rows
    from cloudtrain.config.sections import ConfigFile

    try:
        now = load_again(config)
    except (CloudtrainError, OSError):
        return False
    fields = (row.name for row in rows(ConfigFile) if row.change.kind == "replace")
    shown = {name.partition(".")[0] for name in fields} | {"limits", "resource_group"}
    return all(getattr(now, name) == getattr(config, name) for name in shown)
