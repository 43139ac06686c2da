"""What the user said besides the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """`here` is the folder of the submit line's paths, `folder` that of the imported file, `base`
    that of the config to write."""

    here: Path
    folder: Path
    base: Path
    provider: str | None = None
    strategy: str | None = None
