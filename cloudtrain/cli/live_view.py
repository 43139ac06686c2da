"""`status --watch`: one screen on a terminal, however large the cluster; else a line per change."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from cloudtrain.checks.node_notes import without_end
from cloudtrain.cli.nodes import NO_END
from cloudtrain.cli.printing import print_lines
from cloudtrain.cli.status import (
    cluster_state,
    cost_so_far,
    desk_lines,
    failure_lines,
    open_first,
    progress_line,
    report_text,
    role_figures,
    still_line,
)
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

NAMED = 5
"""Nodes, or failures, that are shown one by one; the others are counted."""

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
    yield "  ".join(filter(None, [cluster.name, cluster.provider, cluster.strategy]))
    yield f"  {cluster_state(cluster)}"
    if cluster.away is not None:
        yield from (f"  {line}" for line in desk_lines(cluster.away, now))
    billed = "  ·  ".join(money(cluster, now))
    if billed:
        yield f"  {billed}"
    yield from run_lines(cluster, now)
    yield from role_lines(cluster)
    if cluster.utilization is not None:
        yield from (f"  ! {note}" for note in cluster.utilization.notes)
    yield from (f"  ! {line}" for line in exceptions(cluster))
    for moment, text in told_events(Records(cluster.name).events())[-EVENTS:]:
        yield f"  {time.strftime('%H:%M:%S', time.localtime(moment))}  {text}"


def money(cluster: ClusterStatus, now: float) -> Iterator[str]:
    """$/hour, $ so far, and how long the cluster lives."""
    so_far = cost_so_far(cluster, now)
    prices = [price for price in cluster.prices.values() if price is not None]
    if so_far is not None and len(prices) == len(cluster.nodes or ()):
        yield f"{sum(prices):.2f} $/h"
    if so_far is not None:
        yield f"cost so far {so_far}"
    if cluster.budget is not None:
        yield f"budget {cluster.budget}"
    if cluster.ends is not None:
        left = cluster.ends - now
        yield f"expires in {duration(left)}" if left > 0 else "expired"
    if cluster.idle is not None and cluster.idle.due is not None:
        yield f"idle: goes down in {duration(max(0.0, cluster.idle.due - now))}"


def run_lines(cluster: ClusterStatus, now: float) -> Iterator[str]:
    if not cluster.runs:
        return
    run = cluster.runs[-1]
    words = ["run", run.id, run.state]
    if run.attempts:
        words.append(f"attempt {run.attempts[-1].number}")
    words.append(duration((run.ended or now) - run.created))
    if run.ended is None and cluster.deadline is not None:
        words.append(f"deadline in {duration(max(0.0, cluster.deadline - now))}")
    yield f"  {'  '.join(words)}"
    if cluster.progress is not None:
        yield f"    {progress_line(cluster.progress)}"
    if cluster.still is not None:
        yield f"    {still_line(cluster.still, now)}"
    yield from (f"    {line}" for line in list(failure_lines(run))[:NAMED])


def role_lines(cluster: ClusterStatus) -> Iterator[str]:
    """` worker  127 running  GPU 91 % (worker33 12 %)  CPU 34 %` for each role."""
    figures = {}
    if cluster.utilization is not None:
        figures = {role.role: role_figures(role) for role in cluster.utilization.roles}
    counts = {}
    for role, nodes in groupby(cluster.nodes or (), key=lambda node: node.role):
        states = Counter(node.state for node in nodes).most_common()
        counts[role] = ", ".join(f"{count} {state}" for state, count in states)
    for role in dict.fromkeys([*counts, *figures]):
        yield f"  {role:10}{'  '.join(filter(None, [counts.get(role), figures.get(role)]))}"


def exceptions(cluster: ClusterStatus) -> Iterator[str]:
    """Nodes that do not run or have a fault, by name, and why the nodes are not known."""
    if cluster.error is not None:
        yield f"nodes unknown: {cluster.error.message}".partition("\n")[0]
    for node in without_end(cluster.nodes or (), moments.now())[:NAMED]:
        yield f"{node.task}: {NO_END}: {node.no_end}"
    odd = [
        f"{node.task} {node.state}{': ' + node.fault if node.fault else ''}".partition("\n")[0]
        for node in cluster.nodes or ()
        if node.state != "running" or node.fault
    ]
    yield from odd[:NAMED]
    if len(odd) > NAMED:
        yield f"{len(odd) - NAMED} more nodes like these"
    yield from (f"unreadable: {fault}" for fault in cluster.faults[:NAMED])


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
        facts += exceptions(cluster)
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
