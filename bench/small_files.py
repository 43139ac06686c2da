"""Seconds of `cloudtrain down` and `fetch` with many small files on a node. Writes small_files.md.

    python bench/small_files.py --against before=../another-checkout

A local node whose task left them in its output folder, and a store in a folder: nothing of it
waits for a network, so what is left is ours and the disk's. Each tree takes its turn within each
round, with files of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHASES = {
    "list and compare": "verify what has landed",
    "land": "upload artifacts",
    "delete the node": "destroy on local",
}
COPY = "`cp -a` of the same files, and `sync`"
ROWS = ("`down`", *PHASES, COPY, "`fetch`", "`fetch` again")


def main() -> None:
    options = _options()
    load, cells = os.getloadavg()[0], {name: Cells() for name in options.trees}
    with tempfile.TemporaryDirectory(prefix="ct", dir=options.folder) as place:
        for number in range(options.runs):
            turns = list(options.trees.items())
            for name, tree in turns[:: -1 if number % 2 else 1]:
                folder = Path(place) / f"{name}{number}"
                with Cluster(folder, tree).up(options.files, options.folders) as cluster:
                    _measure(cluster, cells[name])
                print(f"round {number + 1}: {name}: {cells[name].last()}", file=sys.stderr)
        report = "".join(_report(options, load, cells))
        options.output.write_text(report, encoding="utf-8")  # deleting the files takes long, too
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--folders", type=int, default=200)
    parser.add_argument("--against", metavar="NAME=FOLDER", nargs="*", default=[])
    parser.add_argument("--folder", help="where the files are made (default: TMPDIR)")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "small_files.md")
    options = parser.parse_args()
    others = (each.partition("=") for each in options.against)
    options.trees = {**{name: Path(tree).resolve() for name, _, tree in others}, "ours": ROOT}
    return options


# ── what is measured ─────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cells:
    """Seconds, and seconds of CPU of the command itself, by row."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, row: str, wall: float, cpu: float | None = None) -> None:
        self.wall.setdefault(row, []).append(wall)
        if cpu is not None:
            self.cpu.setdefault(row, []).append(cpu)

    def last(self) -> str:
        return ", ".join(f"{row} {seconds[-1]:.1f}" for row, seconds in self.wall.items())


def _measure(cluster: Cluster, cells: Cells) -> None:
    os.sync()
    began = time.perf_counter()
    subprocess.run(["cp", "-a", cluster.output, cluster.folder / "copied"], check=True)
    os.sync()
    cells.add(COPY, time.perf_counter() - began)
    for row, words in (
        ("`down`", ("down", cluster.name, "--yes")),
        ("`fetch`", ("fetch", cluster.name, "fetched")),
        ("`fetch` again", ("fetch", cluster.name, "fetched")),
    ):
        os.sync()
        wall, cpu = cluster.cloudtrain(*words)
        cells.add(row, wall, cpu)
        if row == "`down`":
            for phase, seconds in cluster.stages().items():
                cells.add(phase, seconds)


class Cluster:
    """A local cluster of one node in a folder of its own, and `cloudtrain` of a tree run on it."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self.folder, self.name = folder, "small"
        (folder / "code").mkdir(parents=True)
        self.environment = {
            **os.environ,
            "CLOUDTRAIN_HOME": str(folder / "home"),
            "PYTHONPATH": str(tree),
        }
        config = {
            "name": self.name,
            "provider": "local",
            "strategy": "one_device",
            "nodes": {"chief": {"count": 1}},
            "setup": {},
            "code": {"path": str(folder / "code")},
            "train": {"command": "mkdir -p {output}"},
            "artifacts": {"store": (folder / "store").as_uri()},
        }
        self.file = folder / f"{self.name}.yaml"
        self.file.write_text(json.dumps(config), encoding="utf-8")

    @contextmanager
    def up(self, files: int, folders: int) -> Iterator[Cluster]:
        """With files that its task has left since its end, each with other bytes."""
        try:
            self.cloudtrain("up", str(self.file))
            self.cloudtrain("train", str(self.file))
            output = self.output
            for number in range(files):
                below = output / f"{number % folders:03}"
                below.mkdir(exist_ok=True)
                (below / f"{number:05}").write_bytes(os.urandom(1000))
            yield self
            found = len(list((self.folder / "fetched").rglob("*/output/*/*")))
            assert found == files, f"{found} of {files} files were fetched"
        finally:
            self.cloudtrain("down", self.name, "--discard", "--yes")

    @property
    def output(self) -> Path:
        place = "home/local/*/*/home/.cloudtrain/*/runs/*/*/work/output"
        (found,) = self.folder.glob(place)
        return found

    def cloudtrain(self, *words: str) -> tuple[float, float]:
        """Seconds and CPU seconds of one command."""
        self.events.unlink(missing_ok=True)
        began = time.perf_counter()
        with (self.folder / "words").open("w+b") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloudtrain", *words, "--events", str(self.events)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.environment,
            )
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                said.seek(0)
                sys.exit(f"cloudtrain {' '.join(words)} failed:\n{said.read().decode()[-4000:]}")
        return wall, used.ru_utime + used.ru_stime

    @property
    def events(self) -> Path:
        return self.folder / "events"

    def stages(self) -> dict[str, float]:
        events = list(map(json.loads, self.events.read_text(encoding="utf-8").splitlines()))
        return {phase: _seconds(events, stage) for phase, stage in PHASES.items()}


def _seconds(events: Sequence[Mapping[str, str | float]], stage: str) -> float:
    """Of all stages of that name."""
    times = {"stage begun": 0.0, "stage done": 0.0}
    for each in events:
        if each.get("stage") == stage and each["event"] in times:
            times[str(each["event"])] += float(each["time"])
    return times["stage done"] - times["stage begun"]


WHY = (
    "A landing takes longer than `cp -a` and `sync` because of its CPU, five times theirs: 3.8 s "
    "for 20,000 files (1.9 in Python, for the stream, SHA-256 and names; 1.1 in its system calls; "
    "0.8 on the node, which lists twice and computes SHA-256 as well) against 0.8 (2026-11-27).\n\n"
)


# ── the report ───────────────────────────────────────────────────────────────


def _report(options: argparse.Namespace, load: float, cells: Mapping[str, Cells]) -> Iterator[str]:
    yield "# Many small files\n\n"
    yield (
        f"Made by `python bench/small_files.py`: {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {load:.1f} at the start (other work on the "
        f"machine: ratios more than figures). {options.files:,} files of 1 kB in "
        f"{options.folders} folders of a local node, a store in a folder, one disk. Median of "
        f"{options.runs} by turns (the best in brackets), seconds; then CPU seconds of the "
        "command itself, without the node's.\n\n"
    )
    yield WHY
    yield f"| | {' | '.join(cells)} |\n|---|{'---|' * len(cells)}\n"
    for row in ROWS:
        yield f"| {row} | {' | '.join(_cell(each, row) for each in cells.values())} |\n"


def _cell(cells: Cells, row: str) -> str:
    wall, cpu = cells.wall.get(row, []), cells.cpu.get(row)
    if not wall:
        return ""
    text = f"{statistics.median(wall):.1f} ({min(wall):.1f})"
    return f"{text} · {statistics.median(cpu):.1f}" if cpu else text


if __name__ == "__main__":
    main()
