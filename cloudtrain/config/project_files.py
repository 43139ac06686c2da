"""The dependencies of a pyproject.toml, a uv.lock or a run's record, as a requirements file."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

PROJECT, UV, RUN = "pyproject.toml", "uv.lock", "run.json"
FORMS = (PROJECT, UV, RUN)

Key = tuple[str, str, str]
"""Name and version of a locked package, and one of its extras; "" is itself."""
Markers = frozenset[str]


def as_requirements(name: str, text: str) -> str | None:
    """Its dependencies, each in the line in which the file has it; None if they are elsewhere, or
    of a form that is not known."""
    try:
        return {PROJECT: _of_project, UV: _of_uv, RUN: _of_run}[name](text)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def _of_project(text: str) -> str | None:
    """`[project] dependencies`"""
    listed = _parsed(text).get("project", {}).get("dependencies")
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


def _of_uv(text: str) -> str | None:
    """Requirements as `uv export --no-dev` writes them: the packages that are needed, and when.
    https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile; compared with uv's own export
    of revision 5 on 2026-11-26."""
    packages: list[dict[str, Any]] = _parsed(text).get("package", [])
    roots = [each for each in packages if "." in map(each["source"].get, ("virtual", "editable"))]
    if len(roots) != 1:
        return None
    found = _needed(roots[0], packages)
    lines = [""] * len(text.splitlines())
    starts = [at for at, line in enumerate(text.splitlines()) if line.strip() == "[[package]]"]
    for start, each in zip(starts, packages, strict=True):
        conditions = found.get((each["name"], each.get("version", ""), ""))
        if conditions is None or each is roots[0]:
            continue
        line = _locked(each)
        if line is None:
            return None
        sets = (" and ".join(f"({each})" for each in sorted(markers)) for markers in conditions)
        when = " or ".join(f"({each})" for each in sorted(sets))
        lines[start] = line if frozenset() in conditions else f"{line} ; {when}"
    return "".join(f"{line}\n" for line in lines)


_SAFE = re.compile(
    r"\w[\w.-]*(==[\w.+!-]+"
    r"| @ (git\+|hg\+)?(https|http|ssh)://[^\s@;#]+(@\w+)?(#subdirectory=[\w./-]+)?)",
    re.ASCII,
)


def _of_run(text: str) -> str | None:
    """The packages that all tasks of the run had (core/run_record.Environment), without CUDA's
    libraries: `setup.tensorflow` decides on them. A node has written it, so it is read as such."""
    found = [set(each["packages"]) for each in json.loads(text)["environments"]]
    named = set.intersection(*found)
    lines = sorted(line for line in named if not re.match(r"(pip==|nvidia-)", line))
    return "".join(f"{line}\n" for line in lines if _SAFE.fullmatch(line)) or None


def _needed(root: dict[str, Any], packages: list[dict[str, Any]]) -> dict[Key, list[Markers]]:
    """Conditions of each package, needed if all markers of one set hold. A set may be empty."""
    found: dict[Key, list[Markers]] = {}
    always: Markers = frozenset()
    todo = [(edge, always) for edge in root.get("dependencies", ())]
    while todo:
        edge, outer = todo.pop()
        when = outer | ({edge["marker"]} if "marker" in edge else always)
        for package in packages:
            version = package.get("version", "")
            if package["name"] != edge["name"] or edge.get("version", version) != version:
                continue
            others = package.get("optional-dependencies", {})
            more = [(extra, others.get(extra, ())) for extra in edge.get("extra", ())]
            for extra, edges in (("", package.get("dependencies", ())), *more):
                seen = found.setdefault((package["name"], version, extra), [])
                if not any(known <= when for known in seen):
                    seen[:] = [*(known for known in seen if not when <= known), when]
                    todo += [(each, when) for each in edges]
    return found


def _locked(package: dict[str, Any]) -> str | None:
    """`six==1.16.0`; None for what only this machine has."""
    source = package["source"]
    if "registry" in source:
        return f"{package['name']}=={package['version']}"
    if "git" in source:
        url, _, commit = source["git"].partition("#")
        return f"{package['name']} @ git+{url.partition('?')[0]}@{commit}"
    return f"{package['name']} @ {source['url']}" if "url" in source else None


def _parsed(text: str) -> dict[str, Any]:
    try:
        tomllib = import_module("tomllib")
    except ImportError:  # Python 3.10
        return {}
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except ValueError:
        return {}
    return found
