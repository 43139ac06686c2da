"""`cloudtrain attend`: the background process that supervises a detached run; not for users."""

from __future__ import annotations

import os
import sys

import click


@click.command(hidden=True)
@click.argument("name")
def command(name: str) -> int:
    """Supervise the active run to its end, as `train` would have. Its logs are on disk already."""
    from cloudtrain.commands.attend import attend
    from cloudtrain.console.plain import PlainConsole

    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        run = attend(name, console=PlainConsole(err=sys.stderr, out=nowhere))
    return run.exit_code or 0 if run is not None else 0
