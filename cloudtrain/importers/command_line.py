"""Makes `train.command` of a container's words, finds the script that it runs, maps variables."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value
from cloudtrain.node.key_shapes import looks_like_key, looks_like_key_name

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


# Maps the variables of a job's containers: `train.env`, `secrets`, and what extends a variable
# of the node's own


_PATHS = re.compile(r"(?i)[A-Z_]*PATH")
"""Names of lists of folders."""
SYSTEM = ("/usr/bin", "/bin")
"""What a PATH of programs cannot do without."""


def put_variable(draft: Draft, name: str, value: Value) -> None:
    """One variable of the tasks. The value of a secret is never copied."""
    mark = rf"{shell_words.VARIABLE[0]}{re.escape(name)}(:-)?{shell_words.VARIABLE[1]}"
    if _PATHS.fullmatch(name) and not re.fullmatch(mark, value.text):
        value = replace(value, text=re.sub(mark, shell_words.OWN, value.text))
    if name == "GOOGLE_APPLICATION_CREDENTIALS":
        draft.lose(value, "a key file is not delivered: see `identity:`")
    elif name == "PYTHONPATH":
        _put_python_path(draft, value)
    elif shell_words.OWN in value.text:
        _export(draft, name, value)
    elif name == "PATH" and not set(SYSTEM) & set(value.text.split(":")):
        draft.lose(value, "without the system's folders no program is found: it is left out")
    elif looks_like_key_name(name) or looks_like_key(value.text):
        marked = re.fullmatch(r"\ue000(\w+)(:-)?\ue001", value.text)
        variable = marked[1] if marked else name
        draft.put(("secrets", name), f"${{{variable}}}", value)
        if not marked:
            draft.lose(value, f"looks like a secret: export {name}; its value is not copied")
    else:
        for placeholder in shell_words.placeholders(value.text):
            draft.lose(value, f"{placeholder} in it is filled in by cloudtrain")
        here = draft.placed.here(value.text) if draft.placed else None
        text = shell_words.marked_text(shell_words.literal(here or value.text))
        draft.put(("train", "env", name), text, value, f"was {value.text}" if here else "")
        name_uris(draft, value, value.text)


def _export(draft: Draft, name: str, value: Value) -> None:
    """`PATH=/opt/bin:$PATH`: only the node's shell knows the rest of it, so that its command
    begins with an export."""
    pieces = []
    for part in value.text.split(":"):
        here = draft.placed.here(part) if draft.placed and part.startswith("/") else None
        if here is not None:
            below = "" if here == "." else f"/{shell_words.shell_line([here])}"
            pieces.append(f'"$PWD"{below}')
        else:
            rest = part.split(shell_words.OWN)
            quoted = (shell_words.shell_line([each]) if each else "" for each in rest)
            pieces.append(f'"${name}"'.join(quoted))
    draft.exports[name] = f"export {name}={':'.join(pieces)}"
    for word in shell_words.unknown(value.text):
        draft.lose(value, f"{word} in it is not known here")


def _put_python_path(draft: Draft, value: Value) -> None:
    """Folders of the code, relative to that in which the program starts; Python makes them
    absolute (https://docs.python.org/3/library/site.html, removeduppaths)."""
    found = []
    for part in re.split(":", value.text):
        if part in ("", shell_words.OWN):
            continue
        here = None
        if draft.placed:
            path = posixpath.normpath(posixpath.join(draft.placed.workdir, part))
            here = draft.placed.here(path)
        elif not posixpath.isabs(part):
            here = part
        if here is None:
            draft.lose(value, f"{shell_words.plain(part)} is no folder of the code here")
        else:
            found.append(here)
    put_python_path(draft, found, value)


def put_python_path(draft: Draft, folders: list[str], origin: Value | None) -> None:
    """Add folders, relative to the one in which the program starts."""
    known = str(draft.get("train.env.PYTHONPATH") or "").split(os.pathsep)
    whole = [shell_words.literal(each) for each in folders if each != "."]
    text = os.pathsep.join(dict.fromkeys(filter(None, [*known, *whole])))
    draft.put(("train", "env", "PYTHONPATH"), text or None, origin)
