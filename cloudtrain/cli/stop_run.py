"""`cloudtrain stop-run`"""

from __future__ import annotations

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    debug_option,
    events_option,
    json_option,
    name_argument,
    print_json,
    shown,
)
from cloudtrain.cli.target import name_of, refuse_file_of_another_folder


@click.command(short_help=COMMANDS["stop-run"], epilog="\b\nExample:\n  cloudtrain stop-run mnist")
@name_argument(known="up")
@events_option
@json_option
@debug_option
def command(name: str | None, as_json: bool) -> None:
    """End the run on every node and land its artifacts. The nodes stay up."""
    cluster = name_of(name)
    refuse_file_of_another_folder(name)
    from cloudtrain.commands.stop_run import stop_run
    from cloudtrain.run_record import run_to_json

    with shown(as_json=as_json) as screen:
        run = stop_run(cluster, console=screen)
        screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")
    if as_json:
        print_json(run_to_json(run))
