"""`cloudtrain exec`"""

from __future__ import annotations

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    PassThroughCommand,
    debug_option,
    name_argument,
    role_option,
    shown,
)
from cloudtrain.cli.target import name_of
from cloudtrain.errors import UsageError

EXAMPLE = "cloudtrain exec mnist --role worker -- df -h"


@click.command(
    cls=PassThroughCommand, short_help=COMMANDS["exec"], epilog=f"\b\nExample:\n  {EXAMPLE}"
)
@name_argument(required=True, known="up")
@click.argument("first", nargs=-1, metavar="")
@role_option
@debug_option
@click.pass_context
def command(ctx: click.Context, name: str, first: tuple[str, ...], roles: tuple[str, ...]) -> int:
    """Run a command on the nodes in parallel, each word passed as written, without a shell. The
    exit code is the highest of all nodes, and not 0 if a node was skipped.
    """
    words = (*first, *ctx.meta["passed_on"])
    if not words:
        raise UsageError("no command given", hint=f"for example: {EXAMPLE}")
    cluster = name_of(name)
    from cloudtrain.commands.execute import execute

    with shown(as_json=False) as screen:
        return execute(cluster, roles=roles, command=words, console=screen)
