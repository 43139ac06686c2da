"""Random faults of tasks, nodes, connections, disks and the client, in runs from `up` to `down`.

Writes bench/faults.md, and prints what went wrong, with the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.fault_places import TASKS, Lent, Place, Rented, place
from tests.support.fault_plan import planned
from tests.support.fault_trial import Result, Trial

PLACES: dict[str, type[Place]] = {
    "local": Place,
    "hosts": Lent,
    "gcp": Rented,
    "aws": Rented,
    "azure": Rented,
}
ROWS = Path(__file__).with_suffix(".jsonl")
"""Every run so far, so that several calls make one table."""


def main() -> int:
    options = arguments()
    wrong = 0
    for seed in range(options.seed, options.seed + options.runs):
        result = trial(options.where, seed, options.pairs, options.kinds)
        wrong += result.verdict == "wrong"
        print(line(options.where, result), flush=True)
        if result.verdict == "wrong" or options.verbose:
            print(result.words, *result.wrong, sep="\n")
            print(f"again: {command(options, seed)}", flush=True)
        with options.rows.open("a") as file:
            file.write(json.dumps(row(options, result)) + "\n")
        told = table([json.loads(one) for one in options.rows.read_text().splitlines()])
        options.rows.with_suffix(".md").write_text(told)
    return int(wrong > 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each has the next")
    parser.add_argument("--where", choices=PLACES, default="local")
    parser.add_argument("--pairs", action="store_true", help="two faults in each run")
    parser.add_argument("--kinds", nargs="*", help="only these faults")
    parser.add_argument("--rows", type=Path, default=ROWS, help="of all runs; the table is beside")
    parser.add_argument("--verbose", action="store_true", help="what every command said")
    return parser.parse_args()


def trial(where: str, seed: int, pairs: bool, kinds: Iterable[str] | None = None) -> Result:
    kind = PLACES[where]
    plan = planned(seed, kinds or kind.kinds, TASKS, pair=pairs, slow=kind.slow)
    with (
        tempfile.TemporaryDirectory(prefix="cloudtrain-faults-") as folder,
        place(where, Path(folder)) as made,
    ):
        return Trial(made, plan).run()


def command(options: argparse.Namespace, seed: int) -> str:
    words = ["python bench/faults.py --runs 1 --verbose", f"--where {options.where} --seed {seed}"]
    words += ["--pairs"] if options.pairs else []
    words += ["--kinds", *(f"'{kind}'" for kind in options.kinds)] if options.kinds else []
    return " ".join(words)


def line(where: str, result: Result) -> str:
    faults = " + ".join(map(str, result.plan.faults))
    seen = "" if result.detected is None else f", seen after {result.detected:.1f} s"
    codes = json.dumps(result.codes)
    said = result.cause.replace("\n", " ")[:160]
    return f"{where} {result.plan.seed}: {faults}: {result.verdict}{seen} {codes} {said}"


def row(options: argparse.Namespace, result: Result) -> dict[str, object]:
    return {
        "where": options.where,
        "seed": result.plan.seed,
        "faults": " + ".join(sorted(fault.kind for fault in result.plan.faults)),
        "pair": options.pairs,
        "verdict": result.verdict,
        "met": all(hit.processes for hit in result.hits),
        "detected": result.detected,
        "files": result.files,
        "wrong": result.wrong,
    }


def table(rows: list[dict[str, object]]) -> str:
    """One line for each place and fault; all pairs of a place in one. Of a run that was repeated
    after a mend, the last result counts.
    """
    first = [f"{one['where']} {one['seed']}" for one in rows if one["verdict"] == "wrong"]
    rows = list({(one["where"], one["seed"], one["pair"]): one for one in rows}.values())
    groups: dict[tuple[str, str], list[dict[str, object]]] = {}
    for one in rows:
        fault = "a pair" if one["pair"] else str(one["faults"])
        groups.setdefault((str(one["where"]), fault), []).append(one)
    lines = [
        "# Runs with random faults",
        "",
        f"Made by `python bench/faults.py`: {len(rows)} runs, {os.cpu_count()} cores, other work "
        "on it. *Wrong*: an exit code, verdict or cause that the fault may not have, a file "
        "of the ledger that is not in the store, or something left after three `down`. Seconds: "
        "from the fault to the end of its attempt, where it has one.",
        "",
        *(
            [f"Wrong at first (place, seed), mended and repeated: {', '.join(first)}.", ""]
            * bool(first)
        ),
        "| place | fault | runs | met nothing | came through | failed rightly | wrong "
        "| seconds: median (max) |",
        "|" + "---|" * 8,
    ]
    for (where, fault), found in sorted(groups.items()):
        verdicts = [one["verdict"] for one in found]
        seconds = [float(str(one["detected"])) for one in found if one["detected"] is not None]
        shown = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "–"
        counts = [verdicts.count(each) for each in ("came through", "failed rightly", "wrong")]
        missed = sum(not one["met"] for one in found)
        cells = [where, fault, len(found), missed, *counts, shown]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
