"""`status --watch`: one screen on a terminal, however large the cluster; else a line per change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cloudtrain.cli.printing import print_lines
from cloudtrain.cli.run_lines import progress_line, role_figures
from cloudtrain.cli.status import open_first, report_text
from cloudtrain.cli.status_rows import cluster_state, drawn
from cloudtrain.commands.cost import cost
from cloudtrain.commands.status import ClusterStatus, StatusReport
from cloudtrain.console import can_draw
from cloudtrain.console.times import duration
from cloudtrain.core import events, moments
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import Event, Line
from cloudtrain.core.retry import Retry, poll_until
from cloudtrain.runs.run_progress import progress_of, utilization_of
from cloudtrain.state import Records

EVENTS = 3
"""Latest events shown."""

PROGRESS_EVERY = 60.0
"""Seconds between two lines about a run's progress, without a terminal."""

EVERY = 2.0
"""Seconds between two looks."""


def watch_status(look: Callable[[], StatusReport]) -> int:
    """Show the status until Ctrl-C, which is its normal end; returns the exit code."""
    try:
        (draw if can_draw(sys.stdout) else print_changes)(look)
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 0)
    return 0


def draw(look: Callable[[], StatusReport]) -> None:
    """Draw on the terminal's alternate screen, and leave the last state on the other."""
    from cloudtrain.console.terminal import full_screen

    report = look()

    def again() -> None:
        nonlocal report
        report = look()

    try:
        with full_screen(lambda height: screen(report, moments.now(), height)):
            poll_until(again, Retry(pause=EVERY))
    finally:
        print_lines([report_text(report, moments.now())])


def print_changes(look: Callable[[], StatusReport]) -> None:
    """Print the whole state, then a line for each change."""
    report, changes = look(), Changes()
    print_lines([report_text(report, moments.now())])
    changes.of(report, moments.now())

    def again() -> None:
        for line in changes.of(look(), moments.now()):
            print_lines([line])

    poll_until(again, Retry(pause=EVERY))


# ── a screen ─────────────────────────────────────────────────────────────────


def screen(report: StatusReport, now: float, height: int) -> list[str]:
    """The lines of one screen, at most `height`; the terminal crops each to its width."""
    lines: list[str] = []
    for cluster in open_first(report):
        lines += ["", *cluster_lines(cluster, now)] if lines else cluster_lines(cluster, now)
    if not lines:
        lines = ["no known clusters: `cloudtrain up FILE` creates one"]
    room = height - 2
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines: `cloudtrain status`"]
    return [*lines, "", f"{time.strftime('%H:%M:%S', time.localtime(now))}  Ctrl-C ends the view"]


def cluster_lines(cluster: ClusterStatus, now: float) -> Iterator[str]:
    yield from drawn("watch", cluster, now)
    yield from (f"  ! {line}" for line in drawn("alarm", cluster, now))
    for moment, text in told_events(Records(cluster.name).events())[-EVENTS:]:
        yield f"  {time.strftime('%H:%M:%S', time.localtime(moment))}  {text}"


# ── without a terminal ───────────────────────────────────────────────────────


