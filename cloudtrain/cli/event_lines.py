"""Events of a cluster's journal as lines for people: those that matter to somebody who watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudtrain.core import events
from cloudtrain.core.events import Event, Line


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
    return None if words is None else words.format(**_facts(event))


def _facts(event: Event) -> dict[str, Any]:
    facts = dict(vars(event))
    for name in ("why", "text"):
        facts[name] = str(facts.get(name, "")).partition("\n")[0]
    if "nodes" in facts:
        facts["nodes"] = len(facts["nodes"])
    return facts


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
