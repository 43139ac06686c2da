"""`cloudtrain ssh-config`"""

from __future__ import annotations

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, json_option, name_argument, print_json
from cloudtrain.cli.target import name_of

EPILOG = """\b
Example:
  cloudtrain ssh-config mnist > ~/.ssh/cloudtrain-mnist
  ssh -F ~/.ssh/cloudtrain-mnist mnist-worker0

With the line `Include cloudtrain-*` at the top of ~/.ssh/config, plain `ssh mnist-worker0` works.
"""


@click.command(short_help=COMMANDS["ssh-config"], epilog=EPILOG)
@name_argument(known="up")
@json_option
@debug_option
def command(name: str | None, as_json: bool) -> None:
    """Print entries for ~/.ssh/config, so that plain ssh, scp, rsync and editors reach the nodes
    by name, with the cluster's key and its pinned host keys.
    """
    cluster = name_of(name)
    from cloudtrain.commands.ssh_config import ssh_config

    text = ssh_config(cluster)
    if as_json:
        print_json({"name": cluster, "ssh_config": text})
        return
    click.echo(text, nl=False)
