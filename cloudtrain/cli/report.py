"""`cloudtrain report`, `fetch` and `tensorboard`: what a run has left."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.options import is_yaml
from cloudtrain.cli.printing import print_json, shown
from cloudtrain.cli.target import landed_target
from cloudtrain.core.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.commands.tensorboard import ServedRun
    from cloudtrain.report.facts import Report


AGAIN_AFTER = 30.0
"""Seconds between two pages of a run that goes on."""


@options.command("report", "cloudtrain report mnist --open")
@options.name()
@options.run("Run to report on")
@options.option(
    "--output FILE", "File to write (default: NAME-RUN.html).", type=click.Path(path_type=Path)
)
@options.option("--watch", "Write it again every 30 seconds until the run has ended.")
@options.option("--open", "Open the page in the browser.", name="opens")
@options.store
@options.as_json
def report_command(
    name: str | None,
    run_id: str | None,
    output: Path | None,
    watch: bool,
    opens: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Write one HTML page about a run: verdict and cause, timeline, curves, utilization, cost,
    artifacts and logs. Works while it runs, afterwards, and on other machines with a FILE or
    --store."""
    if opens and as_json and output is None:
        raise click.UsageError("--open requires a page: with --json, add --output FILE")
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    cluster, config = landed_target(name, store)
    from cloudtrain.commands.report import report
    from cloudtrain.core.extras import install_hint
    from cloudtrain.report.chart import missing_library
    from cloudtrain.report.landed import to_json
    from cloudtrain.report.page import page

    found = report(cluster, config=config, store=store, run=run_id)
    path = output if output is not None or as_json else Path(f"{cluster}-{found.run.id}.html")
    if path is not None:
        write(path, page(found, again_after=AGAIN_AFTER if watch and runs(found) else None))
    if as_json:
        print_json(to_json(found))
    elif path is not None:
        click.echo(f"{path}: {found.verdict}")
        if found.charts and missing_library():
            click.echo(f"hint: for curves, {install_hint('report')}", err=True)
    if opens and path is not None:
        click.launch(path.absolute().as_uri())
    if watch and path is not None and runs(found):
        write_again(path, lambda: report(cluster, config=config, store=store, run=found.run.id))


def write_again(path: Path, look: Callable[[], Report]) -> None:
    """Write the page until its run has ended; Ctrl-C ends only this."""
    from cloudtrain.core.retry import Retry, poll_until
    from cloudtrain.report.page import page

    def written() -> bool | None:
        found = look()
        write(path, page(found, again_after=AGAIN_AFTER if runs(found) else None))
        return None if runs(found) else True

    with suppress(KeyboardInterrupt):
        poll_until(written, Retry(pause=AGAIN_AFTER))


def runs(report: Report) -> bool:
    return report.run.ended is None


def write(path: Path, text: str) -> None:
    """Replace the file at once: a browser may have it open."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", hint="pass another --output FILE"
        ) from None


@options.command("fetch", "cloudtrain fetch mnist results")
@options.name()
@click.argument("folder", required=False, metavar="[DIR]")
@options.option("--from-nodes", "Copy what has not landed, from the nodes that `down` has kept.")
@options.option("--overwrite", "Replace files in DIR that no earlier fetch wrote, too.")
@options.run("Run to download")
@options.store
@options.events
@options.shows("progress")
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
        with shown() as screen:
            runs = fetch_from_nodes(cluster, place, console=screen)
            screen.say(f"copied to {place}: {', '.join(runs)}" if runs else "everything has landed")
        if as_json:
            print_json({"name": cluster, "runs": runs, "folder": str(place.absolute())})
        return
    with shown() as screen:
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


@options.command("tensorboard", "cloudtrain tensorboard mnist --open")
@options.name()
@options.run("Run to show")
@options.store
@options.option(
    "--port", "Port on 127.0.0.1 (default: a free one).", type=click.IntRange(0, 65535), default=0
)
@options.option("--open", "Open it in the browser.", name="opens")
@options.shows("progress")
@options.as_json
def tensorboard_command(
    name: str | None, run_id: str | None, store: str | None, port: int, opens: bool, as_json: bool
) -> int:
    """Serve TensorBoard on this machine over the event files of the latest run, until Ctrl-C: of a
    running one as they grow on the nodes, of a landed one from its store."""
    cluster, config = landed_target(name, store)
    from cloudtrain.commands.tensorboard import tensorboard

    with shown() as screen:

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
