"""`cloudtrain status`"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import (
    debug_option,
    json_option,
    name_argument,
    print_json,
    store_option,
)
from cloudtrain.cli.target import landed_target, name_of
from cloudtrain.console.lines import printable
from cloudtrain.errors import UsageError
from cloudtrain.verbs.status import StatusReport, report_json, report_text, status

if TYPE_CHECKING:
    from cloudtrain.model import ClusterConfig

EVERY = 2.0
"""Seconds between two looks of --watch."""

CLEAR = "\x1b[H\x1b[J"


@click.command(
    short_help=COMMANDS["status"], epilog="\b\nExample:\n  cloudtrain status mnist --watch"
)
@name_argument()
@click.option("--watch", is_flag=True, help="Look again every 2 seconds, until Ctrl-C.")
@click.option("--offline", is_flag=True, help="Only what is on record here; ask no provider.")
@store_option
@json_option
@debug_option
def command(name: str | None, watch: bool, offline: bool, store: str | None, as_json: bool) -> int:
    """Show clusters, their nodes as their provider lists them now, their runs, what they cost so
    far and when they end by themselves.

    Without NAME, all that are known here. Records tell what was done, never what exists. Of a
    FILE's cluster that is not on record here, and with --store, runs are shown as they landed.
    """
    if offline and store is not None:
        raise UsageError("--store asks the store", hint="leave --offline out")
    chosen: str | None = None
    config: ClusterConfig | None = None
    if name is not None:
        chosen, config = (name_of(name), None) if offline else landed_target(name, store)

    def look() -> StatusReport:
        return status(chosen, config=config, store=store, offline=offline)

    if watch:
        if as_json:
            raise UsageError("--watch draws again and again, --json prints one document")
        return watched(look)
    report = look()
    if as_json:
        print_json(report_json(report, time.time()))
    else:
        click.echo(printable(report_text(report, time.time())))
    return report.exit_code(time.time())


def watched(look: Callable[[], StatusReport]) -> int:
    """Ctrl-C is how it is meant to end."""
    draws = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    try:
        while True:
            text = printable(report_text(look(), time.time()))
            sys.stdout.write((CLEAR if draws else "") + text + "\n")
            sys.stdout.flush()
            time.sleep(EVERY)
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 0)
