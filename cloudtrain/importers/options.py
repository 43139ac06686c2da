"""Options that the user gave besides the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.core.model import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class Options:
    """`here` is the folder of the submit line's paths, `folder` that of the imported file, `base`
    that of the config to write."""

    here: Path
    folder: Path
    base: Path
    provider: str | None = None
    strategy: str | None = None
    strategy_in_code: Callable[[ClusterConfig], str | None] | None = None
    """The strategy that the script of a config uses; None if it cannot be told."""
