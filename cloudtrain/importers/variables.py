"""Maps the variables of a job's containers: `train.env`, `secrets`, and what extends a variable of
the node's own."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import replace

from cloudtrain.importers import shell_words
from cloudtrain.importers.command_line import name_uris
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value
from cloudtrain.node.key_shapes import looks_like_key, looks_like_key_name

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
