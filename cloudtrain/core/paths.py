"""Paths on nodes and of this program, and paths and sizes as messages show them."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path


def is_inside(path: str) -> bool:
    """True if a path names one file below its folder, in only one way."""
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))


def shown(path: object) -> str:
    """A path with any bytes, in printable form."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


# ── Paths on a node, relative to the user's home there ────────────────────────────────────────

ROOT = ".cloudtrain"


def cluster_folder(cluster: str) -> str:
    """Everything of the cluster on a node outside the cache; deleted when the node is left."""
    return f"{ROOT}/{cluster}"


def code_folder(cluster: str, digest: str) -> str:
    """Delivered code, never run in place: each run copies it to its work folder."""
    return f"{cluster_folder(cluster)}/code/{digest}"


def runs_folder(cluster: str) -> str:
    return f"{cluster_folder(cluster)}/runs"


def work_folder(cluster: str, run: str, task: str) -> str:
    """Folder of one task for all attempts; the task starts in it (or in `train.dir` below it). Each
    task has its own: two ranks that share one corrupt each other's checkpoints."""
    return f"{runs_folder(cluster)}/{run}/{task}/work"


def environment_folder(cluster: str, run: str, task: str) -> str:
    """A task's own layer over the environment of `setup:`: what the task installs stays in it."""
    return f"{runs_folder(cluster)}/{run}/{task}/env"


def attempt_folder(cluster: str, run: str, task: str, attempt: int) -> str:
    """Log, exit code, process group and start time of one attempt of one task."""
    return f"{runs_folder(cluster)}/{run}/{task}/attempt-{attempt}"


def tag(cluster: str, run: str, task: str, attempt: int) -> str:
    """Value of CLOUDTRAIN_TASK in the environment of every process of one attempt of one task."""
    return f"{cluster}/{run}/{task}/{attempt}"


# ── Folders of this program: its own, and the cache with what may be fetched again ────────────

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


# ── Lists of names, and sizes, in messages ────────────────────────────────────────────────────


def size_text(size: float) -> str:
    """Bytes in decimal units, as disks and networks count: `3.2 GB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 999.5 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def sizes(found: Counter[str]) -> str:
    """`model/ (3.2 GB), logs/ (12 kB)`, the largest first; "" for nothing."""
    names = [f"{shown(name)} ({size_text(size)})" for name, size in found.most_common()]
    return some(names, 10)


def some(names: Collection[str], limit: int = 3) -> str:
    """`a, b, c and 125 more`: the first `limit` names, and how many there are besides."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(islice(names, limit)) + more


# ── Output of cloudtrain itself in people's folders: it is never delivered as code ────────────

FETCHED = ".cloudtrain-fetched"
"""File in a folder into which `fetch` has downloaded artifacts."""

FETCHED_FILES = ".cloudtrain-fetched-files"
"""File beside what was fetched, with the paths of it: JSON, a list."""

SCHEMA = ".cloudtrain-schema.json"
"""File that `init` writes beside a config, for editors."""

RUN, MANIFEST = "run.json", "manifest.json"
"""Both are in the folder of a run in a store."""

_PAGE = re.compile(rb"<title>Run \d{8}-\d{6}-\w+ of ")
_HEAD = 2000
"""Bytes within which a report's title is."""


def folder_by_us(path: Path) -> str | None:
    """Text on what a folder written by cloudtrain is; None for others."""
    if (path / FETCHED).exists():
        return "fetched from a run"
    if (path / RUN).exists() and (path / MANIFEST).exists():
        return "a run in a store"
    return None


def file_by_us(
    path: Path, status: os.stat_result, streams: frozenset[tuple[int, int]]
) -> str | None:
    """Text on what a file written by cloudtrain is; None for others. `streams`: `own_streams()`"""
    if (status.st_dev, status.st_ino) in streams:
        return "the output of this command"
    if path.name in (SCHEMA, FETCHED, FETCHED_FILES):
        return "written by cloudtrain"
    if path.suffix.lower() in (".html", ".htm") and stat.S_ISREG(status.st_mode):
        with suppress(OSError), path.open("rb") as file:
            if _PAGE.search(file.read(_HEAD)):
                return "the report of a run"
    return None


def own_streams() -> frozenset[tuple[int, int]]:
    """Device and inode of the files that this process's standard output and error go to."""
    found = set()
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):
            status = os.fstat(stream.fileno())  # type: ignore[union-attr]
            if stat.S_ISREG(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return frozenset(found)
