"""Table of commands; each one's module is loaded when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from inspect import cleandoc
from typing import Any, NoReturn

import click

from cloudtrain.cli.flag_variables import refuse_variables, wants_json, with_variables
from cloudtrain.cli.process import end
from cloudtrain.core.version import __version__

COMMANDS = {
    "init": "Write a commented config to start from.",
    "import": "Read another tool's file into a config.",
    "gpus": "Show which machines have a GPU, where, and at what price.",
    "check": "Find problems that would stop `up` or `train`.",
    "plan": "Show every planned node, TF_CONFIG and command; offline.",
    "trust": "List what a file does with your rights, and ask once.",
    "up": "Create the cluster and set it up; run again to repair it.",
    "train": "Launch one run and follow it; Ctrl-C detaches.",
    "run": "Up, train, land the artifacts, down; leaves nothing behind.",
    "rehearse": "Run the job on local nodes, and break them under it.",
    "logs": "Show every task's output, even after the nodes are gone.",
    "status": "Show clusters, their nodes and runs.",
    "cost": "Show what was spent, by cluster, run and month.",
    "stop-run": "End the run on every node and land its artifacts.",
    "tensorboard": "Serve TensorBoard over a run, live or landed.",
    "fetch": "Download artifacts from the store and verify them.",
    "report": "Write one HTML page about a run.",
    "ssh": "Open a shell on a node.",
    "exec": "Run a command on the nodes in parallel.",
    "ssh-config": "Print ~/.ssh/config entries for plain ssh, scp and rsync.",
    "code": "Open a node in VS Code, or print the command for it.",
    "down": "Land the artifacts, destroy everything, report leftovers.",
    "forget": "Remove the record of a cluster that is down.",
    "ls": "List clusters; with --cloud, all those in your accounts.",
    "gc": "Delete orphaned clusters in your accounts.",
    "cache": "Show what this machine keeps for later runs; prune it.",
    "docs": "Show a page of the documentation.",
    "completion": "Print the shell completion script.",
}
"""By name, with the line of the help page, in the order of docs/commands.md. Each is in one of
`GROUPS` too, and in `MODULES` if its module has another name."""
GROUPS = {
    "Start": (("init", "check", "plan"), ("import", "gpus", "trust", "docs", "completion")),
    "Run": (("run", "up", "train", "rehearse"), ("stop-run",)),
    "Look": (
        ("status", "logs", "fetch", "report"),
        ("ssh", "tensorboard", "cost", "ls", "exec", "ssh-config", "code"),
    ),
    "Clean up": (("down", "gc"), ("forget", "cache")),
}
"""Every command, by what it is for: those with a line of their own on the help page, which fits 24
lines of 80 columns, and the others."""
MODULES = {
    **dict.fromkeys(("import", "docs", "completion"), "init"),
    **dict.fromkeys(("train", "stop-run"), "run"),
    **dict.fromkeys(("fetch", "tensorboard"), "report"),
    **dict.fromkeys(("exec", "ssh-config", "code"), "ssh"),
    **dict.fromkeys(("ls", "gc"), "accounts"),
    **{"forget": "cache"},
    **dict.fromkeys(("attend", "desk", "idle"), "background"),
}
"""Modules that are not named as their command."""
LINES = frozenset({"logs"})
"""Commands whose --json is one object a line."""
HIDDEN = frozenset({"attend", "desk", "idle"})
"""Background processes, not for users: the supervisor of a detached run, what ends an idle cluster,
and what a desk does (`run --away`)."""

SYNONYMS = {
    "launch": "run",
    "submit": "run",
    "apply": "up",
    "create": "up",
    "start": "up",
    "cancel": "stop-run",
    "kill": "stop-run",
    "stop": "stop-run",
    "queue": "status",
    "ps": "status",
    "list": "ls",
    "show": "status",
    "destroy": "down",
    "delete": "down",
    "terminate": "down",
    "teardown": "down",
    "download": "fetch",
    "validate": "check",
    "tail": "logs",
    "show-gpus": "gpus",
    "offer": "gpus",
}
"""Names that other tools use, for the hint to an unknown command."""

END = "`cloudtrain COMMAND --help`: its flags and an example. Also: --version, --debug"


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises."""
    own = list(arguments)
    flags = own[: own.index("--")] if "--" in own else own
    debug = "--debug" in flags or os.environ.get("CLOUDTRAIN_DEBUG", "0") not in ("", "0")
    try:
        code = invoke(own)
    except BaseException as error:  # noqa: BLE001  (the one place where errors become words)
        from cloudtrain.cli.errors import show

        code = show(error, as_json=as_json(flags), debug=debug, lines=command_of(flags) in LINES)
    return end(code)


