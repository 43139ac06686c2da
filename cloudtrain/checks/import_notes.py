"""Notes of `plan` and `check` on modules that a script imports and nothing provides."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterator

from cloudtrain.checks.own_modules import folder_with, start_as_module
from cloudtrain.checks.provided import package_of, provided
from cloudtrain.checks.script_code import StartedScript, scripts_of
from cloudtrain.core.model import ClusterConfig
from cloudtrain.script.imports import certain_imports


def import_notes(config: ClusterConfig) -> tuple[str, ...]:
    """One line for each module that is certainly missing, with `file.py:LINE`. Offline."""
    there = provided(config)
    found: list[str] = []
    for field, script in scripts_of(config).items():
        if script is None:
            continue
        if script.entry is not None:
            found += _imports(script, there)
        elif script.started.module is not None:
            found += _module(field, script, there)
    return tuple(dict.fromkeys(found))


def _imports(script: StartedScript, there: frozenset[str] | None) -> Iterator[str]:
    entry, paths = script.entry, script.code.paths
    assert entry is not None
    for use in certain_imports(entry, script.code.read):
        top = use.name.partition(".")[0]
        if top in (there or ()) or (there is None and top in sys.stdlib_module_names):
            continue
        folder = folder_with(top, paths)
        if folder == entry.root:
            continue  # a package without __init__.py
        if _is_on_path(top, script):
            continue
        if folder is not None and script.started.file is not None:
            as_module = start_as_module(entry.path, str(script.inside), folder)
            below = posixpath.relpath(folder, script.inside)
            way = f"start {as_module}" if as_module else f"set `train.env.PYTHONPATH: {below}`"
            looked = f"a script looks in its own folder, {entry.root}"
            yield f"{use}: {top} is in {_shown(folder)} of the code, but {looked}: {way}"
        elif there is not None and not _anywhere(top, paths):
            yield (
                f"{use}: neither the code nor `setup:` has the module {top}: add "
                f"{package_of(top)} to `setup.packages`"
            )


def _module(field: str, script: StartedScript, there: frozenset[str] | None) -> Iterator[str]:
    """`python -m NAME` of which the code has nothing where it starts."""
    name = script.started.module or ""
    top = name.partition(".")[0]
    if top in (there or sys.stdlib_module_names):
        return
    inside, paths = str(script.inside), script.code.paths
    prefix = "" if inside == "." else f"{inside}/"
    if any(path.startswith((f"{prefix}{top}/", f"{prefix}{top}.py")) for path in paths):
        return  # a part of it is there: a finding of its own
    if _is_on_path(top, script):
        return
    folder = folder_with(top, paths)
    if folder is not None:
        yield f"{field}: -m {name}: {top} is in {_shown(folder)}: set `train.dir: {folder}`"
    elif there is not None and not _anywhere(top, paths):
        yield f"{field}: -m {name}: neither the code nor `setup:` has the module {top}"


def _is_on_path(top: str, script: StartedScript) -> bool:
    """True if `train.env.PYTHONPATH` has a folder of the code with it, or one that is not known
    here."""
    for part in script.config.train.env.get("PYTHONPATH", "").split(":"):
        if part.startswith(("/", "~")) or "{" in part:
            return True
        folder = posixpath.normpath(posixpath.join(script.inside, part))
        prefix = "" if folder == "." else f"{folder}/"
        names = (f"{prefix}{top}/", f"{prefix}{top}.py")
        if part and any(path.startswith(names) for path in script.code.paths):
            return True
    return False


def _anywhere(top: str, paths: frozenset[str]) -> bool:
    """True if something of that name is in the code, such as a link, or a compiled module."""
    return any(
        part == top or part.startswith(f"{top}.") for path in paths for part in path.split("/")
    )


def _shown(folder: str) -> str:
    return "the top folder" if folder == "." else posixpath.join(folder, "")
