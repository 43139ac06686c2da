"""Facts of a cluster's status: a row of `ROWS` for each, drawn by `status`, its JSON and watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.checks.node_notes import overdue, without_end
from cloudtrain.cli.nodes import NO_END, billing_lines, error_json, node_json, node_lines
from cloudtrain.cli.run_lines import (
    failure_lines,
    progress_line,
    proof_lines,
    role_figures,
    run_lines,
    utilization_lines,
)
from cloudtrain.commands.status import ClusterStatus
from cloudtrain.console.lines import quoted
from cloudtrain.console.times import clock, duration
from cloudtrain.core.codec import View, encode
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import Run, published, run_to_json

if TYPE_CHECKING:
    from cloudtrain.away.published import AwayState
    from cloudtrain.core.errors import CloudtrainError
    from cloudtrain.core.events import NothingMoves
    from cloudtrain.core.model import Node
    from cloudtrain.money.budget import BudgetState
    from cloudtrain.runs.idle import IdleState
    from cloudtrain.runs.run_progress import RunProgress

DOWN = "down"
LATEST = 5
"""Runs shown of each cluster; the JSON has all."""

NAMED = 8
"""Missing nodes that are named; the others are counted."""

WATCHED = 5
"""Nodes, or failures, that the watch shows one by one; the others are counted."""

BUDGET = (
    "limit spent=spent.exact spent_at_least=spent.least spent_at_most=spent.most goes_down=stop end"
)
"""In $ and Unix time; `spent` is null if a price is not known."""

VIEWS: dict[str, View] = {"BudgetState": BUDGET, "NotAsked": str, "NothingMoves": "since text"}

Draw = Callable[[Any, ClusterStatus, float], Iterable[str] | str | None] | str
"""Lines of a field's value, one line or none, at a Unix time; or the form of a line, with `{}` for
the value, or for each value of a tuple."""


@dataclass(frozen=True)
class StatusRow:
    """One fact in each form that it has; it has no lines while the field is empty."""

    field: str
    """Of ClusterStatus."""
    key: str | None = ""
    """Its key in JSON; "": the field's name, None: it has none."""
    json: Callable[[Any, ClusterStatus, float], Any] | None = None
    """What it is in JSON, unless it is None."""
    text: Draw | None = None
    """Lines of `status`."""
    watch: Draw | None = None
    """Lines on the screen of the watch."""
    short: Draw | None = None
    """Parts of the screen's line about money."""
    alarm: Draw | None = None
    """Lines of the watch about what is wrong, also without a screen."""


def drawn(
    form: Literal["text", "watch", "short", "alarm"], status: ClusterStatus, now: float
) -> Iterator[str]:
    for row in ROWS:
        draw: Draw | None = getattr(row, form)
        if draw is None or not (value := getattr(status, row.field)):
            continue
        if isinstance(draw, str):
            values = value if isinstance(value, tuple) else (value,)
            shown = values[:WATCHED] if form == "alarm" else values
            yield from (quoted(draw.format(each)) for each in shown)
            continue
        lines = draw(value, status, now) or ()
        yield from [lines] if isinstance(lines, str) else lines


def cluster_json(status: ClusterStatus, now: float) -> dict[str, Any]:
    document = {}
    for row in ROWS:
        if row.key is not None:
            value = getattr(status, row.field)
            made = row.json(value, status, now) if row.json and value is not None else value
            document[row.key or row.field] = encode(made, VIEWS)
    return document


# ── the cluster and its nodes ────────────────────────────────────────────────


def cluster_state(status: ClusterStatus) -> str:
    since = f", since {clock(status.since)}" if status.since is not None else ""
    if status.open is False and not status.nodes:
        return DOWN
    if status.nodes is None:
        return f"nodes not queried{since}"
    running = sum(node.state == "running" for node in status.nodes)
    all_of = len(status.nodes) + len(status.missing)
    if not status.missing:
        return f"{running} of {all_of} nodes running{since}"
    gone = [name for name in status.missing if name in status.made and name not in status.ended]
    never = [name for name in status.missing if name not in status.made]
    if not status.nodes and not never and gone:
        created = "1 created node is" if len(gone) == 1 else f"{len(gone)} created nodes are"
        return f"{created} gone{since}"
    words = [f"ended by themselves: {_tasks(status, [*status.ended])}"] if status.ended else []
    words += [f"gone: {_tasks(status, gone)}"] if gone else []
    words += [f"not created: {_tasks(status, never)}"] if never else []
    return f"{running} of {all_of} nodes running, {', '.join(words)}{since}"


