"""`cloudtrain idle`: the background process that takes an idle cluster down; not for users."""

from __future__ import annotations

import os
import sys

import click


@click.command(hidden=True)
@click.argument("name")
def command(name: str) -> None:
    """Take the cluster down when no run has used it for `limits.idle`."""
    from cloudtrain.commands.idle import idle
    from cloudtrain.console.plain import PlainConsole

    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        idle(name, console=PlainConsole(err=sys.stderr, out=nowhere))
