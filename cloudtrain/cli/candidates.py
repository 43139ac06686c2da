"""Words that the shell offers: clusters, files, nodes, roles and runs, from the records here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from glob import escape, glob
from pathlib import Path
from typing import Any, Literal

import click

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.state import Records, known_clusters, resolve

Known = Literal["up", "down", "all"]
"""Clusters to offer: those that exist, those that are down, or both, for commands that read."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

LATEST = 20
"""Runs of each cluster that are offered."""


def clusters(which: Known) -> Complete:
    """Names of clusters, and YAML files unless only records of clusters that are down count."""

    def complete(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
        names = [
            name
            for name in known_clusters()
            if which == "all" or Records(name).is_open() == (which == "up")
        ]
        files = [] if which == "down" else glob(f"{escape(start)}*")  # noqa: PTH207
        found = sorted(each for each in files if each.endswith((".yaml", ".yml")))
        return _starting(start, names) + found

    return complete


def nodes(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Each node of the command's cluster, by its task."""
    return _starting(start, [f"{role}{i}" for role, n in _counts(context) for i in range(n)])


def roles(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    found = list(_counts(context))
    names = [role for role, _ in found] + [f"{role}{i}" for role, n in found for i in range(n)]
    return _starting(start, names)


def runs(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """The latest runs of the command's cluster, the newest first."""
    name = _cluster(context)
    return _starting(start, _latest(name)) if name else []


def resumable(context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """`last`, the runs of the command's cluster, then those of all others."""
    own = _cluster(context)
    names = [each for each in known_clusters() if each != own]
    found = [run for name in names for run in _latest(name)]
    return _starting(start, ["last", *(_latest(own) if own else []), *found])


def _starting(start: str, words: list[str]) -> list[str]:
    return [word for word in words if word.startswith(start)]


def _latest(name: str) -> list[str]:
    return Records(name).run_ids()[: -LATEST - 1 : -1]


def _cluster(context: click.Context) -> str | None:
    """The cluster on record of the NAME or FILE that is typed; None if there is none."""
    argument = _argument(context)
    names = known_clusters()
    if argument in names:
        return str(argument)
    try:
        if argument is None:
            return resolve(None)
    except CloudtrainError:
        return None
    wanted = os.path.abspath(argument)  # noqa: PTH100
    return next((name for name in names if _config(name).get("source") == wanted), None)


def _argument(context: click.Context) -> str | None:
    """The NAME or FILE that is typed; click parses no arguments if the line ends with a flag."""
    typed = context.params.get("name") or context.params.get("file")
    return typed or next((word for word in context.args if not word.startswith("-")), None)


def _config(name: str) -> Mapping[str, Any]:
    try:
        return Records(name).config()
    except CloudtrainError:
        return {}


def _counts(context: click.Context) -> Iterator[tuple[str, int]]:
    """Number of nodes of each role, by the record; by the FILE of a cluster without one."""
    name = _cluster(context)
    if name:
        groups = _config(name).get("nodes")
    else:
        from cloudtrain.config import load, to_json

        try:
            groups = to_json(load(Path(_argument(context) or "")))["nodes"]
        except CloudtrainError:
            return
    for role, group in groups.items() if isinstance(groups, Mapping) else ():
        count = group.get("count") if isinstance(group, Mapping) else None
        yield role, count if isinstance(count, int) else 1


def doc_pages(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    from cloudtrain.commands.init import paths

    return _starting(start, list(paths()))


def gpus(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    from cloudtrain.commands.gpus import kind_names

    return _starting(start.upper(), kind_names())
