"""Console output: live bars on a terminal, plain timed lines elsewhere."""

from __future__ import annotations

import os
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TextIO

from cloudtrain.core.dataclass import dataclass

if TYPE_CHECKING:
    from cloudtrain.console.screen import Screen

__all__ = ["Style", "can_draw", "console"]


def flag(default: bool, on: Literal["progress", "log"], help: str) -> Any:
    """A field of `Style` that a flag switches. `on`: the commands that have it, all that show
    progress, or only those that show a run's log too."""
    return field(default=default, metadata={"on": on, "help": help})


@dataclass(frozen=True, kw_only=True)
class Style:
    """Display flags of a command: a field for each, of its name, by `flag`. A command without a
    flag has its default. Both consoles hold it as `style`."""

    json: bool = False
    """Stdout is for one document alone; task output goes to stderr too."""
    full_log: bool = flag(
        True,
        "log",
        "Show TensorFlow's log about itself on a terminal too, and each task's line of those that "
        "many print alike; files and pipes always have both.",
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
