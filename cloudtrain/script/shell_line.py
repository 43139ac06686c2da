"""Finds the Python script that a shell line starts, and its arguments."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass

_OPERATORS = ";|&<>\n"


@dataclass(frozen=True, kw_only=True)
class Started:
    """`python FILE ARGUMENTS` or `python -m MODULE ARGUMENTS`."""

    file: str | None = None
    module: str | None = None
    folder: str = "."
    """The folder in which the line starts it, relative to the line's own (`cd sub && …`)."""
    arguments: tuple[str, ...] = ()
    exact: bool = True
    """False if the shell may change them: `$NAME`, globs, redirections."""

    @property
    def words(self) -> str:
        return self.file if self.file is not None else f"-m {self.module}"


def started_by(line: str) -> Started | None:
    """Python program with which the line begins, after `cd` and variables; None if there is
    none."""
    words = _words(line)
    folder = "."
    while words[:1] == ["cd"] and len(words) > 2 and words[2] in ("&&", ";"):
        folder = posixpath.normpath(posixpath.join(folder, words[1]))
        words = words[3:]
        if not re.fullmatch(r"(?!/)[\w./ -]+", folder):
            return None
    while words[:1] == ["export"] and len(words) > 2 and words[2] in ("&&", ";"):
        if words[1].startswith("PYTHONPATH=") or re.match(r"PATH=(?!.*\$PATH)", words[1]):
            return None
        words = words[3:]
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        if words[0].startswith(("PATH=", "PYTHONPATH=")):
            return None
        words.pop(0)
    if words[:1] == ["exec"]:
        words.pop(0)
    if not words or not re.fullmatch(r"python[0-9.]*", words[0]):
        return None
    rest = words[1:]
    while rest and re.fullmatch(r"-[uOBEIsS]+", rest[0]):
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m" and re.fullmatch(r"[A-Za-z_][\w.]*", rest[1]):
        arguments, exact = _arguments(rest[2:], line)
        return Started(module=rest[1], folder=folder, arguments=arguments, exact=exact)
    if rest and re.fullmatch(r"(?!/|-)[\w./ -]+\.(?:py|ipynb)", rest[0]):
        arguments, exact = _arguments(rest[1:], line)
        return Started(file=rest[0], folder=folder, arguments=arguments, exact=exact)
    return None


def _words(line: str) -> list[str]:
    """Words and operators of a shell line; empty if it has an open quote."""
    lexer = shlex.shlex(line.replace("\\\n", " ").strip(), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return []


def _arguments(words: list[str], line: str) -> tuple[tuple[str, ...], bool]:
    """Words up to the first operator, and whether the shell passes them on as they are."""
    own: list[str] = []
    end = ""
    for word in words:
        if word.strip(_OPERATORS) == "":
            end = word
            break
        own.append(word)
    if "<" in end or ">" in end:
        if own and own[-1].isdigit():  # of `2>&1`
            own.pop()
        return tuple(own), False
    return tuple(own), not re.search(r"[$`*?]|\[", " ".join(own))
