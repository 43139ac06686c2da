"""`cloudtrain logs`"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from cloudtrain.cli import options
from cloudtrain.cli.printing import shown
from cloudtrain.cli.target import landed_target
from cloudtrain.core import moments

if TYPE_CHECKING:
    from cloudtrain.console.screen import Screen
    from cloudtrain.runs.tail import LogLine

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _since(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Unix time of `10m` ago, or of a date and time, which is local without an offset."""
    if value is None:
        return None
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
    if ago:
        return moments.now() - float(ago[1]) * SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither a duration such as 10m nor a time such as 2026-11-23T13:30"
        ) from None


def _pattern(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from None


@options.command(
    "logs",
    "cloudtrain logs mnist -f --role worker --tail 20",
    "cloudtrain logs mnist --since 10m --grep 'loss|Error'",
)
@options.name()
@click.option("-f", "--follow", is_flag=True, help="Follow until the run has ended.")
@options.role
@options.option("--tail N", "Start with the last N lines of each task.", type=click.IntRange(min=0))
@options.option("--since TIME", "Only lines since 10m ago, or since a time.", callback=_since)
@options.option(
    "--grep RE",
    "Only lines in which this regular expression is found.",
    name="pattern",
    callback=_pattern,
)
@options.option("--timestamps", "Show when each line arrived.")
@options.run("Run to show")
@options.store
@options.shows("log")
@options.json("Print one JSON object for each line.")
def logs_command(
    name: str | None,
    follow: bool,
    roles: tuple[str, ...],
    tail: int | None,
    since: float | None,
    pattern: re.Pattern[str] | None,
    timestamps: bool,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Show every task's output, each line prefixed with the task's name. Works after the nodes
    are gone, and on other machines from the store that FILE or --store names. A run that is away is
    followed through its store, and ends with its exit code."""
    cluster, config = landed_target(name, store)
    from cloudtrain.cli.live_view import run_panel
    from cloudtrain.commands.logs import logs
    from cloudtrain.runs.tail import LineView

    by_line = as_json or timestamps or pattern is not None or since is not None
    panel = run_panel(cluster) if follow and not by_line else list
    style = options.given_style()
    style = replace(style, full_log=style.full_log or by_line, skips=follow)
    with shown(style) as screen, screen.below(panel):
        view: LineView | None = None
        if by_line:
            show = partial(show_line, screen, as_json=as_json, timestamps=timestamps)
            view = LineView(screen, show, since=since, pattern=pattern)
        code = logs(
            cluster,
            config=config,
            store=store,
            follow=follow,
            roles=roles,
            tail=tail,
            run=run_id,
            view=view,
            console=screen,
        )
        if view is not None:
            view.flush()
    return code


def show_line(screen: Screen, line: LogLine, *, as_json: bool, timestamps: bool) -> None:
    if as_json:  # at once
        document = {"task": line.task, "time": line.time, "line": line.text}
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()
        return
    text = f"{stamp(line.time)} {line.text}" if timestamps else line.text
    screen.task_output(line.task, f"{text}\n".encode("utf-8", "replace"))


def stamp(time: float | None) -> str:
    """Local time with its offset, of one width; a dash if it is not known."""
    if time is None:
        return f"{'-':25}"
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")
