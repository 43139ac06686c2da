"""Tells what a command on a node prints from what the user's own shell prints before it.

sshd runs each command by that shell, which may read `.bashrc` or `.zshenv` first: one `echo` there,
and every answer begins with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from cloudtrain.core.shell import Command, script

_MARKED = 'printf %s "$1"; printf %s "$1" >&2; shift; exec "$@"'
MOST = 1 << 20
"""Bytes among which the mark is looked for."""


class AnswerMark:
    """A mark that nobody can guess, before the outputs of one command."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)

    def before(self, command: Command) -> Command:
        """Return the command, which first prints the mark on stdout and stderr."""
        return script(_MARKED, self._token, *command.arguments)

    def strip(self, output: bytes) -> bytes:
        """Return what follows the mark; all of it if there is none, as the command did not run."""
        _, mark, rest = output.partition(self._token.encode())
        return rest if mark else output

    def stripping(self, take: Callable[[bytes], None]) -> Stripped:
        return Stripped(self, self._token.encode(), take)


class Stripped:
    """Passes on one output from the mark on, however its bytes are cut. `end` passes on what came
    without a mark.
    """

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
