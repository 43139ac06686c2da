"""The dependencies of a pyproject.toml as a requirements file."""

from __future__ import annotations

from importlib import import_module
from typing import Any

NAME = "pyproject.toml"


def as_requirements(text: str) -> str | None:
    """`[project] dependencies`, each in the line in which the file has it; None if they are
    elsewhere: computed, or in a section of one tool.
    """
    listed = _project(text).get("dependencies")
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        return None
    source, lines = text.splitlines(), [""] * len(text.splitlines())
    for each in listed:
        free = (at for at, line in enumerate(source) if each in line and not lines[at])
        at = next(free, None)
        if at is None:
            lines.append(each)
        else:
            lines[at] = each
    return "".join(f"{line}\n" for line in lines)


def _project(text: str) -> dict[str, Any]:
    try:
        tomllib = import_module("tomllib")
    except ImportError:  # Python 3.10
        return {}
    try:
        found = tomllib.loads(text).get("project", {})
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
