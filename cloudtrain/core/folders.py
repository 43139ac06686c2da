"""Folders of this program: its own, and the cache with what may be fetched again."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def cache_folder() -> Path:
    """This user's cache folder."""
    names = ("CLOUDTRAIN_CACHE", "HOME", "XDG_CACHE_HOME")
    return _cache(*map(os.environ.get, names)).absolute()


@lru_cache(maxsize=8)
def _cache(chosen: str | None, _home: str | None, _xdg: str | None) -> Path:
    """`gpus` needs it for each machine; its arguments are what it depends on."""
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("cloudtrain")
