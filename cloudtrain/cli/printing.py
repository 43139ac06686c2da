"""Prints what a command has to say: whole lines in a pipe, broken at words on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

import click

from cloudtrain.console.lines import printable
from cloudtrain.console.wrapping import terminal_width, wrapped


def print_lines(
    lines: Iterable[str], *, err: bool = False, painted: Callable[[str], str] | None = None
) -> None:
    """Print lines on stdout, or stderr. `painted` adds colours, for a terminal that shows them."""
    stream = sys.stderr if err else sys.stdout
    text = wrapped(printable("\n".join(lines)), terminal_width(stream))
    click.echo(painted(text) if painted is not None and _shows_colours(stream) else text, err=err)


def _shows_colours(stream: TextIO) -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb")
    return stream.isatty() and not plain
