"""`cloudtrain report`"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import print_json
from cloudtrain.cli.target import landed_target
from cloudtrain.core.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.report.facts import Report

AGAIN_AFTER = 30.0
"""Seconds between two pages of a run that goes on."""


@options.command("report", "cloudtrain report mnist --open")
@options.name()
@options.run("Run to report on")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write (default: NAME-RUN.html).",
)
@click.option(
    "--watch", is_flag=True, help="Write it again every 30 seconds until the run has ended."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
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