def _shared_folder(folder: str, status: ClusterStatus, _: float) -> str | None:
    node = status.planned[0] if status.planned and status.nodes else None
    if node in status.missing:
        return f"  shared folder {folder}/ is gone with {node}: what had landed of it comes back"
    return node and f"  shared folder {folder}/ on {node}"


def _tasks(status: ClusterStatus, names: list[str]) -> str:
    return some([name.removeprefix(f"{status.name}-") for name in names], NAMED)


def _joined(*parts: str | None) -> str:
    return "  ".join(filter(None, parts))


def _heading(status: ClusterStatus, *more: str) -> str:
    return _joined(status.name, status.provider, status.strategy, *more)


def _node_rows(nodes: Sequence[Node], status: ClusterStatus, now: float) -> list[dict[str, Any]]:
    prices = status.prices
    return [{**node_json(node, now), "price_per_hour": prices.get(node.name)} for node in nodes]


def _node_alarms(nodes: Sequence[Node], _: ClusterStatus, now: float) -> Iterator[str]:
    """Nodes without an end, that do not run or have a fault, by name."""
    for node in without_end(nodes, now)[:WATCHED]:
        yield f"{node.task}: {NO_END}: {node.no_end}"
    odd = [
        f"{node.task} {node.state}{': ' + node.fault if node.fault else ''}".partition("\n")[0]
        for node in nodes
        if node.state != "running" or node.fault
    ]
    yield from odd[:WATCHED]
    if len(odd) > WATCHED:
        yield f"{len(odd) - WATCHED} more nodes like these"


def _ended(ended: Mapping[str, str], status: ClusterStatus, _: float) -> Iterator[str]:
    for name, text in ended.items():
        yield quoted(f"  {name.removeprefix(f'{status.name}-')} ended itself: {text}")
    yield f"    `cloudtrain down {status.name}` deletes what is left of them"


def _role_lines(_: str, status: ClusterStatus, __: float) -> Iterator[str]:
    """` worker  127 running  GPU 91 % (worker33 12 %)  CPU 34 %` for each role."""
    figures = {}
    if status.utilization is not None:
        figures = {role.role: role_figures(role) for role in status.utilization.roles}
    counts = {}
    for role, nodes in groupby(status.nodes or (), key=lambda node: node.role):
        states = Counter(node.state for node in nodes).most_common()
        counts[role] = ", ".join(f"{count} {state}" for state, count in states)
    for role in dict.fromkeys([*counts, *figures]):
        yield f"  {role:10}{_joined(counts.get(role), figures.get(role))}"


def _error(error: CloudtrainError, *_: object) -> Iterator[str]:
    yield quoted(f"  nodes unknown: {error.message}").replace("\n", "\n    ")
    if error.hint:
        yield f"    hint: {quoted(error.hint)}"


def _desk(state: AwayState, _: ClusterStatus, now: float) -> Iterator[str]:
    """Lines on the last report of the desk of a cluster that is away; fewer if it has ended."""
    from cloudtrain.commands.logs import silence

    ended = state.phase == "ended"
    doing = ": ".join(filter(None, [state.phase, state.text]))
    if ended:
        doing = f"ended, exit code {state.exit_code or 0}"
    age = clock(state.as_of) if ended else f"{duration(max(0.0, now - state.as_of))} ago"
    yield f"  {_joined('away', doing, state.run, f'as of {age}', state.unsigned)}"
    if state.error:
        yield quoted(f"    {state.error}").replace("\n", "\n    ")
    if ended:
        return
    price = None if state.price_per_hour is None else f"{state.price_per_hour:.3g} $/hour"
    expires = None if state.expires is None else f"expires {clock(state.expires)}"
    since = f"since {clock(state.began)}"
    yield f"  {_joined('controller', state.node, state.place, price, since, expires)}"
    if state.is_silent(now):
        yield from _indented(silence(state, now).split("\n"), 2)


