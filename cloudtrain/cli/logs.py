"""`cloudtrain logs`"""

from __future__ import annotations

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    debug_option,
    full_log_option,
    name_argument,
    role_option,
    run_option,
    shown,
    store_option,
)
from cloudtrain.cli.target import landed_target


@click.command(
    short_help=COMMANDS["logs"],
    epilog="\b\nExample:\n  cloudtrain logs mnist -f --role worker --tail 20",
)
@name_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow until the run has ended.")
@role_option
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start with the last N lines of each task.",
)
@run_option("Run to show")
@store_option
@full_log_option
@debug_option
def command(
    name: str | None,
    follow: bool,
    roles: tuple[str, ...],
    tail: int | None,
    run_id: str | None,
    store: str | None,
    full_log: bool,
) -> None:
    """Show every task's output, each line prefixed with the task's name. Works after the nodes
    are gone, and on other machines from the store that FILE or --store names.
    """
    cluster, config = landed_target(name, store)
    from cloudtrain.commands.logs import logs

    with shown(as_json=False, full_log=full_log) as screen:
        logs(
            cluster,
            config=config,
            store=store,
            follow=follow,
            roles=roles,
            tail=tail,
            run=run_id,
            console=screen,
        )
