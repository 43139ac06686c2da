"""`cloudtrain ssh`"""

from __future__ import annotations

import os

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.candidates import nodes
from cloudtrain.cli.options import PassThroughCommand, debug_option, name_argument
from cloudtrain.cli.target import name_of
from cloudtrain.core.errors import UsageError


@click.command(
    cls=PassThroughCommand,
    short_help=COMMANDS["ssh"],
    epilog="\b\nExample:\n  cloudtrain ssh mnist worker0\n  cloudtrain ssh mnist chief -- df -h",
)
@name_argument(required=True, known="up")
@click.argument("node", required=False, metavar="[ROLE[INDEX]]", shell_complete=nodes)
@debug_option
@click.pass_context
def command(ctx: click.Context, name: str, node: str | None) -> None:
    """Open a shell on a node (default: the first one), or run the command after `--`. Uses
    OpenSSH's own ssh, with the cluster's key and its pinned host keys.
    """
    cluster = name_of(name)
    from cloudtrain.commands.ssh import shell_command

    arguments = shell_command(cluster, node, ctx.meta["passed_on"])
    try:
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        raise UsageError(
            f"{arguments[0]} is not installed",
            hint="install the OpenSSH client, or use `cloudtrain exec`",
        ) from None
