"""Makes `train.command` of a container's words, and finds the script that it runs."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value

_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env bash")
_URI = re.compile(r"(?:gs|s3|abfss?|az|hdfs)://[^\s'\"]+")
_PYTHON = re.compile(r"(?:/\S*/)?python[\d.]*")


def line_of(words: list[str]) -> str:
    """The line that runs these words. `sh -c LINE` is LINE itself; a path of the image's Python is
    `python`, the node's environment."""
    if len(words) > 2 and words[0] in _SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        lines = words[3:] if words[2] == "--" else words[2:]
        if len(lines) == 1:
            return shell_words.marked_text(shell_words.script_line(lines[0].strip()))
    if words and _PYTHON.fullmatch(words[0]):
        words = ["python", *words[1:]]
    return shell_words.shell_line(words)


def relative_to_workdir(words: list[str], workdir: str) -> list[str]:
    """The words with a script below the image's working folder made relative to it, as the code
    is delivered to another folder."""
    if not workdir.startswith("/"):
        return words
    return [
        posixpath.relpath(word, workdir)
        if word.endswith(".py") and word.startswith(workdir.rstrip("/") + "/")
        else word
        for word in words
    ]


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def name_uris(draft: Draft, origin: Value, text: str) -> None:
    """Report URIs that the script would read or write itself: nodes have no rights of their own."""
    said = {problem.text.partition(": ")[0] for problem in draft.problems}
    for uri in dict.fromkeys(_URI.findall(shell_words.plain(text))):
        if uri in said or (draft.has("identity") and uri.startswith("gs://")):
            continue
        draft.lose(
            origin,
            f"{uri}: nodes have no rights there; bring input with `data:`, write output to"
            " {output}, or set `identity:`",
        )


def put_code(draft: Draft, folder: Path, base: Path, origin: Value | None) -> None:
    """Deliver a local folder; `base` is the folder of the config."""
    relative = os.path.relpath(folder, base)
    draft.put("code.path", shell_words.literal(relative), origin)


def put_command(draft: Draft, words: list[str], origin: Value | None) -> None:
    """train.command by a container's words, and the script that they run."""
    words = relative_to_workdir(words, draft.workdir)
    if words:
        if words[0] in _SHELLS and origin is not None:
            for name in shell_words.placeholders(words[-1]):
                draft.lose(origin, f"{name} in its shell line is filled in by cloudtrain")
        draft.put("train.command", line_of(words), origin)
