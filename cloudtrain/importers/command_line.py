"""Makes `train.command` of a container's words, and finds the script that it runs."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value

_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env bash")
_URI = re.compile(r"(?:gs|s3|abfss?|az|hdfs)://[^\s'\"]+")
_PYTHON = re.compile(r"(?:/\S*/)?python[\d.]*")


def line_of(words: list[str], exports: Iterable[str] = ()) -> str:
    """The line that runs these words. `sh -c LINE` is LINE itself; a path of the image's Python is
    `python`, the node's environment."""
    first = "".join(f"{export} && " for export in exports)
    if _is_shell_line(words):
        line = words[3] if words[2] == "--" else words[2]
        line = shell_words.with_own_credentials(shell_words.script_line(line.strip()))
        return first + shell_words.marked_text(line)
    if words and _PYTHON.fullmatch(words[0]):
        words = ["python", *words[1:]]
    return first + shell_words.shell_line(words)


def _is_shell_line(words: list[str]) -> bool:
    """True if the words are `sh -c LINE`."""
    if len(words) < 3 or words[0] not in _SHELLS or not re.fullmatch(r"-[a-z]*c", words[1]):
        return False
    return len(words) == (4 if words[2] == "--" else 3)


def with_code_paths(draft: Draft, words: list[str], workdir: str) -> list[str]:
    """The words with the image's paths of what is delivered as paths here: relative to the folder
    in which the program starts, as the code is delivered to another folder."""
    if _is_shell_line(words):
        line = re.sub(
            r"(?<![\w./$}-])/[\w.][^\s'\"`;|&<>(),:\\{}$]*",
            lambda found: _path_here(draft, found[0], workdir) or found[0],
            words[-1],
        )
        if draft.placed is not None and draft.placed.own_workdir != draft.placed.workdir:
            line = re.sub(
                r"(?<![\w./$}-])\w[\w./-]*\.py(?!\w)",
                lambda found: _program_here(draft, found[0]) or found[0],
                line,
            )
        return [*words[:-1], line]
    found = []
    for at, word in enumerate(words):
        name, equals, path = word.partition("=") if word.startswith("-") else ("", "", word)
        here = _path_here(draft, path, workdir) if path.startswith("/") else None
        if path.endswith(".py") and not path.startswith("/"):
            here = _program_here(draft, path)
        if here is not None and not at and "/" not in here:
            here = f"./{here}"
        found.append(word if here is None else f"{name}{equals}{here}")
    return found


def _program_here(draft: Draft, path: str) -> str | None:
    """A program by its path relative to the image's working folder."""
    if draft.placed is None:
        return None
    return draft.placed.here(posixpath.join(draft.placed.own_workdir, path))


def _path_here(draft: Draft, path: str, workdir: str) -> str | None:
    if draft.placed is not None:
        return draft.placed.here(path)
    if path.endswith(".py") and workdir.startswith("/") and path.startswith(f"{workdir}/"):
        return posixpath.relpath(path, workdir)
    return None


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
    words = with_code_paths(draft, words, draft.workdir)
    if words:
        if words[0] in _SHELLS and origin is not None:
            for name in shell_words.placeholders(words[-1]):
                draft.lose(origin, f"{name} in its shell line is filled in by cloudtrain")
        draft.put("train.command", line_of(words, draft.exports.values()), origin)
        pass_credentials(draft, words, origin)


def pass_credentials(draft: Draft, words: list[str], origin: Value | None) -> None:
    """The line's credentials, as variables of the tasks."""
    for name in (each for word in words for each in shell_words.credentials(word)):
        draft.put(("secrets", name), f"${{{name}}}", origin)
