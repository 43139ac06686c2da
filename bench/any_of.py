"""Is anything left, or there twice, if `up` with candidates is killed at any API call, or if any
call goes wrong?

    python bench/any_of.py                       # every state with every ending, every call
    python bench/any_of.py --parts 3 --part 0    # a third; another process takes --part 1

Run again, it goes on where it ended; bench/any_of.jsonl has what was done.

Three stand-ins at once; the file has AWS, Azure and Google in this order, and only the last has
room, so that `up` creates and rolls back in two clouds before it stands in the third. It is killed
(SIGKILL) in every state that it can leave: before and after each call that changes something, and
after each event of its journal; then each of the endings of tests/support/candidate_sweep.py
follows, and all three accounts must be empty.

Then each call of `up` and of the `down` after it goes wrong once, by the next of the faults of
tests/standins/faults.py: refused for a while (429), an error (500, 503), no answer, a connection
that ends; also after its work was done. Both commands must be done as without it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.standins.faults import FAULTS  # noqa: E402
from tests.support.candidate_sweep import ENDINGS, Ending, Point, Sweep, swept  # noqa: E402

ROWS = Path(__file__).with_suffix(".jsonl")
NOT_REACHED = "not reached"


def main() -> None:
    options = _options()
    done = _read(options.rows)
    with tempfile.TemporaryDirectory(prefix="any-of-") as folder, swept(Path(folder)) as sweep:
        points, calls = _points(options.rows.with_suffix(".points.json"), sweep)
        for number, trial in enumerate(_trials(points, calls)):
            if number % options.parts != options.part or number in done:
                continue
            began, why = time.time(), _try(sweep, trial)
            row = {"number": number, **asdict(trial), "point": str(trial.point), "why": why}
            row |= {"cloud": trial.point.cloud, "seconds": round(time.time() - began, 1)}
            row |= {"points": len(points), "calls": calls}
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            if why not in ("", NOT_REACHED):
                print(f"{number}: {trial}: {why}", file=sys.stderr, flush=True)
    rows = list(_read(options.rows).values())
    options.rows.with_suffix(".md").write_text(_report(rows))
    print(_report(rows))
    sys.exit(any(row["why"] not in ("", NOT_REACHED) for row in rows))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A kill and what follows, or a call that goes wrong: `ending` or `fault` is empty."""

    point: Point
    ending: Ending | Literal[""] = ""
    fault: str = ""

    def __str__(self) -> str:
        if self.ending:
            return f"killed {self.point}, then {self.ending}"
        return f"{self.fault}, call {self.point.number} of {self.point.cloud}"


def _trials(points: list[Point], calls: dict[str, int]) -> Iterator[Trial]:
    for shift in range(len(ENDINGS)):
        for at, point in enumerate(points):
            yield Trial(point=point, ending=ENDINGS[(at + shift) % len(ENDINGS)])
    faults = itertools.cycle(FAULTS)
    for cloud, count in calls.items():
        for number in range(1, count + 1):
            point = Point(cloud=cloud, number=number, after=False)
            yield Trial(point=point, fault=next(faults))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, default=1, help="how many processes share the points")
    parser.add_argument("--part", type=int, default=0, help="which of them this one takes, from 0")
    parser.add_argument("--rows", type=Path, default=ROWS, help="of all kills; the table is beside")
    return parser.parse_args()


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """Kills so far, by the number of their point."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["number"]: row for row in map(json.loads, lines)}


def _points(path: Path, sweep: Sweep) -> tuple[list[Point], dict[str, int]]:
    """The points that all processes share, and how many calls `up` and `down` make to each."""
    if not path.exists():
        points = [asdict(point) for point in sweep.points()]
        sweep.do("down", sweep.name, "--discard", "--yes")
        calls = {name: len(actions) for name, actions in sweep.calls().items()}
        _write_first(path, json.dumps({"points": points, "calls": calls}))
    found = json.loads(path.read_text())
    return [Point(**point) for point in found["points"]], found["calls"]


def _write_first(path: Path, text: str) -> None:
    """Unless another process has: what each counts differs."""
    mine = path.with_suffix(f".{os.getpid()}")
    mine.write_text(text)
    with suppress(FileExistsError):
        path.hardlink_to(mine)
    mine.unlink()


def _try(sweep: Sweep, trial: Trial) -> str:
    """What went wrong, "" if nothing did."""
    sweep.begin_anew()
    point = trial.point
    try:
        if trial.fault:
            reached = sweep.faulty(trial.fault, cloud=point.cloud, number=point.number)
            return "" if reached else NOT_REACHED
        if not sweep.killed(point):
            return NOT_REACHED
        sweep.end(trial.ending)  # type: ignore[arg-type]
    except AssertionError as error:
        return str(error)[-2000:]
    return ""


def _report(rows: list[dict[str, Any]]) -> str:
    reached = [row for row in rows if row["why"] != NOT_REACHED]
    killed = [row for row in reached if row["ending"]]
    faulty = [row for row in reached if row["fault"]]
    failures = [row for row in reached if row["why"]]
    clouds = Counter((bool(row["ending"]), row["cloud"]) for row in reached)
    endings = Counter(row["ending"] for row in killed)
    faults = Counter(row["fault"] for row in faulty)
    hours = sum(row["seconds"] for row in rows) / 3600
    calls = rows[0]["calls"]
    pairs = rows[0]["points"] * len(ENDINGS)
    lines = [
        "# `up` over three clouds, killed in every state, and with every call going wrong\n\n",
        f"Made by `python bench/any_of.py`: {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}; {hours:.1f} hours of work. The script's docstring says what "
        "is done.\n\n",
        f"**{len(killed)} kills in {rows[0]['points']} states and {len(faulty)} calls that went "
        f"wrong; {len(failures)} with something left, twice, or in the wrong place.** {len(rows)} "
        f"of {pairs + sum(calls.values())} trials were made ({pairs} pairs of a state and an "
        f"ending, and each call of `up` and `down`), {len(rows) - len(reached)} of them without a "
        "kill or fault, as fewer calls were made than when they were counted.\n\n",
        "| | calls without a fault | killed at | went wrong |\n|---|---|---|---|\n",
        *(
            f"| {name} | {count} | {clouds[True, name]} | {clouds[False, name]} |\n"
            for name, count in calls.items()
        ),
        "\n| then | times |\n|---|---|\n",
        *(f"| {name} | {endings[name]} |\n" for name in ENDINGS),
        "\n| fault | times |\n|---|---|\n",
        *(f"| {name} | {faults[name]} |\n" for name in FAULTS),
    ]
    if failures:
        texts = (
            f"{row['point']}, {row['fault'] or row['ending']}: {row['why']}" for row in failures
        )
        lines += ["\n## What went wrong\n\n", *(f"```\n{text}\n```\n" for text in texts)]
    return "".join(lines)


if __name__ == "__main__":
    main()
