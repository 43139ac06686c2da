"""Interpolation and environment files of Docker Compose.

https://docs.docker.com/reference/compose-file/interpolation/ and
https://docs.docker.com/compose/how-tos/environment-variables/variable-interpolation/#env-file-syntax
"""

from __future__ import annotations

import re
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value

_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<text>[^{}]*))?\})"
)


def interpolated(draft: Draft, value: Value) -> str:
    """The text with its variables marked for `shell_words`; an unset one is empty, as there."""

    def marked(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name, how, text = found["bare"] or found["name"], found["how"] or "", found["text"] or ""
        if how.endswith("?"):
            return shell_words.VARIABLE[0] + name + shell_words.VARIABLE[1]
        if how.endswith("+"):
            draft.lose(value, f"{found[0]} is not mapped: write its value")
            return ""
        default = text if how else ""
        return f"{shell_words.VARIABLE[0]}{name}:-{default}{shell_words.VARIABLE[1]}"

    return _VARIABLE.sub(marked, shell_words.clean(value.text))


def passed_on(name: str) -> str:
    """A variable that is taken from the shell that starts compose."""
    return f"{shell_words.VARIABLE[0]}{name}:-{shell_words.VARIABLE[1]}"


def environment_file(draft: Draft, path: Path, named: Value) -> dict[str, Value]:
    """Variables of an `env_file`; a missing one is reported."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        draft.lose(named, f"cannot read {named.text}: write its variables under train.env")
        return {}
    found: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*(?:=\s*(.*?))?\s*$", line)
        if entry is None:
            continue
        name, raw = entry[1], entry[2]
        value = Value(text=raw or "", file=str(path), line=number, field=name)
        found[name] = _with(value, _unquoted(draft, value) if raw is not None else passed_on(name))
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
