"""`cloudtrain fetch`"""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.cli import options
from cloudtrain.cli.options import is_yaml
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import landed_target
from cloudtrain.core.errors import UsageError


@options.command("fetch", "cloudtrain fetch mnist results")
@options.name()
@click.argument("folder", required=False, metavar="[DIR]")
@click.option(
    "--from-nodes",
    is_flag=True,
    help="Copy what has not landed, from the nodes that `down` has kept.",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace files in DIR that no earlier fetch wrote, too."
)
@options.run("Run to download")
@options.store
@options.events
@options.as_json
def fetch_command(
    name: str | None,
    folder: str | None,
    from_nodes: bool,
    overwrite: bool,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Download the latest run's artifacts from the store into DIR (default: a folder named after
    the cluster) and verify their checksums. Works on any machine, with a FILE or --store."""
    if name is not None and folder is None and "/" in name and not is_yaml(name):
        # `results/` names a folder: no cluster's name has a slash
        name, folder = None, name
    if from_nodes and (store or run_id):
        raise UsageError("--from-nodes takes every run that has not landed: no --run, no --store")
    cluster, config = landed_target(name, store)
    place = Path(folder or cluster)
    from cloudtrain.commands.fetch import fetch, fetch_from_nodes

    if from_nodes:
        with shown(as_json=as_json) as screen:
            runs = fetch_from_nodes(cluster, place, console=screen)
            screen.say(f"copied to {place}: {', '.join(runs)}" if runs else "everything has landed")
        if as_json:
            print_json({"name": cluster, "runs": runs, "folder": str(place.absolute())})
        return
    with shown(as_json=as_json) as screen:
        landed = fetch(
            cluster,
            place,
            config=config,
            store=store,
            run=run_id,
            overwrite=overwrite,
            console=screen,
        )
    if as_json:
        print_json({"name": cluster, "run": landed.run, "folder": str(place.absolute())})
