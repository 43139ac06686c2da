"""`cloudtrain completion`"""

from __future__ import annotations

import os

import click

from cloudtrain.cli.app import COMMANDS, cli
from cloudtrain.cli.options import debug_option

INSTALL = {
    "bash": "cloudtrain completion bash > ~/.local/share/bash-completion/completions/cloudtrain",
    "zsh": "cloudtrain completion zsh > ~/.zfunc/_cloudtrain  (with ~/.zfunc in fpath)",
    "fish": "cloudtrain completion fish > ~/.config/fish/completions/cloudtrain.fish",
}


@click.command(
    short_help=COMMANDS["completion"],
    epilog="\b\nInstall:\n" + "".join(f"  {line}\n" for line in INSTALL.values()),
)
@click.argument("shell", type=click.Choice(list(INSTALL)), required=False, metavar="[SHELL]")
@debug_option
def command(shell: str | None) -> None:
    """Print the script that completes commands, flags, cluster names and files in your shell
    (default: the one in $SHELL).
    """
    from click.shell_completion import get_completion_class

    shell = shell or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119
    kind = get_completion_class(shell) if shell in INSTALL else None
    if kind is None:
        raise click.UsageError(f"specify a shell: {', '.join(INSTALL)}")
    words = kind(cli, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE")
    click.echo(words.source_template % words.source_vars())
    click.echo(f"# To install: {INSTALL[shell]}")
