"""`cloudtrain tensorboard`"""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import landed_target

if TYPE_CHECKING:
    from cloudtrain.commands.tensorboard import ServedRun


@options.command("tensorboard", "cloudtrain tensorboard mnist --open")
@options.name()
@options.run("Run to show")
@options.store
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on 127.0.0.1 (default: a free one).",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@options.as_json
def tensorboard_command(
    name: str | None, run_id: str | None, store: str | None, port: int, opens: bool, as_json: bool
) -> int:
    """Serve TensorBoard on this machine over the event files of the latest run, until Ctrl-C: of a
    running one as they grow on the nodes, of a landed one from its store."""
    cluster, config = landed_target(name, store)
    from cloudtrain.commands.tensorboard import tensorboard

    with shown(as_json=as_json) as screen:

        def on_serving(served: ServedRun) -> None:
            if as_json:
                print_json(asdict(served))
            else:
                live = ", as it goes on" if served.live else ""
                click.echo(f"TensorBoard of run {served.run}{live}: {served.url}  (Ctrl-C ends it)")
            if opens:
                webbrowser.open(served.url)

        try:
            tensorboard(
                cluster,
                config=config,
                store=store,
                run=run_id,
                port=port,
                on_serving=on_serving,
                console=screen,
            )
        except KeyboardInterrupt as interrupt:
            return getattr(interrupt, "exit_code", 0)
    return 0
