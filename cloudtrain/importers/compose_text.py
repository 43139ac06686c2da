"""Interpolation and environment files of Docker Compose.

https://docs.docker.com/reference/compose-file/interpolation/ and
https://docs.docker.com/compose/how-tos/environment-variables/variable-interpolation/#env-file-syntax
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.source_files import NotInside, text_of
from cloudtrain.importers.values import Value
from cloudtrain.node.key_shapes import looks_like_key, looks_like_key_name

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<text>(?:[^{}]|\$\{[^{}]*\})*))?\})"
)
_UNWRITABLE = re.compile(r"[${}\x00-\x1f]")
"""What no default of a config's variable can have."""


def interpolated(draft: Draft, value: Value) -> str:
    """The text with its variables marked for `shell_words`; an unset one is empty, as there."""

    def marked(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name, how, text = found["bare"] or found["name"], found["how"] or "", found["text"] or ""
        if how.endswith("+"):
            draft.lose(value, f"{found[0]} is not mapped: write its value")
            return ""
        default = draft.variables.get(name)
        if default is None or (how.startswith(":") and not default):
            if how.endswith("?"):
                return shell_words.VARIABLE[0] + name + shell_words.VARIABLE[1]
            default = text if how else ""
            if "${" in default:
                inner = _VARIABLE.sub(marked, default)
                draft.lose(value, f"{found[0]}: only {name} stays a variable")
                default = shell_words.with_defaults(inner)
        return with_default(name, default)

    return _VARIABLE.sub(marked, shell_words.clean(value.text))


def with_default(name: str, default: str) -> str:
    """A variable and its value where the environment has none; the value alone, if no config can
    have it as a default."""
    if _UNWRITABLE.search(default):
        return default
    return f"{shell_words.VARIABLE[0]}{name}:-{default}{shell_words.VARIABLE[1]}"


def passed_on(draft: Draft, name: str) -> str:
    """A variable that is taken from the shell that starts compose, or from its `.env`."""
    return with_default(name, draft.variables.get(name, ""))


def split_words(text: str) -> list[str]:
    """The words of an interpolated `command:`, which compose splits after it has filled in the
    variables: one that no quotes surround may be several words, or none. Raises ValueError for an
    open quote.
    """
    marks: list[str] = []
    quote, pieces = "", []
    whole = re.compile(rf"{shell_words.VARIABLE[0]}[^{shell_words.VARIABLE[1]}]*.|\\?.", re.DOTALL)
    for found in whole.finditer(text):
        piece = found[0]
        if piece.startswith(shell_words.VARIABLE[0]):
            marks.append(piece if quote else shell_words.unquoted(piece))
            piece = shell_words.VARIABLE[0] + str(len(marks) - 1) + shell_words.VARIABLE[1]
        elif piece in "\"'" and quote in ("", piece):
            quote = "" if quote else piece
        elif quote == "'" and piece == "\\'":
            quote = ""
        pieces.append(piece)
    mark = re.compile(rf"{shell_words.VARIABLE[0]}(\d+){shell_words.VARIABLE[1]}")
    return [mark.sub(lambda at: marks[int(at[1])], word) for word in shlex.split("".join(pieces))]


def read_variables(draft: Draft, folder: Path) -> None:
    """Take the variables of compose's `.env`, which stands beside its file."""
    path = folder / ".env"
    if not path.is_file() or path.is_symlink():
        return
    named = Value(text=".env", file=str(path), line=None, field=".env")
    for name, value in environment_file(draft, folder, named).items():
        if looks_like_key_name(name) or looks_like_key(value.text):
            draft.lose(value, f"looks like a secret: export {name}; its value is not copied")
        else:
            draft.variables[name] = shell_words.with_defaults(value.text)


def environment_file(draft: Draft, folder: Path, named: Value) -> dict[str, Value]:
    """Variables of an `env_file` below the folder; one that cannot be read is reported."""
    path = folder / named.text
    try:
        text = text_of(folder, named.text)
    except (OSError, ValueError) as error:
        why = f" ({error})" if isinstance(error, NotInside) else ""
        draft.lose(named, f"cannot read {named.text}{why}: write its variables under train.env")
        return {}
    found: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*(?:=\s*(.*?))?\s*$", line)
        if entry is None:
            continue
        name, raw = entry[1], entry[2]
        value = Value(text=raw or "", file=str(path), line=number, field=name)
        found[name] = _with(
            value, _unquoted(draft, value) if raw is not None else passed_on(draft, name)
        )
    return found


def _unquoted(draft: Draft, value: Value) -> str:
    if quoted := re.match(r"'([^']*)'", value.text):
        return shell_words.clean(quoted[1])
    if quoted := re.match(r'"((?:[^"\\]|\\.)*)"', value.text):
        text = re.sub(
            r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), quoted[1]
        )
        return interpolated(draft, _with(value, text))
    return interpolated(draft, _with(value, re.sub(r"\s+#.*", "", value.text)))


def _with(value: Value, text: str) -> Value:
    return Value(text=text, file=value.file, line=value.line, field=value.field)
