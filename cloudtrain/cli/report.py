"""`cloudtrain report`"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    debug_option,
    json_option,
    name_argument,
    print_json,
    run_option,
    store_option,
)
from cloudtrain.cli.target import landed_target
from cloudtrain.errors import UsageError


@click.command(
    short_help=COMMANDS["report"], epilog="\b\nExample:\n  cloudtrain report mnist --open"
)
@name_argument()
@run_option("Run to report on")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write (default: NAME-RUN.html).",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@store_option
@json_option
@debug_option
def command(
    name: str | None,
    run_id: str | None,
    output: Path | None,
    opens: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Write one HTML page about a run: verdict and cause, timeline, curves, utilization, cost,
    artifacts and logs. Works while it runs, afterwards, and on other machines with a FILE or
    --store.
    """
    if opens and as_json and output is None:
        raise click.UsageError("--open requires a page: with --json, add --output FILE")
    cluster, config = landed_target(name, store)
    from cloudtrain.commands.report import report
    from cloudtrain.report.landed import to_json
    from cloudtrain.report.page import page

    found = report(cluster, config=config, store=store, run=run_id)
    path = output if output is not None or as_json else Path(f"{cluster}-{found.run.id}.html")
    if path is not None:
        write(path, page(found))
    if as_json:
        print_json(to_json(found))
    elif path is not None:
        click.echo(f"{path}: {found.verdict}")
    if opens and path is not None:
        click.launch(path.absolute().as_uri())


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
