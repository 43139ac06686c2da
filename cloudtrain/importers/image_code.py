"""Maps a Dockerfile to the folder of code, with what it copies, sets and installs there."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.command_line import put_code, put_python_path, put_variable
from cloudtrain.importers.dockerfile import Dockerfile
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.placed_code import Copy, PlacedCode, place_code
from cloudtrain.importers.values import Value


def put_image_code(
    draft: Draft,
    dockerfile: Dockerfile,
    context: Path,
    base: Path,
    origin: Value | None,
    *,
    commands: Iterable[Sequence[str]] = (),
    workdir: str = "",
    mounts: Sequence[Copy] = (),
) -> None:
    """`code.path` and `train.dir` as COPY, ADD and `mounts` have it, the variables of ENV, and what
    pip installs of the code. A copy that they do not reproduce is reported. `commands` and
    `workdir` are the containers' own, where they have any."""
    workdir = workdir or dockerfile.folder
    copies = _copies(dockerfile.copies, mounts)
    if not copies and origin is not None:
        copies = [Copy(source=context, target=workdir or "/", origin=origin)]
    started = [*commands, [*dockerfile.entrypoint, *dockerfile.command]]
    scripts = [path for words in started for path in _scripts(words, workdir)]
    value = dockerfile.variables.get("PYTHONPATH")
    paths = value.text.split(":") if value else []
    imports = [posixpath.normpath(path) for path in paths if path.startswith("/")]
    placed = place_code(copies, workdir, scripts, imports, context)
    draft.placed, draft.workdir = placed, workdir
    if placed is None:
        put_code(draft, context, base, origin)
        for copy in copies:
            draft.lose(copy.origin, f"not mapped: {_said(copy, context)}")
    else:
        put_code(draft, placed.root, base, origin or copies[-1].origin)
        inside = os.path.relpath(placed.folder, placed.root)
        if inside != ".":
            draft.put("train.dir", shell_words.literal(inside), origin)
    _put_software(draft, dockerfile, placed, context, base)
    for name, variable in dockerfile.variables.items():
        put_variable(draft, name, variable)
    if placed is not None:
        folders = [os.path.relpath(each, placed.folder) for each in placed.imports]
        put_python_path(draft, folders, origin)
        _name_missing(draft, dockerfile, placed, context)


def _copies(copies: Sequence[Copy], mounts: Sequence[Copy]) -> list[Copy]:
    """Copies and mounts, without what a mount hides."""
    found = [*copies, *mounts]
    for mount in mounts:
        hidden = posixpath.normpath(mount.target).rstrip("/") + "/"
        found = [c for c in found if c is mount or not f"{c.target}/".startswith(hidden)]
    return found


def _scripts(words: Sequence[str], workdir: str) -> list[str]:
    """Paths in the image of what the words may start."""
    listed = [part for word in words for part in re.split(r"[\s;&|]+", word)]
    found = [word for word in listed if word.endswith(".py")]
    for at, word in enumerate(listed[:-1]):
        if word == "-m":
            path = listed[at + 1].replace(".", "/")
            found += [f"{path}.py", f"{path}/__main__.py"]
    return [posixpath.normpath(posixpath.join(workdir or "/", path)) for path in found]


def _put_software(
    draft: Draft, dockerfile: Dockerfile, placed: PlacedCode | None, context: Path, base: Path
) -> None:
    for path, value in dockerfile.requirements:
        inside = placed.in_code(path) if placed else None
        source = placed.source_of(path) if placed else None
        if inside is not None:
            draft.put("setup.requirements", shell_words.literal(f"code:{inside}"), value)
        elif source is not None:
            relative = os.path.relpath(source, base)
            draft.put("setup.requirements", shell_words.literal(relative), value)
        else:
            draft.lose(value, f"{path} is no file here: list its packages in setup.packages")
    for path, value in dockerfile.installs:
        inside = placed.in_code(path) if placed else None
        if inside is None:
            draft.lose(value, f"{path} is not in the code: it is not installed")
        else:
            draft.put("setup.install", [*(draft.get("setup.install") or []), inside], value)


def _name_missing(draft: Draft, dockerfile: Dockerfile, placed: PlacedCode, context: Path) -> None:
    """Note what is not where the image has it, unless only pip read it."""
    read = {path for path, _ in dockerfile.requirements}
    for copy in placed.missing:
        if copy.target in read:
            continue
        here = placed.here(copy.target)
        if here is not None:
            way = f"the code has it as {here}, and paths in the command are changed"
        else:
            way = "put it there in the code, or bring it with `data:`"
        draft.lose(copy.origin, f"not mapped: {_said(copy, context)}: {way}")


def _said(copy: Copy, context: Path) -> str:
    source = os.path.relpath(copy.source, context)
    return f"{source} as {copy.target}"