# ── money and time ───────────────────────────────────────────────────────────


def _cost(form: str) -> Callable[[Any, ClusterStatus, float], float | None]:
    return lambda _, status, now: getattr(status.cost(now), form, None)


def _so_far(_: object, status: ClusterStatus, now: float, label: str = "  cost so far  ") -> str:
    """Empty if nothing is billed."""
    from cloudtrain.core.cloud import is_cloud

    return f"{label}{status.cost(now)}" if is_cloud(status.provider) else ""


def _cost_parts(nodes: Sequence[Node], status: ClusterStatus, now: float) -> Iterator[str]:
    prices = [price for price in status.prices.values() if price is not None]
    if cost := _so_far(nodes, status, now, "cost so far "):
        yield from [f"{sum(prices):.2f} $/h"] if len(prices) == len(nodes) else ()
        yield cost


def _money(_: str, status: ClusterStatus, now: float) -> str | None:
    parts = "  ·  ".join(drawn("short", status, now))
    return f"  {parts}" if parts else None


def budget_words(budget: BudgetState, ends: float | None, now: float) -> str:
    """`12.30 $ of 50 $ (25 %), goes down at 2026-11-24 18:40, in 3h 10m`."""
    words = [str(budget)]
    if budget.stop is not None and (ends is None or budget.stop < ends):
        words.append(_moment("goes down at ", budget.stop, now))
    elif ends is not None:
        words.append("the nodes expire before it is spent")
    return ", ".join(words)


def _idle(idle: IdleState, _: ClusterStatus, now: float) -> Iterator[str]:
    if idle.due is not None:
        yield _moment("  idle: goes down at  ", idle.due, now)
    if idle.ends is not None:
        yield _moment("    this machine being off, the nodes end themselves at  ", idle.ends, now)
    elif idle.alone is not None:
        yield f"  the nodes end themselves {duration(idle.alone)} after the run, if nobody attends"
    if idle.fault is not None:
        yield f"  not down yet: {idle.fault}".replace("\n", "\n    ")
        if idle.again is not None and idle.again >= now:
            yield _moment("    tried again at ", idle.again, now)


def _moment(label: str, moment: float, now: float) -> str:
    left = f"in {duration(moment - now)}" if moment > now else "now"
    return f"{label}{clock(moment)}, {left}"


# ── runs ─────────────────────────────────────────────────────────────────────


def _runs_json(runs: Sequence[Run], status: ClusterStatus, _: float) -> list[dict[str, Any]]:
    known = status.as_of
    return [
        run_to_json(published(run)) | ({"as_of": known[run.id]} if run.id in known else {})
        for run in runs
    ]


def _runs(runs: Sequence[Run], status: ClusterStatus, now: float) -> Iterator[str]:
    if earlier := status.earlier + len(runs[:-LATEST]):
        yield f"  {earlier} earlier runs"
    for run in runs[-LATEST:]:
        yield from run_lines(run, now, status.as_of.get(run.id))


def _run_line(runs: Sequence[Run], status: ClusterStatus, now: float) -> str:
    run = runs[-1]
    attempt = f"attempt {run.attempts[-1].number}" if run.attempts else None
    took, left = duration((run.ended or now) - run.created), None
    if run.ended is None and status.deadline is not None:
        left = f"deadline in {duration(max(0.0, status.deadline - now))}"
    return f"  {_joined('run', run.id, run.state, attempt, took, left)}"


# ── the rows ─────────────────────────────────────────────────────────────────


def _indented(lines: Iterable[str], by: int = 4) -> Iterator[str]:
    return (f"{' ' * by}{line}" for line in lines)


