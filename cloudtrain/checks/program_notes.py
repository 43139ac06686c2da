"""Notes of `plan` and `check` on a program of the code that the command starts by its own name."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

from cloudtrain.checks.delivered_code import DeliveredCode, delivered_code
from cloudtrain.checks.script_code import command_lines
from cloudtrain.core.model import ClusterConfig

_STARTED = re.compile(
    r"\s*(?:exec\s+)?(?:(?P<shell>bash|sh|/bin/bash|/bin/sh)\s+(?:-\w+\s+)*)?"
    r"(?P<path>(?:\./)?[\w.][\w./+@-]*)(?=\s|;|$)"
)


def program_notes(config: ClusterConfig) -> tuple[str, ...]:
    """A note for `./run.sh` and `bash run.sh` that no node can start as they are. Offline."""
    started = {field: _STARTED.match(line) for field, line in command_lines(config).items()}
    own = {field: found for field, found in started.items() if found and _is_path(found)}
    code = delivered_code(config) if own else None
    if code is None:
        return ()
    notes = (
        _note(config, code, field, found["path"], by_itself=found["shell"] is None)
        for field, found in own.items()
    )
    return tuple(filter(None, notes))


def _is_path(found: re.Match[str]) -> bool:
    return found["shell"] is not None or "/" in found["path"]


def _note(
    config: ClusterConfig, code: DeliveredCode, field: str, path: str, *, by_itself: bool
) -> str | None:
    inside = os.path.normpath(PurePosixPath(config.train.dir) / path)
    if inside not in code.paths:
        return None
    text = code.read(inside) or b""
    first = text.partition(b"\n")[0]
    named = f"{field}: {inside}"
    is_script = first.startswith(b"#!")
    if (by_itself and is_script and first.endswith(b"\r")) or (not by_itself and b"\r\n" in text):
        return (
            f"{named} has line ends of Windows, which a shell takes for a part of its words: save "
            "it with those of Linux (`dos2unix`, or `*.sh text eol=lf` in .gitattributes)"
        )
    if by_itself and code.executable(inside) is False:
        return f"{named} is not executable: `chmod +x` it, or name what runs it (`bash {path}`)"
    return None
