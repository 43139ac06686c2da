"""`cloudtrain status`"""

from __future__ import annotations

import os
import sys
import time

import click

from cloudtrain.cli.app import COMMANDS
from cloudtrain.cli.options import debug_option, json_option, name_argument, print_json
from cloudtrain.cli.target import name_of
from cloudtrain.console.lines import printable
from cloudtrain.errors import UsageError
from cloudtrain.verbs.status import report_json, report_text, status

EVERY = 2.0
"""Seconds between two looks of --watch."""

CLEAR = "\x1b[H\x1b[J"


@click.command(
    short_help=COMMANDS["status"], epilog="\b\nExample:\n  cloudtrain status mnist --watch"
)
@name_argument()
@click.option("--watch", is_flag=True, help="Look again every 2 seconds, until Ctrl-C.")
@click.option("--offline", is_flag=True, help="Only what is on record here; ask no provider.")
@json_option
@debug_option
def command(name: str | None, watch: bool, offline: bool, as_json: bool) -> int:
    """Show clusters, their nodes as their provider lists them now, their runs, what they cost so
    far and when they end by themselves.

    Without NAME, all that are known here. Records tell what was done, never what exists.
    """
    chosen = None if name is None else name_of(name)
    if watch:
        if as_json:
            raise UsageError("--watch draws again and again, --json prints one document")
        return watched(chosen, offline)
    report = status(chosen, offline=offline)
    if as_json:
        print_json(report_json(report, time.time()))
    else:
        click.echo(printable(report_text(report, time.time())))
    return report.exit_code


def watched(name: str | None, offline: bool) -> int:
    """Ctrl-C is how it is meant to end."""
    draws = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    try:
        while True:
            text = printable(report_text(status(name, offline=offline), time.time()))
            sys.stdout.write((CLEAR if draws else "") + text + "\n")
            sys.stdout.flush()
            time.sleep(EVERY)
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 0)
