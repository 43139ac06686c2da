"""`cloudtrain forget`"""

from __future__ import annotations

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, json_option, name_argument, print_json, shown
from cloudtrain.state import resolve


@click.command(short_help=COMMANDS["forget"], epilog="\b\nExample:\n  cloudtrain forget mnist")
@name_argument(required=True, known="down")
@click.option("--discard", is_flag=True, help="Also delete artifacts that only this machine holds.")
@json_option
@debug_option
def command(name: str, discard: bool, as_json: bool) -> None:
    """Remove the record of a cluster that is down: its runs, their logs, its events. Refused
    while the cluster is up. Artifacts in a store stay there.
    """
    cluster = resolve(name)
    from cloudtrain.commands.forget import forget

    with shown(as_json=as_json) as screen:
        forget(cluster, discard=discard, console=screen)
    if as_json:
        print_json({"name": cluster})
