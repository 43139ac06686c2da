"""Console output: live bars on a terminal, plain timed lines elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from cloudtrain.console.screen import Screen

__all__ = ["can_draw", "console"]


def can_draw(stream: TextIO) -> bool:
    """True if the stream is a terminal that can draw lines anew, not only print them."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def console(*, json: bool, full_log: bool = True) -> Screen:
    """The console of this process: progress on stderr, task output on stdout. With `json`, stdout
    is for one document alone, and task output goes to stderr too. Without `full_log`, a terminal
    hides what TensorFlow logs about itself; files and pipes get every line."""
    out = sys.stderr if json else sys.stdout
    if can_draw(sys.stderr):
        from cloudtrain.console.terminal import TerminalConsole

        return TerminalConsole(err=sys.stderr, out=out, full_log=full_log)
    from cloudtrain.console.plain import PlainConsole

    return PlainConsole(err=sys.stderr, out=out)
