"""Shows what a command has to say, and asks: lines, JSON, progress, events, confirmations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.options import EVENTS, given_style
from cloudtrain.console import Style, can_draw
from cloudtrain.console.lines import printable, terminal_width, wrapped
from cloudtrain.core.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.console.event_stream import EventStream
    from cloudtrain.console.screen import Screen


def print_lines(
    lines: Iterable[str], *, err: bool = False, painted: Callable[[str], str] | None = None
) -> None:
    """Print lines on stdout, or stderr: whole in a pipe, broken at words on a terminal. `painted`
    adds colours, for a terminal that shows them."""
    stream = sys.stderr if err else sys.stdout
    text = wrapped(printable("\n".join(lines)), terminal_width(stream))
    if painted is not None and can_draw(stream) and not os.environ.get("NO_COLOR"):
        text = painted(text)
    click.echo(text, err=err)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the answer is yes. Raises UsageError without a terminal."""
    if yes:
        return
    if not on_terminal():
        raise UsageError(
            f"confirmation required, but this is not a terminal: {question}",
            hint="pass --yes to confirm",
        )
    click.confirm(question, abort=True, err=True)


def on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def shown(style: Style | None = None) -> Iterator[Screen]:
    """Yield the command's console, by default as its display flags say, and flush it at the end."""
    from cloudtrain.console import console
    from cloudtrain.core.moments import MOMENTS
    from cloudtrain.core.retry import waits_reported_to

    style = style or given_style()
    screen = console(replace(style, json=style.json or events_path() == "-"))
    events = event_stream(screen)
    try:
        heard = events or screen
        with waits_reported_to(heard.say), MOMENTS.said_to(heard.warn):
            yield events or screen
    except BaseException as error:
        if events is not None:
            from cloudtrain.cli.errors import failure_of

            events.flush()
            events.write("end", ok=False, error=failure_of(error))
        raise
    else:
        if events is not None:
            events.flush()
            events.write("end", ok=True)
    finally:
        screen.flush()


def events_path() -> str | None:
    context = click.get_current_context(silent=True)
    return context.meta.get(EVENTS) if context else None


def event_stream(screen: Screen) -> EventStream | None:
    """The stream of `--events`, open to the end of the command; None without the flag. With `-` it
    is stdout, on which nothing else is printed then."""
    path = events_path()
    if path is None:
        return None
    context = click.get_current_context()
    from cloudtrain.console.event_stream import EventStream

    if path != "-":
        try:
            stream = open(path, "a", encoding="utf-8")  # noqa: PTH123, SIM115
        except OSError as error:
            raise click.UsageError(f"--events {path}: {error.strerror}") from None
        return EventStream(screen, context.with_resource(stream))
    if context.params.get("as_json"):
        raise click.UsageError("--events - and --json exclude each other: both print on stdout")
    stdout, sys.stdout = sys.stdout, sys.stderr
    context.call_on_close(lambda: setattr(sys, "stdout", stdout))
    return EventStream(screen, stdout)


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
