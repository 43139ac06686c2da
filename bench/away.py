"""Is anything left, there twice, or lost, if `run --away`'s client or desk is killed at any call,
or if each call of both goes wrong?

    python bench/away.py                                # GCP: every point
    python bench/away.py --cloud aws --minutes 10       # so long
    python bench/away.py --parts 2 --part 0             # half; another process takes --part 1

Run again, it goes on where it ended; bench/away.jsonl has what was done.

A stand-in with booted machines, a store, and whole processes, as root (tests/support/away.py). One
`run --away` of one node without a fault tells the calls that each side makes to the cloud and to
the store; a point is the moment before one of them, and for those that change something also the
moment after. Each point is tried once, with the next of the endings of tests/support/away_sweep.py,
in an order that spreads what is done over the whole run.

The client is killed (SIGKILL); then the same command, `down`, `gc` and `down`, or `down --discard`
or `gc` of a home that knows nothing of it. Of the desk, the process is killed, which is started
again, or its machine stops, or is deleted, with the laptop off; then `status` and `down` or `gc`,
ten minutes later by their clock, with its lease deleted. In the end
nothing may be in the account, and no machine run; a run that goes on must land its result;
what had landed must be there; `down` may not delete a node whose files have not landed with exit
code 0.

And with each of the faults of tests/standins/faults.py that is an answer or a connection that ends,
every call of both to the cloud and to the store goes wrong once, in one run, which must be done as
without it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.standins.faults import FAULTS  # noqa: E402
from tests.support.away_sweep import (  # noqa: E402
    CLIENT_ENDINGS,
    DESK_ENDINGS,
    NotReachedError,
    Point,
    Sweep,
    swept,
)

ROWS = Path(__file__).with_suffix(".jsonl")
NOT_REACHED = "not reached"
ENDINGS = {"client": CLIENT_ENDINGS, "desk": DESK_ENDINGS}
ACTORS = {"client": "client", "desk": "controller"}
"""Words of the table."""
TRIED = tuple(name for name, fault in FAULTS.items() if fault["kind"] != "silence")
"""Faults; a call without an answer ends after a minute, so that a run took hours."""
GOLDEN = 0.6180339887498949


def main() -> None:
    options = _options()
    end = time.time() + options.minutes * 60
    while _work(options, end):  # each failure leaves an account that is not used again
        pass
    rows = list(_read(options.rows).values())
    options.rows.with_suffix(".md").write_text(_report(rows))
    print(_report(rows))
    sys.exit(any(row["why"] not in ("", NOT_REACHED) for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cloud", default="gcp", choices=("gcp", "aws", "azure"))
    parser.add_argument("--parts", type=int, default=1, help="how many processes share the points")
    parser.add_argument("--part", type=int, default=0, help="which of them this one takes, from 0")
    parser.add_argument("--rows", type=Path, default=ROWS, help="of all kills; the table is beside")
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="begins no kill after so many (default: all)"
    )
    return parser.parse_args()


def _read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Kills so far, by the cloud and the number of their point; the last of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(row["cloud"], row["number"]): row for row in map(json.loads, lines)}


def _work(options: argparse.Namespace, end: float) -> bool:
    """True if there is more to do, in a new account."""
    done = _read(options.rows)
    with (
        tempfile.TemporaryDirectory(prefix="away-") as folder,
        swept(options.cloud, Path(folder)) as sweep,
    ):
        points = _points(options.rows.with_suffix(f".{options.cloud}.json"), sweep)
        for number, point, what in _trials(points):
            if number % options.parts != options.part or (options.cloud, number) in done:
                continue
            if time.time() > end:
                return False
            began, (why, wrong) = time.time(), _try(sweep, point, what)
            row = {"cloud": options.cloud, "number": number, "actor": point and point.actor}
            row |= {"point": str(point), "ending": what, "why": why, "points": len(points)}
            row |= {"wrong": wrong}
            changes = sum(each.changes(points) for each in points)
            row |= {"changes": changes, "is_change": point is not None and point.changes(points)}
            row |= {"seconds": round(time.time() - began, 1)}
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if why not in ("", NOT_REACHED):
                print(f"{number}: {point}, {what}: {why}", file=sys.stderr, flush=True)
                return True
    return False


def _points(path: Path, sweep: Sweep) -> list[Point]:
    """The points that all processes share."""
    if not path.exists():
        _write_first(path, json.dumps([asdict(point) for point in sweep.points()]))
    return [Point(**point) for point in json.loads(path.read_text())]


def _write_first(path: Path, text: str) -> None:
    """Unless another process has: what each counts differs."""
    mine = path.with_suffix(f".{os.getpid()}")
    mine.write_text(text)
    with suppress(FileExistsError):
        path.hardlink_to(mine)
    mine.unlink()


def _trials(points: list[Point]) -> Iterator[tuple[int, Point | None, str]]:
    """Each point with its ending, and each fault without a point: first the changes of both sides,
    then the faults, then what only asks.
    """
    begun: Counter[str] = Counter()
    in_turn = sorted(enumerate(points), key=lambda item: (item[0] + 1) * GOLDEN % 1)
    for has_no_effect in (False, True):
        for number, point in in_turn:
            if point.changes(points) != has_no_effect:
                endings = ENDINGS[point.actor]
                yield number, point, endings[begun[point.actor] % len(endings)]
                begun[point.actor] += 1
        if not has_no_effect:
            for number, fault in enumerate(TRIED, len(points)):
                yield number, None, fault


def _try(sweep: Sweep, point: Point | None, what: str) -> tuple[str, tuple[int, int]]:
    """What went wrong, "" if nothing did; and how many calls to the cloud and to the store were
    made to. `what`: the ending; without a point the fault.
    """
    wrong = 0, 0
    try:
        if point is None:
            wrong = sweep.fault_trial(what)
        elif point.actor == "client":
            sweep.client_trial(point, what)
        else:
            sweep.desk_trial(point, what)
    except NotReachedError:
        return NOT_REACHED, wrong
    except AssertionError as error:
        return str(error)[-6000:] or "assertion", wrong
    return "", wrong


def _report(rows: list[dict[str, Any]]) -> str:
    faulty = [row for row in rows if not row["actor"]]
    rows = [row for row in rows if row["actor"]]
    killed = [row for row in rows if row["why"] != NOT_REACHED]
    failures = [row for row in [*killed, *faulty] if row["why"]]
    hours = sum(row["seconds"] for row in [*rows, *faulty]) / 3600
    count = Counter((row["cloud"], row["actor"]) for row in killed)
    endings = Counter((row["actor"], row["ending"]) for row in killed)
    points = {row["cloud"]: (row["points"], row["changes"]) for row in rows}
    lines = [
        "# `run --away`, its client and its controller killed at their calls, which also go wrong",
        "\n\n",
        f"Made by `python bench/away.py`: {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}; {hours:.1f} hours of work. The script's docstring says what "
        "is done.\n\n",
        f"**{len(killed)} kills and {len(faulty)} runs of which each call went wrong once; "
        f"{len(failures)} with something left, twice, or lost.** "
        f"{len(rows) - len(killed)} more points were not reached, as that run made fewer calls "
        "than when they were counted.\n\n",
        "| | at calls that change something | tried | at calls that ask | tried | client killed | "
        "controller killed or lost |\n|---|---|---|---|---|---|---|\n",
    ]
    for cloud, (many, changes) in points.items():
        mine = [row for row in rows if row["cloud"] == cloud]
        tried = sum(row["is_change"] for row in mine)
        lines.append(
            f"| {cloud} | {changes} | {tried} | {many - changes} | {len(mine) - tried} | "
            f"{count[cloud, 'client']} | {count[cloud, 'desk']} |\n"
        )
    lines.append("\n| | then | times |\n|---|---|---|\n")
    lines += [
        f"| {ACTORS[actor]} | {name} | {endings[actor, name]} |\n"
        for actor, names in ENDINGS.items()
        for name in names
    ]
    wrong = {(row["cloud"], row["ending"]): sum(row["wrong"]) for row in faulty}
    lines += ["\n| calls that went wrong once | gcp | aws | azure |\n|---|---|---|---|\n"]
    for fault in TRIED:
        counts = " | ".join(str(wrong.get((cloud, fault), 0)) for cloud in ("gcp", "aws", "azure"))
        lines.append(f"| {fault} | {counts} |\n")
    if failures:
        texts = (f"{row['point']}, then {row['ending']}: {row['why']}" for row in failures)
        lines += ["\n## What went wrong\n\n", *(f"```\n{text}\n```\n" for text in texts)]
    return "".join(lines)


if __name__ == "__main__":
    main()
