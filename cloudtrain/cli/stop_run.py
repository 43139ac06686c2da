"""`cloudtrain stop-run`"""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    debug_option,
    events_option,
    json_option,
    name_argument,
    order_key_option,
    print_json,
    shown,
)
from cloudtrain.cli.target import (
    ClusterTarget,
    desk_target,
    name_of,
    refuse_file_of_another_folder,
)


@click.command(short_help=COMMANDS["stop-run"], epilog="\b\nExample:\n  cloudtrain stop-run mnist")
@name_argument(known="up")
@order_key_option
@events_option
@json_option
@debug_option
def command(name: str | None, order_key: Path | None, as_json: bool) -> None:
    """End the run on every node and land its artifacts. The nodes stay up. A run that is away is
    ended by its controller, with its nodes.
    """
    cluster, config = desk_target(name) or ClusterTarget(name_of(name), None)
    refuse_file_of_another_folder(name)
    from cloudtrain.commands.stop_run import stop_run
    from cloudtrain.core.run_record import published, run_to_json

    with shown(as_json=as_json) as screen:
        run = stop_run(cluster, config=config, order_key=order_key, console=screen)
        screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")
    if as_json:
        print_json(run_to_json(published(run)))