def _progress(progress: RunProgress, *_: object) -> str:
    return f"    {progress_line(progress)}"


def _still(still: NothingMoves, _: ClusterStatus, now: float) -> str:
    """`nothing has moved for 12m: worker0 waits in fit (train.py:16)`."""
    return f"    nothing has moved for {duration(max(0.0, now - still.since))}: {still.text}"


ROWS = (
    StatusRow(
        "name",
        text=lambda _, status, __: _heading(status, cluster_state(status)),
        watch=lambda _, status, __: (_heading(status), f"  {cluster_state(status)}"),
    ),
    *map(StatusRow, ("provider", "strategy", "open", "since")),
    StatusRow("holder", "at_work", text="  at work: {}"),
    StatusRow(
        "away",
        json=lambda away, _, now: {**encode(away), "silent": away.is_silent(now)},
        text=_desk,
        watch=_desk,
    ),
    StatusRow(
        "is_away",
        None,
        text=lambda _, status, __: None if status.away else "  away: no report of its controller",
    ),
    StatusRow(
        "nodes", json=_node_rows, text=lambda nodes, *_: node_lines(nodes), alarm=_node_alarms
    ),
    StatusRow("planned", json=lambda names, *_: len(names)),
    StatusRow("missing"),
    StatusRow("ended", json=lambda ended, *_: dict(ended), text=_ended),
    StatusRow("foreign", text="  {}"),
    StatusRow("shared", text=_shared_folder),
    StatusRow("lease", json=lambda lease, *_: lease or None, text="  {}"),
    StatusRow("nodes", "cost", json=_cost("exact"), text=_so_far, short=_cost_parts),
    StatusRow("nodes", "cost_at_least", json=_cost("least")),
    StatusRow("nodes", "cost_at_most", json=_cost("most")),
    StatusRow(
        "name",
        "overdue",
        json=lambda _, status, now: [node.name for node in overdue(status.nodes or (), now)],
        text=lambda _, one, now: _indented(billing_lines(one.nodes or (), one.provider, now), 2),
    ),
    StatusRow(
        "still_billed",
        text=lambda cost, status, _: (
            f"  still billed  {cost}, until `cloudtrain down {status.name}`"
        ),
    ),
    StatusRow(
        "budget",
        text=lambda budget, status, now: f"  budget  {budget_words(budget, status.ends, now)}",
        short="budget {}",
    ),
    StatusRow(
        "ends",
        text=lambda ends, _, now: _moment("  expires  ", ends, now) if ends >= now else None,
        short=lambda ends, _, now: (
            f"expires in {duration(ends - now)}" if ends > now else "expired"
        ),
    ),
    StatusRow(
        "idle",
        text=_idle,
        short=lambda idle, _, now: (
            idle.due and f"idle: goes down in {duration(max(0.0, idle.due - now))}"
        ),
    ),
    StatusRow(
        "error",
        json=lambda error, status, now: error_json(error, status.exit_code(now)),
        text=_error,
        alarm=lambda error, *_: f"nodes unknown: {error.message}".partition("\n")[0],
    ),
    StatusRow("name", None, watch=_money),
    StatusRow("runs", json=_runs_json, text=_runs, watch=_run_line),
    StatusRow("deadline", text=lambda deadline, _, now: _moment("    deadline  ", deadline, now)),
    StatusRow("progress", text=_progress, watch=_progress),
    StatusRow("still", text=_still, watch=_still),
    StatusRow(
        "runs", None, watch=lambda runs, *_: _indented(islice(failure_lines(runs[-1]), WATCHED))
    ),
    StatusRow("name", None, watch=_role_lines),
    StatusRow(
        "utilization",
        text=lambda found, *_: _indented(utilization_lines(found)),
        watch=lambda found, *_: (f"  ! {note}" for note in found.notes),
    ),
    StatusRow("runs", None, text=lambda runs, *_: _indented(proof_lines(runs[-1]))),
    StatusRow("store", text="  no local record: these runs landed in {}"),
    StatusRow("faults", "unreadable", text="  unreadable: {}", alarm="unreadable: {}"),
)
