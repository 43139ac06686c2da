"""Questions before what costs money or loses data; none where nobody could answer."""

from __future__ import annotations

import sys

import click

from cloudtrain.errors import UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Returns when the answer is yes. Raises UsageError where there is no terminal to ask on."""
    if yes:
        return
    if not on_terminal():
        raise UsageError(
            f"{question} Nobody is here to answer", hint="--yes says yes without the question"
        )
    click.confirm(question, abort=True, err=True)


def on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
