"""Hints by this machine's code for what a task did not find: a file that was not delivered, or a
module in another folder of the code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cloudtrain.checks.import_notes import folder_with, start_as_module
from cloudtrain.checks.script_code import DeliveredFolder, delivered_code
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.run_record import Cause, Run
from cloudtrain.script.shell_line import started_by

_NO_FILE = re.compile(
    r"No such file or directory: b?['\"]([^'\"]+)['\"]"
    r"|NotFoundError: (?:\{\{[^}]*\}\} )?(\S+); No such file"
    r"|name = '([^']+)', errno = 2"
    r"|can't open file '([^']+)'"
    r"|(?:^|[\s'\"])([\w./~+@-]+)['\"]?: No such file or directory",
    re.MULTILINE,
)
"""As Python, TensorFlow's file systems, HDF5 and shells write it."""

_NO_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*)")


def with_own_code(config: ClusterConfig, run: Run, cause: Cause) -> Cause:
    """The cause with the hint that this machine's code allows, if it allows one."""
    said = "\n".join([*cause.last_lines, cause.text])
    if cause.facts.again != "by_exit":  # the script did not end by itself
        return cause
    if not _NO_FILE.search(said) and not _NO_MODULE.search(said):
        return cause
    code = delivered_code(config)
    if not isinstance(code, DeliveredFolder):
        return cause
    role = (cause.task or "").rstrip("0123456789")
    hint = _of_files(config, code, said) or _of_modules(config, code, run.line(role), said)
    return replace(cause, hint=hint) if hint else cause


def _of_files(config: ClusterConfig, code: DeliveredFolder, said: str) -> str | None:
    for found in _NO_FILE.finditer(said):
        path = next(filter(None, found.groups()))
        for inside in _paths_in_code(config, path):
            why = code.excluded(inside)
            if why is not None and inside not in code.paths:
                return f"{inside} is here, but {why}"
    return None


def _paths_in_code(config: ClusterConfig, path: str) -> Iterator[str]:
    """Paths in the code that `path` may mean: a relative one from `train.dir` or the top, an
    absolute one below the task's work folder."""
    if "/work/" in path and path.startswith("/"):
        yield os.path.normpath(path.partition("/work/")[2])
    elif not path.startswith(("/", "~")):
        for folder in (config.train.dir, "."):
            inside = os.path.normpath(PurePosixPath(folder) / path)
            if not inside.startswith("../"):
                yield inside


def _of_modules(config: ClusterConfig, code: DeliveredFolder, line: str, said: str) -> str | None:
    found = _NO_MODULE.search(said)
    if found is None:
        return None
    top = found[1]
    for path in (f"{top}/__init__.py", f"{top}.py", top):
        inside = os.path.normpath(PurePosixPath(config.train.dir) / path)
        why = code.excluded(inside)
        if why is not None and inside not in code.paths:
            return f"{path} is here, but {why}"
    folder, started = folder_with(top, code.paths), started_by(line)
    if folder is None or started is None:
        return None
    where = os.path.normpath(PurePosixPath(config.train.dir) / started.folder)
    if started.file is None:
        return f"{top} is in {folder}/ of the code: set `train.dir: {folder}`"
    script = os.path.normpath(PurePosixPath(where) / started.file)
    if str(Path(script).parent) == folder:
        return None
    as_module = start_as_module(script, where, folder)
    if as_module is not None:
        return f"{top} is in the code, but a script looks in its own folder: start {as_module}"
    return f"{top} is in {folder}/ of the code: set `train.env.PYTHONPATH: {folder}`"
