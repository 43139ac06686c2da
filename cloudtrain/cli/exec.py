"""`cloudtrain exec`"""

from __future__ import annotations

import shlex

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    PassThroughCommand,
    debug_option,
    json_option,
    name_argument,
    print_json,
    role_option,
    shown,
)
from cloudtrain.cli.target import name_of
from cloudtrain.core.errors import UsageError

EXAMPLE = "cloudtrain exec mnist --role worker -- df -h"


@click.command(
    cls=PassThroughCommand, short_help=COMMANDS["exec"], epilog=f"\b\nExample:\n  {EXAMPLE}"
)
@name_argument(required=True, known="up")
@click.argument("first", nargs=-1, metavar="")
@role_option
@json_option
@debug_option
@click.pass_context
def command(
    ctx: click.Context, name: str, first: tuple[str, ...], roles: tuple[str, ...], as_json: bool
) -> int:
    """Run a command on the nodes in parallel, each word passed as written, without a shell. The
    exit code is the highest of all nodes, and not 0 if a node was skipped.
    """
    words = (*first, *ctx.meta["passed_on"])
    if not words:
        raise UsageError("no command given", hint=f"for example: {EXAMPLE}")
    if len(words) == 1 and len(words[0].split()) > 1:
        line = f"`cloudtrain exec {name} -- sh -c {shlex.quote(words[0])}`"
        raise UsageError(
            "the quoted line is one word, so it would be a program's name",
            hint=f"for a shell: {line}; without one, leave out the quotes",
        )
    cluster = name_of(name)
    from cloudtrain.commands.execute import execute
    from cloudtrain.console.quiet import CollectingConsole

    with shown(as_json=as_json) as screen:
        console = CollectingConsole(screen) if as_json else screen
        done = execute(cluster, roles=roles, command=words, console=console)
    if isinstance(console, CollectingConsole):
        nodes = [
            {"task": task, "exit_code": code, "output": console.texts.get(task, "")}
            for task, code in done.exit_codes.items()
        ]
        document = {"name": cluster, "nodes": nodes, "skipped": list(done.skipped)}
        print_json({**document, "exit_code": done.exit_code})
    return done.exit_code
