"""Command lines as values, which can be compared and printed; quoted only here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


class Secret:
    """A value that prints as `***` everywhere; `reveal()` returns it for the process that needs
    it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"


@dataclass(frozen=True)
class Command:
    """One command with its arguments; `shell()` is the quoted line for a POSIX shell."""

    arguments: tuple[str, ...]

    def shell(self) -> str:
        return shlex.join(self.arguments)

    def __str__(self) -> str:
        return self.shell()


def command(*arguments: str) -> Command:
    """Build a command: in `command("pip", "install", "x y")` every argument is passed as written.

    A `Secret` raises TypeError: it goes on stdin, never on a command line.
    """
    for argument in arguments:
        if not isinstance(argument, str):
            raise TypeError(f"an argument is a string, not {type(argument).__name__}")
        if "\0" in argument:
            raise ValueError("an argument cannot contain a NUL byte")
    return Command(arguments)


def script(text: str, *arguments: str) -> Command:
    """Build a POSIX sh script with its arguments as `$1`, `$2`, …; nothing is pasted into its
    text.
    """
    return command("/bin/sh", "-c", text, "sh", *arguments)


def exports(environment: Mapping[str, str | Secret]) -> bytes:
    """Lines `export K='v'` for a shell to read on stdin; the only place that reveals a secret."""
    lines = []
    for name, value in environment.items():
        if not (name.isascii() and name.isidentifier()):
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
        plain = value.reveal() if isinstance(value, Secret) else value
        if "\0" in plain:
            raise ValueError(f"{name}: a value cannot contain a NUL byte")
        lines.append(f"export {name}={shlex.quote(plain)}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")
