"""Location of a config field in its file: `gcp.yaml:9`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cloudtrain.config import load
from cloudtrain.errors import CloudtrainError
from cloudtrain.model import ClusterConfig


def place_in_file(config: ClusterConfig, field: str) -> str:
    """File and line of `nodes.worker.machine`, or the nearest line above it.

    `the config` if the file has changed since or the config was not read from a file.
    """
    from cloudtrain.config.yaml_source import parse, place_of

    path = Path(config.source)
    if not config.source or not _is_current(config, path):
        return "the config"
    shown = str(path)
    with_here = os.path.relpath(path)
    if not with_here.startswith(".."):
        shown = with_here
    tree, _ = parse(path.read_bytes(), shown, os.environ)
    steps: list[str | int] = []
    for part in re.findall(r"[^.\[\]]+", field):
        steps.append(int(part) if part.isdecimal() else part)
    place = place_of(tree, tuple(steps))
    return f"{place.file}:{place.line}" if place else shown


def _is_current(config: ClusterConfig, path: Path) -> bool:
    """True if the file still says what this config holds."""
    try:
        now = load(path)
    except (CloudtrainError, OSError):
        return False
    return (now.nodes, now.network, now.placement, now.image, now.limits) == (
        config.nodes,
        config.network,
        config.placement,
        config.image,
        config.limits,
    )
