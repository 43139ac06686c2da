"""Finds modules of the code that a script cannot import, and a command with which it can."""

from __future__ import annotations

import posixpath
from collections.abc import Collection


def folder_with(module: str, paths: Collection[str]) -> str | None:
    """The only folder of the code with this top-level module; "." is its top. None if it has none,
    or several.
    """
    found = {
        posixpath.dirname(path.removesuffix(end)) or "."
        for path in paths
        for end in (f"{module}.py", f"{module}/__init__.py")
        if path == end or path.endswith(f"/{end}")
    }
    found |= _packages(module, paths)
    return found.pop() if len(found) == 1 else None


def _packages(module: str, paths: Collection[str]) -> set[str]:
    """Folders with one of that name that has Python files, with or without `__init__.py`."""
    found = set()
    for path in paths:
        parts = path.split("/")
        if path.endswith(".py") and module in parts[:-1]:
            found.add("/".join(parts[: parts.index(module)]) or ".")
    return found


def start_as_module(script: str, inside: str, folder: str) -> str | None:
    """Command that starts a script so that it finds modules of a folder above it: `python -m a.b`,
    with `train.dir` if that is not `inside`. None if the folder is not above the script, or if the
    path between them cannot be a module's name.
    """
    script, folder = posixpath.normpath(script), posixpath.normpath(folder)
    if folder != "." and not script.startswith(f"{folder}/"):
        return None
    dotted = posixpath.relpath(script, folder).removesuffix(".py").replace("/", ".")
    if "." not in dotted or not all(part.isidentifier() for part in dotted.split(".")):
        return None
    there = "" if folder == posixpath.normpath(inside) else f" with `train.dir: {folder}`"
    return f"`python -m {dotted}`{there}"
