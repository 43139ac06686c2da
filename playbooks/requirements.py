"""Parses pip requirement files, and the package that each line names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cloudtrain.errors import ConfigError
from cloudtrain.model import ClusterConfig, Problem

CODE = "code:"
"""Prefix of a file in the delivered code."""

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_INCLUDE = re.compile(r"\s*(?:-r\s*|--requirement(?:\s+|=))(.+?)\s*(?:\s#.*)?$")


def lines(config: ClusterConfig) -> tuple[str, ...]:
    """Lines of `setup.packages` and `setup.requirements`, with included files. Raises
    ConfigError for an unreadable file.
    """
    named = tuple(config.setup.packages)
    if config.setup.requirements is None or of_code(config) is not None:
        return named
    return (*named, *_read(config, config.folder / config.setup.requirements, ()))


def of_code(config: ClusterConfig) -> str | None:
    """The file in the delivered code that `setup.requirements: code:FILE` names; None for a file of
    this machine.
    """
    value = config.setup.requirements
    return value[len(CODE) :] if value is not None and value.startswith(CODE) else None


def package(line: str) -> str:
    """Package name: `"Tensorflow_CPU>=2"` → `"tensorflow-cpu"`; empty for an option, a URL or a
    comment.
    """
    found = _NAME.match(line)
    if not found or "://" in line.split("@")[0] or line.lstrip().startswith(("./", "../")):
        return ""
    return re.sub(r"[-_.]+", "-", found[1]).lower()


def without(wanted: Iterable[str], packages: Iterable[str]) -> tuple[str, ...]:
    """Lines that name none of `packages`."""
    left_out = set(packages)
    return tuple(line for line in wanted if package(line) not in left_out)


def _read(config: ClusterConfig, path: Path, outer: tuple[Path, ...]) -> tuple[str, ...]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [
                Problem(
                    file=config.source,
                    line=None,
                    field="setup.requirements",
                    text=f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; "
                    "the path is relative to the config file, `code:PATH` to the delivered code",
                )
            ],
        ) from None
    found: list[str] = []
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        include = _INCLUDE.match(line)
        if include:
            inner = path.parent / include[1]
            if inner not in (path, *outer):
                found += _read(config, inner, (path, *outer))
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line.strip())
    return tuple(found)
