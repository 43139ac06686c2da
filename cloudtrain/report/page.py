"""The page of a report: one HTML file that loads nothing and runs no script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from cloudtrain.console.times import exact_duration
from cloudtrain.core.run_record import RunAttempt, utc
from cloudtrain.money.node_hours import CostSoFar, total
from cloudtrain.report.build import in_words
from cloudtrain.report.chart import charts, missing_library
from cloudtrain.report.facts import LostWork, NodeTimes, Report, TaskUse
from cloudtrain.report.html import Html, element, facts, folded, joined, table, with_code

STYLE = Path(__file__).with_name("page.css")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

SHOWN = 12
"""Rows that are shown at once; the rest is folded."""

KINDS = {
    "create": "created",
    "boot": "booted",
    "setup": "set up",
    "start": "started an attempt",
    "train": "trained",
    "delete": "deletion begun",
}

PHASES = {
    "create": "create",
    "boot": "setup",
    "start": "start",
    "attempt": "train",
    "delete": "delete",
}
"""First word of a phase's name → its kind."""


def page(report: Report, *, again_after: float | None = None) -> str:
    """The whole file. `again_after`: seconds until it is written again, and a browser is to load it
    again; None if it is not."""
    run = report.run
    title = f"Run {run.id} of {run.cluster}: {run.state}"
    head = (
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html(f'<meta http-equiv="refresh" content="{again_after:g}">' if again_after else ""),
        element("title", title),
        element("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    made = f"Written {utc(report.made)} by cloudtrain {report.cloudtrain}."
    if again_after is not None:
        made += f" The run goes on: every {again_after:g} s this page is written and shown again."
    body = (
        element("header", element("h1", title), _verdict(report)),
        element("main", _sections(report)),
        element("footer", element("p", made)),
    )
    document = element("html", element("head", head), element("body", body), lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


def _sections(report: Report) -> Iterator[Html]:
    if report.notes:
        notes = [element("li", with_code(note)) for note in report.notes]
        yield _section("Notes", element("ul", notes))
    if report.run.attempts:
        yield _section("Attempts", _attempts(report))
    yield _section("Timeline", *_timeline(report))
    yield _section("Curves", *_curves(report))
    yield _section("Utilization", *_use(report))
    yield _section("Cost", *_cost(report))
    yield _section("Artifacts", *_artifacts(report))
    yield _section("Origin", *_origin(report))
    yield _section("Logs", *_logs(report))


def _section(title: str, *content: str) -> Html:
    return element("section", element("h2", title), joined(content))


def _verdict(report: Report) -> Html:
    run = report.run
    shown = [element("p", with_code(report.verdict), class_=f"verdict {run.state}")]
    cause = run.attempts[-1].cause if run.attempts else None
    if cause is not None and run.state != "succeeded":
        if cause.hint:
            shown.append(element("p", element("strong", "Hint: "), with_code(cause.hint)))
        if cause.last_lines:
            shown.append(element("pre", "\n".join(cause.last_lines)))
        if cause.collateral:
            shown.append(element("p", f"Failed after it: {', '.join(cause.collateral)}."))
    hints = (doubt.hint for doubt in run.doubts if doubt.hint)
    shown += [element("p", element("strong", "Hint: "), hint) for hint in hints]
    roles = [task.role for task in run.tasks]
    counts = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    cost = "not known" if report.cost is None else str(report.cost)
    limits = (report.config or {}).get("limits")
    budget = limits.get("budget") if isinstance(limits, dict) else None
    rows = {
        "started": utc(run.created),
        "ended": "not yet" if run.ended is None else utc(run.ended),
        "exit code": "none yet" if run.exit_code is None else str(run.exit_code),
        "nodes": f"{len(run.tasks)}: {counts}",
        "cost of the cluster": cost + ("" if budget is None else f" of a budget of {budget:g} $"),
        "artifacts": f"{report.artifacts_count} file{'s' if report.artifacts_count != 1 else ''}, "
        + size(report.artifacts_bytes)
        + (", all landed" if report.complete else " landed so far"),
    }
    return joined([*shown, facts(rows)])


def _attempts(report: Report) -> Html:
    rows = []
    for attempt in report.run.attempts:
        took = exact_duration((attempt.ended or report.made) - attempt.started)
        after = exact_duration(attempt.started - report.run.created)
        formed = "not known" if attempt.formed_after is None else f"{attempt.formed_after:g} s"
        rows.append((str(attempt.number), after, took, formed, with_code(_outcome(attempt))))
    head = ("attempt", "began after", "took", "cluster formed after", "outcome")
    found = table("Attempts of the run", head, rows)
    lost = report.lost
    return found if lost is None else joined([found, element("p", _lost(lost))])


def _lost(lost: LostWork) -> str:
    """`2 restarts: 14 steps again, 7s, 0.02 $; 3m between attempts, 0.04 $.`"""
    texts = [f"{exact_duration(lost.between_seconds)} between attempts{_for(lost.between_cost)}"]
    if lost.repeated is not None:
        seconds = lost.repeated_seconds
        took = "" if seconds is None else f", {exact_duration(seconds)}"
        units = lost.unit if lost.repeated == 1 else f"{lost.unit}s"
        cost = _for(lost.repeated_cost)
        texts.insert(0, f"{lost.repeated} {units} again, by the log{took}{cost}")
    restarts = f"{lost.restarts} restart{'s' if lost.restarts != 1 else ''}"
    return f"{restarts}: {'; '.join(texts)}."


def _for(cost: CostSoFar | None) -> str:
    return "" if cost is None else f", {cost}"


def _outcome(attempt: RunAttempt) -> str:
    alone = [cause.task for cause in attempt.restarted]
    more = f"; restarted alone: {', '.join(alone)}" if alone else ""
    if attempt.cause is not None:
        return in_words(attempt.cause) + more
    if attempt.ended is None:
        return f"running{more}"
    failed = [f"{task} {code}" for task, code in attempt.exits.items() if code]
    return (f"exit codes: {', '.join(failed)}" if failed else "exit code 0") + more


# ── Timeline ─────────────────────────────────────────────────────────────────


def _timeline(report: Report) -> Iterator[Html]:
    if not report.phases:
        yield element("p", "No times are on record.")
        return
    begin = min(phase.begin for phase in report.phases)
    end = max(phase.end for phase in report.phases)
    rows = []
    for phase in report.phases:
        kind = PHASES.get(phase.name.partition(" ")[0], "other")
        where = _place(phase.begin, phase.end, begin, end)
        part = element("span", class_=f"part {kind}", style=where)
        bar = element("div", part, class_="bar", aria_hidden="true")
        share = 100.0 * phase.seconds / (end - begin) if end > begin else 0.0
        after, took = exact_duration(phase.begin - begin), exact_duration(phase.seconds)
        rows.append((phase.name, after, took, joined([bar, f"{share:.0f} %"])))
    of_phases = ("phase", "began after", "took", "share of the time")
    yield table("Phases of the cluster", of_phases, rows)
    causes = {attempt.cause.node for attempt in report.run.attempts if attempt.cause is not None}
    first = sorted(report.nodes, key=lambda node: node.node not in causes)
    nodes = [_node_row(node, begin, end) for node in first]
    head = ("node", "place", "times")
    if nodes:
        yield element(
            "ul",
            [
                element("li", element("span", class_=f"swatch {kind}"), f" {text}")
                for kind, text in KINDS.items()
            ],
            class_="key",
        )
        yield table("Nodes", head, nodes[:SHOWN])
    if nodes[SHOWN:]:
        rest = table("Other nodes", head, nodes[SHOWN:])
        yield folded(f"{len(nodes) - SHOWN} more nodes", rest)


def _node_row(node: NodeTimes, begin: float, end: float) -> tuple[str, str, Html]:
    parts = [
        element(
            "span",
            class_=f"part {each.kind}",
            style=_place(each.begin, each.end, begin, end),
            title=f"{KINDS[each.kind]} {exact_duration(each.end - each.begin)} {each.text}",
        )
        for each in node.segments
    ]
    words = "; ".join(
        f"{each.text or KINDS[each.kind]} {exact_duration(each.end - each.begin)}"
        for each in node.segments
    )
    bar = element("div", parts, class_="bar", aria_hidden="true")
    return node.node, node.place, joined([bar, element("small", words)])


def _place(begin: float, end: float, first: float, last: float) -> str:
    whole = max(last - first, 1e-9)
    left = max(0.0, min(100.0, 100.0 * (begin - first) / whole))
    width = max(0.4, min(100.0 - left, 100.0 * (end - begin) / whole))
    return f"left:{left:.2f}%;width:{width:.2f}%"


# ── Curves and utilization ───────────────────────────────────────────────────


def _curves(report: Report) -> Iterator[Html]:
    if not report.charts:
        yield element(
            "p",
            with_code(
                "No metric was found: neither in landed TensorBoard event files, nor in the log as "
                "`loss: 0.5`."
            ),
        )
        return
    yield element("p", f"From {report.charts_from}. One curve for each attempt.")
    if missing_library():
        yield element(
            "p", "Only tables: the curves need cloudtrain's extra ", element("code", "report"), "."
        )
    yield charts(report.charts)


def _use(report: Report) -> Iterator[Html]:
    if report.use:
        roles = list(dict.fromkeys(use.role for use in report.use))
        rows = [_use_row(role, [u for u in report.use if u.role == role]) for role in roles]
        head = ("role", "CPU", "memory", "GPU", "GPU memory", "GPU idle", "least busy")
        yield table("Means of the last attempt, by role", head, rows)
        yield charts(report.use_over_time)
    else:
        yield element("p", "No samples of the nodes are on record.")
    if report.stragglers:
        yield element("p", "Slower than the others of their role:")
        yield element("ul", [element("li", text) for text in report.stragglers])
    if report.pace:
        rows = [
            (
                p.task,
                f"{p.unit} {p.reached}",
                "not known" if p.seconds is None else f"{p.seconds:.3g} s",
            )
            for p in report.pace
        ]
        yield folded(
            "Time per step or epoch, by task",
            table("By the arrival of each log's lines", ("task", "reached", "each took"), rows),
        )


def _use_row(role: str, uses: Sequence[TaskUse]) -> tuple[str, ...]:
    least = min(uses, key=lambda use: use.cpu if use.gpu is None else use.gpu)
    figures = []
    for name in ("cpu", "memory", "gpu", "gpu_memory", "idle"):
        known = [figure for use in uses if (figure := getattr(use, name)) is not None]
        figures.append(f"{fmean(known):.0f} %" if known else "–")
    busy = least.cpu if least.gpu is None else least.gpu
    return (f"{role} ({len(uses)})", *figures, f"{least.task}: {busy:.0f} %")


# ── Cost, artifacts, origin, logs ────────────────────────────────────────────


def _cost(report: Report) -> Iterator[Html]:
    if report.cost is None:
        yield element("p", "The nodes' prices and times are not on record.")
        return
    names = dict.fromkeys(phase.name for phase in report.phases)
    whole = report.cost.exact
    hours = sum(phase.node_hours for phase in report.phases)
    rows = []
    for name in names:
        of_name = [phase for phase in report.phases if phase.name == name]
        cost = total(phase.cost for phase in of_name)
        spent = sum(phase.node_hours for phase in of_name)
        priced = cost.exact is not None and bool(whole)
        share = (cost.exact or 0.0) / (whole or 1.0) if priced else spent / hours if hours else 0.0
        rows.append((name, str(cost), f"{spent:.2f}", f"{100 * share:.0f} %"))
    rows.append(("all", str(report.cost), f"{hours:.2f}", "100 %"))
    of = "of the $" if whole else "of the node hours"
    yield table("Cost by phase", ("phase", "cost", "node hours", of), rows)
    yield element(
        "p",
        with_code(
            "Computed from the prices agreed at `up` and the hours on record, without traffic and "
            "stores: not the cloud's bill."
        ),
    )


def _artifacts(report: Report) -> Iterator[Html]:
    if report.run.store:
        yield element("p", "In ", element("code", f"{report.run.store}"), ".")
    rows = [(file.path, size(file.size), element("code", file.sha256)) for file in report.artifacts]
    if not rows:
        yield element("p", "Nothing has landed.")
        return
    head = ("file", "size", "SHA-256")
    yield table("Landed files", head, rows[:SHOWN])
    if rows[SHOWN:]:
        yield folded(f"{len(rows) - SHOWN} more files", table("Other files", head, rows[SHOWN:]))
    if report.artifacts_count > len(rows):
        left = report.artifacts_count - len(rows)
        yield element("p", f"{left} more are listed in the run's manifest.json.")


def _origin(report: Report) -> Iterator[Html]:
    yield facts(dict(report.versions))
    lines = {"all": report.run.command, **report.run.commands}
    commands = "\n".join(f"{role}: {line}" for role, line in lines.items() if line)
    yield joined([element("h3", "Command of the tasks"), element("pre", commands)])
    if report.reproduce:
        yield element("h3", "To run it again")
        yield element("pre", "\n".join(report.reproduce))
    if report.config is not None:
        text = json.dumps(report.config, indent=2, ensure_ascii=False)
        yield folded("The resolved config, without secrets", element("pre", text))


def _logs(report: Report) -> Iterator[Html]:
    cause = report.run.attempts[-1].cause if report.run.attempts else None
    for number, tail in enumerate(report.tails):
        title = f"{tail.task}, attempt {tail.attempt}: last {len(tail.lines)} lines"
        text = element("pre", "\n".join(tail.lines) or "(empty)")
        if number == 0 or (cause is not None and cause.task == tail.task):
            yield joined([element("h3", title), text])
        else:
            yield folded(title, text)
    if not report.tails:
        yield element("p", "No log is on record.")


def size(count: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count, units = count / 1000, units[1:]
    return f"{count:.3g} {units[0]}"
