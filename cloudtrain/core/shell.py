"""Command lines as values, which can be compared and printed; quoted only here."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from cloudtrain.core.dataclass import dataclass

PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")
"""A value of ours in a command line of the user's: `{address}`."""


class Secret:
    """A value that prints as `***` everywhere; `reveal()` is for the process that needs it."""

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
    """Build a command: in `command("pip", "install", "x y")` every argument is passed as written. A
    `Secret` raises TypeError: it goes on stdin, never on a command line."""
    for argument in arguments:
        if not isinstance(argument, str):
            raise TypeError(f"an argument is a string, not {type(argument).__name__}")
        if "\0" in argument:
            raise ValueError("an argument cannot contain a NUL byte")
    return Command(arguments)


def script(text: str, *arguments: str) -> Command:
    """Build a POSIX sh script with arguments `$1`, `$2`, …; nothing is pasted into its text."""
    return command("/bin/sh", "-c", text, "sh", *arguments)


def within(command: Command) -> str:
    """The line for a subshell of a POSIX sh that runs already, not below `if`: a script needs no
    other shell, whose start costs its node 1 ms (2026-11-27)."""
    shell, option, *rest = (*command.arguments, "", "")
    if (shell, option, *rest[1:2]) != _SCRIPT:
        return command.shell()
    return f"set -- {shlex.join(command.arguments[4:])}; eval {shlex.quote(rest[0])}"


def exports(environment: Mapping[str, str | Secret]) -> bytes:
    """Lines `export K='v'` for a shell to read on stdin."""
    pairs = (each.decode("utf-8", "surrogateescape") for each in variables(environment))
    lines = (
        f"export {name}={shlex.quote(value)}\n"
        for name, _, value in (pair.partition("=") for pair in pairs)
    )
    return "".join(lines).encode("utf-8", "surrogateescape")


def variables(environment: Mapping[str, str | Secret]) -> list[bytes]:
    """`K=v` of each variable, for stdin; the only place that reveals a secret."""
    found = []
    for name, value in environment.items():
        if not (name.isascii() and name.isidentifier()):
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
        plain = value.reveal() if isinstance(value, Secret) else value
        if "\0" in plain:
            raise ValueError(f"{name}: a value cannot contain a NUL byte")
        found.append(f"{name}={plain}".encode("utf-8", "surrogateescape"))
    return found


# ── A step of a playbook ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Step:
    """Run `run` unless the check `unless` exits 0; then `unless` must exit 0.

    A step without `unless` runs every time. `stdin` creates the input of `run` for each node.
    `once_per_host`: nodes that share a host take turns, and skip `run` if `unless` passes after
    another's run; nodes that share a home do so with every step. `reboots`: if `unless` still fails
    after `run`, reboot the node and retry both once. `timeout`: seconds without output. `shared`:
    folder that `run` creates, and that a node may get from another one instead; `below`: the folder
    of another step that this one lies over."""

    name: str
    run: Command
    unless: Command | None = None
    stdin: Callable[[], Iterable[bytes]] | None = None
    once_per_host: bool = False
    reboots: bool = False
    timeout: float = 1800.0
    shared: str | None = None
    below: str | None = None


# ── What a command on a node prints, without what the user's own shell prints before it ───────
# sshd runs each command by that shell, which may read `.bashrc` or `.zshenv` first: one `echo`
# there, and every answer begins with it.

_MARK = 'printf %s "$1"; printf %s "$1" >&2; shift\n'
_SCRIPT = ("/bin/sh", "-c", "sh")
MOST = 1 << 20
"""Bytes among which the mark is looked for."""


class AnswerMark:
    """A mark that nobody can guess, before the outputs of one command."""

    def __init__(self) -> None:
        self._token = os.urandom(8).hex()

    def before(self, command: Command) -> Command:
        """The command, which first prints the mark on stdout and stderr. A script does so itself:
        each further shell costs its node 1.2 ms (2026-11-27)."""
        shell, option, *rest = (*command.arguments, "", "")
        if (shell, option, *rest[1:2]) == _SCRIPT:
            return script(_MARK + rest[0], self._token, *command.arguments[4:])
        return script(_MARK + 'exec "$@"', self._token, *command.arguments)

    def strip(self, output: bytes) -> bytes:
        """Output after the mark; all of it if there is none, as the command did not run."""
        _, mark, rest = output.partition(self._token.encode())
        return rest if mark else output

    def stripping(self, take: Callable[[bytes], None]) -> Stripped:
        return Stripped(self, self._token.encode(), take)


class Stripped:
    """Passes on one output from the mark on, or at its `end` if there was none."""

    def __init__(self, mark: AnswerMark, token: bytes, take: Callable[[bytes], None]) -> None:
        self._mark, self._token, self._take = mark, token, take
        self._before: bytes | None = b""

    def __call__(self, data: bytes) -> None:
        if self._before is None:
            self._take(data)
            return
        self._before += data
        if self._token in self._before or len(self._before) > MOST:
            self.end()

    def end(self) -> None:
        if self._before is not None:
            rest, self._before = self._mark.strip(self._before), None
            if rest:
                self._take(rest)
