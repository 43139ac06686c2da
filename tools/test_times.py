"""Tells where the time of `make test` goes: seconds by cause, and the dearest tests.

    python tools/test_times.py                        # `make test`
    python tools/test_times.py tests/e2e/test_idle.py --output times.md

Each test's own process writes down what it waits for and what it makes (tests/support/times.py).
Meanwhile /proc is read five times a second: the processor time of each process of ours, by its
command line. Of children that ended, a process tells the sum; what was not seen of them counts for
the cause of the last child that was seen, or else of the process itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.times import CAUSES, WAITS, WORLDS, cause_of  # noqa: E402

PERIOD = 0.2
TICK = os.sysconf("SC_CLK_TCK")
DEAREST = 25


def main() -> int:
    options = _options()
    words = ["make", "test", f"JOBS={options.jobs}"]
    if options.tests:
        words = [sys.executable, "-m", "pytest", "-n", str(options.jobs), *options.tests]
    began, before = time.monotonic(), _processors()
    with tempfile.TemporaryDirectory(prefix="test-times-") as folder, Watch() as watch:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
        environ["PYTEST_ADDOPTS"] = f"-p tests.support.times --times {folder}"
        code = subprocess.run(words, cwd=ROOT, env=environ, check=False).returncode
        files = [file.read_text() for file in Path(folder).iterdir()]
    busy, idle = (after - was for after, was in zip(_processors(), before, strict=True))
    tests = [json.loads(line) for text in files for line in text.splitlines()]
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    took = f"{len(tests)} tests in {time.monotonic() - began:.0f} s, commit {commit}"
    told = page(tests, watch, took, busy, idle)
    print(told)
    if options.output:
        options.output.write_text(told)
    return code


def _options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "tests", nargs="*", metavar="FILE", help="of tests; after --: words for pytest"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run tests (2)")
    parser.add_argument("--output", type=Path, help="where the tables are written, too")
    return parser.parse_args()


def _processors() -> tuple[float, float]:
    """Seconds of this machine's processors, busy and idle, since it started."""
    ticks = [int(word) / TICK for word in Path("/proc/stat").read_text().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], ticks[3] + ticks[4]


# ── processes ────────────────────────────────────────────────────────────────


class Seen(NamedTuple):
    """A process at one look; ticks of its own and of its children that ended."""

    parent: int
    own: int
    ended: int
    cause: str


class Watch(threading.Thread):
    """Adds up what processes use from now on, by cause."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ticks: Counter[str] = Counter()
        self.processes: Counter[str] = Counter()
        self._before: dict[int, Seen] = {}
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        self._since = _stat(os.getpid())[21]
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(PERIOD):
            self.look(ours(dict(_processes(int(self._since))), os.getpid()))

    def look(self, now: Mapping[int, Seen]) -> None:
        gone = {pid: seen for pid, seen in self._before.items() if pid not in now}
        told, last = Counter[int](), dict[int, str]()  # by who is there and waited for them
        for seen in gone.values():
            parent = seen.parent
            while parent in gone:
                parent = gone[parent].parent
            told[parent] += seen.own + seen.ended
            last[parent] = seen.cause
        for pid, seen in now.items():
            was = self._before.get(pid)
            self.processes[seen.cause] += was is None
            own, ended = (was.own, was.ended) if was else (0, 0)
            self.ticks[seen.cause] += max(0, seen.own - own)
            self.ticks[last.get(pid, seen.cause)] += max(0, seen.ended - ended - told[pid])
        self._before = dict(now)


def ours(found: Mapping[int, Seen], top: int) -> dict[int, Seen]:
    """Of the processes that began since: what `top` started, and what its parent left to init."""

    def is_ours(pid: int) -> bool:
        while pid in found:
            pid = found[pid].parent
        return pid in (top, 1)

    return {pid: seen for pid, seen in found.items() if is_ours(pid)}


def _processes(since: int) -> Iterator[tuple[int, Seen]]:
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and int((stat := _stat(entry.name))[21]) > since:
                words = Path(f"/proc/{entry.name}/cmdline").read_bytes()[:2000]
                cause = cause_of(words.replace(b"\0", b" ").decode(errors="replace"))
                user, system, their_user, their_system = map(int, stat[13:17])
                own, ended = user + system, their_user + their_system
                yield int(entry.name), Seen(int(stat[3]), own, ended, cause)


def _stat(pid: int | str) -> list[str]:
    """Fields as proc(5) counts them, from 0 on; its name may have any signs in it."""
    return ["", "", *Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()]


# ── tables ───────────────────────────────────────────────────────────────────


def page(
    tests: Sequence[Mapping[str, Any]], watch: Watch, took: str, busy: float, idle: float
) -> str:
    used = {cause: watch.ticks[cause] / TICK for cause in CAUSES}
    started, spent = Counter[str](), dict[str, list[float]]()
    for test in tests:
        started.update(test["started"])
        for name, (times, seconds) in test["spent"].items():
            known = spent.setdefault(name, [0, 0.0])
            spent[name] = [known[0] + times, known[1] + seconds]
    whole, own = (sum(test[key] for test in tests) for key in ("wall", "own"))
    share = 100 * idle / (busy + idle)
    return "".join(
        [
            "# Where the time of the tests goes\n\n",
            f"Made by `make test-times`: {took}, {date.today()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}. The cores were busy for {busy:.0f} s and idle for "
            f"{idle:.0f} s ({share:.0f} %).\n\n",
            "| processes | CPU seconds | seen | started by tests themselves |\n|---|---|---|---|\n",
            *(
                f"| {cause} | {used[cause]:.0f} | {watch.processes[cause]} | {started[cause]} |\n"
                for cause in sorted(CAUSES, key=lambda cause: -used[cause])
            ),
            f"| not seen, or others' | {max(0.0, busy - sum(used.values())):.0f} | | |\n\n",
            f"Tests took {whole:.0f} s one after the other, in which their own processes computed "
            f"for {own:.0f} s. What they waited for, while they computed nothing:\n\n",
            _rows("waiting for", WAITS, spent),
            "\n",
            _rows("making", WORLDS, spent),
            "\n| seconds | computing | children's | waiting | started | test |\n",
            "|---|---|---|---|---|---|\n",
            *map(_line, sorted(tests, key=lambda test: -test["wall"])[:DEAREST]),
        ]
    )


def _rows(title: str, names: Mapping[str, str], spent: Mapping[str, Sequence[float]]) -> str:
    rows = (
        f"| {name} | {spent.get(name, (0, 0))[0]} | {spent.get(name, (0, 0))[1]:.0f} |\n"
        for name in names
    )
    return f"| {title} | times | seconds |\n|---|---|---|\n{''.join(rows)}"


def _line(test: Mapping[str, Any]) -> str:
    waiting = sum(seconds for name, (_, seconds) in test["spent"].items() if name in WAITS)
    seconds = [test["wall"], test["own"], test["children"], waiting]
    cells = [f"{each:.1f}" for each in seconds] + [str(sum(test["started"].values()))]
    return f"| {' | '.join(cells)} | {test['test'].replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    sys.exit(main())
