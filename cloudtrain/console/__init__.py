"""Console output: live bars on a terminal, plain timed lines elsewhere."""

from __future__ import annotations

import os
import sys
from dataclasses import field
from typing import TYPE_CHECKING, TextIO

from cloudtrain.core.dataclass import dataclass

if TYPE_CHECKING:
    from cloudtrain.console.screen import Screen

__all__ = ["Style", "can_draw", "console"]


@dataclass(frozen=True, kw_only=True)
class Style:
    """Display flags of a command: a field for each, of its name. `on` of its metadata says which
    commands have it, those that show progress or only those that show a run's `log` too; `help` is
    its text. A command without a flag has its default. Both consoles hold it as `style`."""

    json: bool = False
    """Stdout is for one document alone; task output goes to stderr too."""
    full_log: bool = field(
        default=True,
        metadata={
            "on": "log",
            "help": "Show TensorFlow's log about itself on a terminal too, and each task's line of "
            "those that many print alike; files and pipes always have both.",
        },
    )
    skips: bool = True
    """A terminal leaves out lines that come faster than anybody reads, unless `full_log`."""


def can_draw(stream: TextIO) -> bool:
    """True if the stream is a terminal that can draw lines anew, not only print them."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def console(style: Style) -> Screen:
    """The console of this process: progress on stderr, task output on stdout."""
    out = sys.stderr if style.json else sys.stdout
    if can_draw(sys.stderr):
        from cloudtrain.console.terminal import TerminalConsole

        return TerminalConsole(err=sys.stderr, out=out, style=style)
    from cloudtrain.console.plain import PlainConsole

    return PlainConsole(err=sys.stderr, out=out, style=style)
