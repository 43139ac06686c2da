"""This very program as a folder of files, and the packages that it needs, for a desk."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

NAME = "cloudtrain"
REQUIREMENTS = "requirements.txt"
_LINE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def write_program(folder: Path, extras: Collection[str]) -> None:
    """Write the package and its requirements to `folder`, which then holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc", ".gitignore", ".cloudtrainignore")
    shutil.copytree(Path(__file__).parents[1], folder / NAME, ignore=left_out)
    lines = pinned_requirements(extras)
    (folder / REQUIREMENTS).write_text("".join(f"{line}\n" for line in lines), "ascii")


def pinned_requirements(extras: Collection[str]) -> list[str]:
    """`name==version` of every package that this program needs with these extras, in the versions
    that are installed here: those have been used with it.

    A requirement that is not installed here is for other systems, by its marker.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(NAME, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (_key(name), extra) in seen:
            continue
        seen.add((_key(name), extra))
        try:
            there = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _key(name) != NAME:
            found[_key(name)] = there.version.partition("+")[0]  # without a build of one's own
        for needed, extras_of_it in _required(there, extra):
            todo += [(needed, each) for each in ("", *extras_of_it)]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _required(
    package: importlib.metadata.Distribution, extra: str
) -> Iterator[tuple[str, list[str]]]:
    """Names and extras of what a package requires: without an extra, or only for this one."""
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        wanted = _EXTRA.findall(marker)
        parsed = _LINE.match(requirement)
        if parsed and (extra in wanted if wanted else not extra):
            yield parsed[1], [each.strip() for each in (parsed[2] or "").split(",") if each.strip()]


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
