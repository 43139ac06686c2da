"""Two minutes of ratios that say whether a change made something slower: `make bench-quick`.

    python bench/quick.py            # the table grows by a row; exit 1 if a ratio is 15 % up

Each row of bench/quick.md is one commit, each column a ratio to something that the change cannot
reach, measured by turns in the same minutes: CPU of a command to `python -c pass`, seconds over
sshds to OpenSSH's, a landing to `cp -a` and `sync`. The best of the rounds counts. A ratio is
judged by the median of the kept rows, the last ten. Byte code is written before anything is timed.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import launch
import overhead
import small_files
import startup

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "bench" / "quick.md"
KEPT, SLOWER = 10, 1.15
LAUNCHED = 8
FILES = 2000

OURS, BASE = 0, 1
Sides = tuple[Callable[[], float], Callable[[], float]]
"""Ours and what it is compared with; each returns seconds."""


def main() -> int:
    options = _options()
    for package in ("cloudtrain", "providers", "playbooks"):
        compileall.compile_dir(ROOT / package, quiet=2)
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ct") as place:
        found = _measured(Path(place), options.rounds)
    rows = _rows(TABLE.read_text("utf-8") if TABLE.exists() else "")
    slower = _slower(found, rows)
    named = {"date": f"{date.today()}", "commit": _commit(), "load": f"{load:.1f}"}
    rows.append({**named, **{name: f"{ratio:.2f}" for name, ratio in found.items()}})
    if not options.keep_table:
        TABLE.write_text(_table(rows[-KEPT:]), "utf-8")
    for name, ratio in found.items():
        print(f"{name:32} {ratio:7.2f}{slower.get(name, '')}")
    print(f"in {time.monotonic() - began:.0f} s, load {load:.1f} at the start")
    return 1 if slower else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep-table", action="store_true", help="print, and write nothing")
    return parser.parse_args()


# ── what is measured ─────────────────────────────────────────────────────────


def _measured(folder: Path, rounds: int) -> dict[str, float]:
    found = _best(_start_up(folder / "state"), 2 * rounds)
    with _over_sshds(folder / "ssh") as sides:
        found |= _best(sides, rounds)
    with _on_local_nodes(folder / "local") as sides:
        found |= _best(sides, rounds)
    return found | _best(_landing(folder / "files"), 3)


def _best(sides: Mapping[str, Sides], rounds: int) -> dict[str, float]:
    """Ratios of the best; all take turns, after one that is not counted."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    for number in range(rounds + 1):
        for name, both in sides.items():
            for side in (OURS, BASE) if number % 2 else (BASE, OURS):
                seconds = both[side]()
                if number:
                    times[name][side].append(seconds)
    return {name: min(ours) / min(base) for name, (ours, base) in times.items()}


def _cpu(*command: str, environment: Mapping[str, str]) -> float:
    """Seconds of CPU of the process and its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(environment))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return used.ru_utime + used.ru_stime


def _start_up(home: Path) -> dict[str, Sides]:
    startup.make_records(home)
    environment = {**os.environ, "CLOUDTRAIN_HOME": str(home), "PYTHONPATH": str(ROOT)}
    imports = "\n".join(re.findall(r"(?m)^(?:from|import) .*", launch.OURS_CODE))
    commands = {
        "import of the launch path": ("-c", imports),
        "`--help`": ("-m", "cloudtrain", "--help"),
        "`status --offline`, 100 runs": ("-m", "cloudtrain", "status", "--offline"),
        "`plan`": ("-m", "cloudtrain", "plan", str(ROOT / "configs" / "local.yaml")),
    }

    def cpu_of(words: tuple[str, ...]) -> Callable[[], float]:
        return lambda: _cpu(sys.executable, *words, environment=environment)

    return {name: (cpu_of(words), cpu_of(("-c", "pass"))) for name, words in commands.items()}


@contextmanager
def _over_sshds(folder: Path) -> Iterator[dict[str, Sides]]:
    """A trivial command, cold: imports and connections included."""
    folder.mkdir()
    with launch.sshd_nodes(folder, [f"n{number}" for number in range(LAUNCHED)]) as servers:
        size = folder / "size"
        launch._describe(size, servers)
        ours = [sys.executable, "-c", launch.OURS_CODE, str(size)]
        theirs = launch._openssh(size, "-o KexAlgorithms=curve25519-sha256")

        def wall(line: list[str]) -> float:
            seconds = launch._wall(line, size)
            launch._await_quiet(servers)
            return seconds

        yield {f"launch on {LAUNCHED}, cold": (lambda: wall(ours), lambda: wall(theirs))}


@contextmanager
def _on_local_nodes(folder: Path) -> Iterator[dict[str, Sides]]:
    (folder / "empty").mkdir(parents=True)
    nodes = {"worker": {"count": 3}}
    cluster = overhead.Cluster(folder, "custom", nodes, "true", folder / "empty", setup={})

    def pass_() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        return time.perf_counter() - began

    with cluster.up():
        yield {"`train` of `true` on 3 local": (lambda: cluster.train().wall, pass_)}


def _landing(folder: Path) -> dict[str, Sides]:
    """The phase of `down` that lands many small files, beside `cp -a` of the same and `sync`."""
    numbers = iter(range(100))
    last: list[Path] = []

    def ours() -> float:
        place = folder / str(next(numbers))
        with small_files.Cluster(place, ROOT).up(FILES, 20) as cluster:
            os.sync()
            cluster.cloudtrain("down", cluster.name, "--yes")
            seconds = cluster.stages()["land"]
            cluster.cloudtrain("fetch", cluster.name, "fetched")  # it is checked to be whole
            last[:] = [place / "store"]
            return seconds

    def theirs() -> float:
        if not last:
            ours()
        os.sync()
        began = time.perf_counter()
        subprocess.run(["cp", "-a", last[0], folder / f"copy{next(numbers)}"], check=True)
        os.sync()
        return time.perf_counter() - began

    return {f"landing of {FILES} small files": (ours, theirs)}


# ── the table ────────────────────────────────────────────────────────────────


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _rows(text: str) -> list[dict[str, str]]:
    """The kept rows by their columns."""
    wide = (line[1:-1].split("|") for line in text.splitlines() if line.startswith("| "))
    lines = [[cell.strip() for cell in line] for line in wide]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def _slower(found: Mapping[str, float], rows: list[dict[str, str]]) -> dict[str, str]:
    said = {}
    for name, ratio in found.items():
        before = [float(row[name]) for row in rows if row.get(name)]
        if before and ratio > SLOWER * (usual := statistics.median(before)):
            said[name] = f"   SLOWER: {usual:.2f} is usual"
    return said


def _table(rows: list[dict[str, str]]) -> str:
    columns = list(dict.fromkeys(name for row in reversed(rows) for name in row))
    return "\n".join(
        [
            "# Ratios of the last commits",
            "",
            "Made by `make bench-quick`: ours to `python -c pass` (CPU; `train`: seconds), to",
            "OpenSSH (launch) and to `cp -a` with `sync` (landing), by turns, best of the rounds.",
            f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}.",
            "",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
            *(f"| {' | '.join(row.get(name, '') for name in columns)} |" for row in rows),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
