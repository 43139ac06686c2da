"""Asks for confirmation before commands that cost money or lose data."""

from __future__ import annotations

import sys

import click

from cloudtrain.core.errors import UsageError


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
