"""Output of cloudtrain itself in people's folders: it is never delivered as code."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path

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
