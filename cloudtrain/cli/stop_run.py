"""`cloudtrain stop-run`"""

from __future__ import annotations

from pathlib import Path

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import ClusterTarget, desk_target, name_of, refuse_file_of_another_folder


@options.command("stop-run", "cloudtrain stop-run mnist")
@options.name(known="up")
@options.order_key
@options.events
@options.as_json
def stop_run_command(name: str | None, order_key: Path | None, as_json: bool) -> None:
    """End the run on every node and land its artifacts. The nodes stay up. A run that is away is
    ended by its controller, with its nodes."""
    cluster, config = desk_target(name) or ClusterTarget(name_of(name), None)
    refuse_file_of_another_folder(name)
    from cloudtrain.commands.stop_run import stop_run
    from cloudtrain.core.run_record import published, run_to_json

    with shown(as_json=as_json) as screen:
        run = stop_run(cluster, config=config, order_key=order_key, console=screen)
        screen.say(f"run {run.id} {run.state}; artifacts: {run.store or 'none'}")
    if as_json:
        print_json(run_to_json(published(run)))