def command_of(flags: list[str]) -> str:
    return next((word for word in flags if not word.startswith("-")), "")


def as_json(flags: list[str]) -> bool:
    """True if the command line or a variable asks for JSON."""
    name = command_of(flags)
    command = cli.get_command(click.Context(cli), name) if name in COMMANDS else None
    return wants_json(command, name, flags)


def on_stderr(text: str) -> None:
    """Print the reason for a wait, in commands that show no progress."""
    from cloudtrain.console.lines import printable, quoted

    with suppress(OSError):
        sys.stderr.write(printable(quoted(text) + "\n"))
        sys.stderr.flush()


def invoke(arguments: list[str]) -> int:
    """Invoke the command without click's own `main`, which has other exit codes for a closed
    pipe and Ctrl-C."""
    if instruction := os.environ.get("_CLOUDTRAIN_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE", instruction)
    if arguments[:1] in (["help"], ["version"]):
        arguments = [*arguments[1:], f"--{arguments[0]}"]  # as in git, docker and kubectl
    try:
        with cli.make_context("cloudtrain", arguments) as context:
            return cli.invoke(context) or 0
    except click.exceptions.Exit as ended:
        return ended.exit_code


class LazyGroup(click.Group):
    """Command group whose help and completion come from the table, without loading any command."""

    def main(self, args: Sequence[str] | None = None, **_: Any) -> NoReturn:  # type: ignore[override]
        raise SystemExit(run(args or ()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in HIDDEN:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"cloudtrain.cli.{MODULES.get(cmd_name, name)}")
        command = getattr(module, f"{name}_command")
        assert isinstance(command, click.Command)
        return with_variables(command, cmd_name)

    def get_help(self, ctx: click.Context) -> str:
        lines = [f"Usage: {ctx.command_path} COMMAND [ARGS]...", "", cleandoc(self.help or ""), ""]
        for group, (named, others) in GROUPS.items():
            for number, name in enumerate(named):
                title = "" if number else group
                lines.append(f"{title:8}  {name:8}  {COMMANDS[name]}")
            lines.append(f"{'':8}  {'also':8}  {', '.join(others)}")
        return "\n".join([*lines, END])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in COMMANDS or args[0] in HIDDEN or args[0].startswith("-"):
            name, command, rest = super().resolve_command(ctx, args)
            if command is not None and name is not None and not ctx.resilient_parsing:
                refuse_variables(command, name)
            return name, command, rest
        from difflib import get_close_matches

        from cloudtrain.core.errors import UsageError

        near = [SYNONYMS[args[0]]] if args[0] in SYNONYMS else None
        near = near or get_close_matches(args[0], COMMANDS, n=1)
        hint = (
            f"did you mean `cloudtrain {near[0]}`?"
            if near
            else "`cloudtrain --help` lists the commands"
        )
        raise UsageError(f"unknown command {args[0]!r}", hint=hint)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(c, help=h) for c, h in COMMANDS.items() if c.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="cloudtrain")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train TensorFlow on a cluster described in one YAML file. To begin:
    cloudtrain init local && cloudtrain run local.yaml"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    from cloudtrain.core.retry import waits_reported_to
    from cloudtrain.state.clock import clock_corrected

    ctx.with_resource(waits_reported_to(on_stderr))
    ctx.with_resource(clock_corrected(on_stderr))
