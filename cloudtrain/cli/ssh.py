"""`cloudtrain ssh`, `exec`, `ssh-config` and `code`: the nodes, from a shell or an editor."""

from __future__ import annotations

import os
import shlex
import sys

import click

from cloudtrain.cli import candidates, options
from cloudtrain.cli.printing import on_terminal, print_json, shown
from cloudtrain.cli.target import name_of
from cloudtrain.core.errors import UsageError


@options.command(
    "ssh", "cloudtrain ssh mnist worker0", "cloudtrain ssh mnist chief -- df -h", passes_on=True
)
@options.name(required=True, known="up")
@click.argument("node", required=False, metavar="[ROLE[INDEX]]", shell_complete=candidates.nodes)
def ssh_command(name: str, node: str | None) -> None:
    """Open a shell on a node (default: the first one), or run the command after `--`. Uses
    OpenSSH's own ssh, with the cluster's key and its pinned host keys."""
    cluster = name_of(name)
    from cloudtrain.commands.ssh import shell_command

    arguments = shell_command(cluster, node, options.passed_on())
    try:
        os.execvp(arguments[0], arguments)
    except FileNotFoundError:
        raise UsageError(
            f"{arguments[0]} is not installed",
            hint="install the OpenSSH client, or use `cloudtrain exec`",
        ) from None


EXAMPLE = "cloudtrain exec mnist --role worker -- df -h"


@options.command("exec", EXAMPLE, passes_on=True)
@options.name(required=True, known="up")
@click.argument("first", nargs=-1, metavar="")
@options.role
@options.shows("progress")
@options.as_json
def exec_command(name: str, first: tuple[str, ...], roles: tuple[str, ...], as_json: bool) -> int:
    """Run a command on the nodes in parallel, each word passed as written, without a shell. The
    exit code is the highest of all nodes, and not 0 if a node was skipped."""
    words = (*first, *options.passed_on())
    if not words:
        raise UsageError("no command given", hint=f"for example: {EXAMPLE}")
    if len(words) == 1 and len(words[0].split()) > 1:
        line = f"`cloudtrain exec {name} -- sh -c {shlex.quote(words[0])}`"
        raise UsageError(
            "the quoted line is one word, so it would be a program's name",
            hint=f"for a shell: {line}; without one, leave out the quotes",
        )
    cluster = name_of(name)
    from cloudtrain.commands.ssh import execute
    from cloudtrain.console.logging_console import CollectingConsole

    with shown() as screen:
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


CONFIG_EPILOG = """\b
Example:
  cloudtrain ssh-config --install
  ssh mnist-worker0

Without --install: cloudtrain ssh-config mnist > mnist.ssh; ssh -F mnist.ssh mnist-worker0
"""


@options.command("ssh-config", epilog=CONFIG_EPILOG)
@options.name(known="up")
@options.option("--install", "Add one Include line for all clusters to ~/.ssh/config, once.")
@options.as_json
def ssh_config_command(name: str | None, install: bool, as_json: bool) -> None:
    """Print entries for ~/.ssh/config, so that plain ssh, scp, rsync and editors reach the nodes
    by name, with the cluster's key and its pinned host keys."""
    if install:
        if name is not None:
            raise UsageError("--install is for all clusters", hint="leave the name out")
        from cloudtrain.commands.ssh import install_include

        done = install_include()
        if as_json:
            print_json({"file": str(done.file), "line": done.line, "added": done.added})
        else:
            click.echo(f"{done.file}: {'added' if done.added else 'has'} the line: {done.line}")
        return
    cluster = name_of(name)
    from cloudtrain.commands.ssh import ssh_config

    text = ssh_config(cluster)
    if as_json:
        print_json({"name": cluster, "ssh_config": text})
        return
    click.echo(text, nl=False)


@options.command("code", "cloudtrain code mnist", "cloudtrain code mnist worker0 --editor cursor")
@options.name(required=True, known="up")
@click.argument("node", required=False, metavar="[ROLE[INDEX]]", shell_complete=candidates.nodes)
@options.option(
    "--editor PROGRAM", "VS Code's command, or that of an editor made of it.", default="code"
)
@options.as_json
@options.shows("progress")
def code_command(name: str, node: str | None, editor: str, as_json: bool) -> None:
    """Open the work folder of a node's last task (default: the first node) in VS Code, or print
    the command that does, if it is not installed here or this is not a terminal. Needs
    `cloudtrain ssh-config --install`, once."""
    cluster = name_of(name)
    import shutil
    import subprocess

    from cloudtrain.commands.ssh import editor_remote

    with shown() as screen:
        remote = editor_remote(cluster, node, screen)
    command = (editor, *remote.arguments)
    if as_json:
        document = {"name": cluster, "node": remote.node, "folder": remote.folder}
        print_json({**document, "command": list(command), "uri": remote.uri})
    elif on_terminal() and sys.stdout.isatty() and shutil.which(editor):
        subprocess.run(command, check=False)
    else:
        click.echo(shlex.join(command))