class Changes:
    """Changes since the last look, one line each: for a pipe, which nothing can redraw."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._events: dict[str, int] = {}
        self._progress_at: dict[str, float] = {}

    def of(self, report: StatusReport, now: float) -> list[str]:
        """Lines for this look; all of it counts as known from now on."""
        stamp = time.strftime("%H:%M:%S", time.localtime(now))
        return [
            f"{stamp}  {cluster.name}  {text}"
            for cluster in report.clusters
            for text in self._of(cluster, now)
        ]

    def _of(self, cluster: ClusterStatus, now: float) -> Iterator[str]:
        facts = [cluster_state(cluster)]
        if cluster.away is not None:  # without figures that change with every look
            silent = ", but has not reported for long" if cluster.away.is_silent(now) else ""
            facts.append(f"away: {cluster.away.phase}{silent}")
        facts += drawn("alarm", cluster, now)
        if cluster.utilization is not None:
            facts += [note for note in cluster.utilization.notes if "idle GPU" in note]
        kept = {f"{cluster.name} {text}" for text in facts}
        yield from (text for text in facts if f"{cluster.name} {text}" not in self._told)
        others = {fact for fact in self._told if not fact.startswith(f"{cluster.name} ")}
        self._told = others | kept
        lines = told_events(Records(cluster.name).events())
        first = self._events.get(cluster.name, len(lines))
        yield from (text for _, text in lines[first:])
        self._events[cluster.name] = len(lines)
        since = now - self._progress_at.get(cluster.name, 0.0)
        if cluster.progress is not None and since >= PROGRESS_EVERY:
            self._progress_at[cluster.name] = now
            yield progress_line(cluster.progress)


# ── events of the journal ──────────────────────────────────────────────────────
# Lines for people: those events that matter to somebody who watches.


def told_events(lines: Sequence[Line]) -> list[tuple[float, str]]:
    """Time (Unix) and text of each event that has a text, in order."""
    found = (events.from_line(line) for line in lines)
    return [
        (event.time or 0.0, text)
        for event in found
        if event is not None and (text := told(event)) is not None
    ]


def told(event: Event) -> str | None:
    """None for an event of single nodes or resources: a large cluster has hundreds of them."""
    words = TEXTS.get(type(event))
    if words is None:
        return None
    facts: dict[str, Any] = dict(vars(event))
    for name in ("why", "text"):
        facts[name] = str(facts.get(name, "")).partition("\n")[0]
    if "nodes" in facts:
        facts["nodes"] = len(facts["nodes"])
    return words.format(**facts)


TEXTS: dict[type[Event], str] = {
    events.UpBegun: "up: {nodes} nodes",
    events.UpCompleted: "up: every node is ready",
    events.SpotOrderChosen: "spot: {text}",
    events.PlacementTried: "creating nodes in {placement}",
    events.PlacementRefused: "refused in {placement}: {error} {text}",
    events.CleanupFailed: "a rollback failed: {text}",
    events.RequestDenied: "denied: {text}",
    events.AttemptBegun: "run {run}: starting attempt {attempt}",
    events.AttemptStarted: "run {run}: attempt {attempt} started",
    events.TasksJoined: "run {run}: cluster formed after {after:g} s",
    events.TaskRestartBegun: "run {run}: restarting {task} (attempt {attempt} of its own)",
    events.NothingMoves: "run {run}: nothing moves: {text}",
    events.MovesAgain: "run {run}: moves again",
    events.RunEnded: "run {run}: {state}",
    events.LandingFailed: "run {run}: artifacts not landed: {why}",
    events.RemovalBegun: "deleting {nodes} nodes",
    events.DownBegun: "down: {nodes} nodes",
    events.DownFailed: "not down yet: {why}",
    events.DownOrdered: "down goes on in the background: {why}",
    events.ClusterGone: "down: nothing is left",
}


# ── below a log: lines about an active run, for `train`, `run` and `logs -f` ───


HELD = 2.0
"""Seconds for which the lines hold: they are drawn more often than they can change."""


def run_panel(
    cluster: str, clock: Callable[[], float] = moments.now
) -> Callable[[], Sequence[str]]:
    """Return a function for the lines of now, by what has arrived here; none without an active
    run."""
    until, lines = 0.0, list[str]()

    def current() -> Sequence[str]:
        nonlocal until, lines
        if (now := clock()) >= until:
            until, lines = now + HELD, list(panel_lines(Records(cluster), now))
        return lines

    return current


def panel_lines(records: Records, now: float) -> Iterator[str]:
    try:
        run = records.active_run()
        if run is None or run.state != "running":
            return
        attempt = f"attempt {run.attempts[-1].number}" if run.attempts else "starting"
        words = [f"run {run.id}", attempt, duration(max(0.0, now - run.created))]
        runs = (each for one in cost(records.name, now=now).clusters for each in one.runs)
        spent = next((each.cost for each in runs if each.run == run.id), None)
        words += [str(spent)] if spent is not None and spent.least else []
        yield f"── {'  '.join(words)}"
        progress = progress_of(records, run, now)
        utilization = utilization_of(records, run, now)
    except CloudtrainError:
        return
    if progress is not None:
        yield f"   {progress_line(progress)}"
    if utilization is not None:
        yield from (f"   {role.role:8}{role_figures(role)}" for role in utilization.roles)
        yield from (f"   ! {note}" for note in utilization.notes)
