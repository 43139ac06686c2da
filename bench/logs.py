"""Client CPU that a line of a task's log costs, to a pipe and to a terminal, beside `ssh tail -F`.

    python bench/logs.py --nodes 1 16 --against before=../other-checkout

Every node prints numbered lines one by one (a write each, as Python with PYTHONUNBUFFERED does),
1,000 a second. Counted is the CPU time of all threads of the client between the first fifth of the
lines and the last, less what a client uses in that time whose tasks print nothing. Every line must
have arrived in the log here.
"""

from __future__ import annotations

import argparse
import os
import platform
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote

from overhead import ROOT, Cluster

RATE = 1000
WRITER = """
import os, sys, time
count, seconds, begun = int(sys.argv[1]), float(sys.argv[2]), time.monotonic()
for n in range(count):
    os.write(1, b"step %d loss 0.123 accuracy 0.987 lr 0.0001\\n" % n)
    time.sleep(max(0.0, begun + (n + 1) * seconds / count - time.monotonic()))
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    time: float
    cpu: float
    arrived: int
    """Bytes."""


@dataclass(kw_only=True)
class Way:
    """One way to follow: of each run the microseconds of client CPU a line, and the share shown."""

    measure: Callable[[int, float], tuple[list[Sample], int]]
    """What one run used with so many lines in so many seconds, and how many it showed."""
    costs: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ct") as place:
        tables = ["".join(_table(Path(place), nodes, options)) for nodes in options.nodes]
    report = "".join([_head(options, load), *tables])
    options.output.write_text(report, encoding="utf-8")
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--lines", type=int, default=5000, help="of each node")
    parser.add_argument("--against", default=[], action="append", metavar="NAME=FOLDER")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "logs.md")
    return parser.parse_args()


def _table(place: Path, nodes: int, options: argparse.Namespace) -> Iterator[str]:
    sides = {"ours": ROOT}
    for each in options.against:
        name, _, folder = each.partition("=")
        sides[name] = Path(folder).resolve()
    code = place / f"n{nodes}" / "code"
    code.mkdir(parents=True)
    (code / "writer.py").write_text(WRITER)
    group = {"worker": {"count": nodes}}
    cluster = Cluster(code.parent, "custom", group, "python3 writer.py", code, setup={})
    ways = {
        f"`cloudtrain train`, {name}, {where}": Way(
            measure=partial(_train, cluster, root, where == "a terminal")
        )
        for name, root in sides.items()
        for where in ("a pipe", "a terminal")
    }
    with cluster.up():
        ways["`ssh tail -F`, a pipe"] = Way(measure=partial(_tails, cluster))
        for number in range(options.runs):
            for way in ways.values():
                seconds = options.lines / RATE
                quiet, _ = way.measure(2, seconds)
                busy, shown = way.measure(options.lines, seconds)
                way.costs.append(_a_line(quiet, busy) / nodes * 1e6)
                way.shown.append(shown / nodes / options.lines)
            print(f"{nodes} nodes: round {number + 1} done", file=sys.stderr)
    yield f"\n## {nodes} node{'s' * (nodes > 1)}, {options.lines:,} lines each\n\n"
    yield "| | µs of client CPU a line | cores at this rate | shown |\n|---|---|---|---|\n"
    for name, way in ways.items():
        cost = statistics.median(way.costs)
        yield f"| {name} | {cost:.1f} ({min(way.costs):.1f}) | {cost * nodes * RATE / 1e6:.2f} "
        yield f"| {statistics.median(way.shown):.0%} |\n"


def _a_line(quiet: Sequence[Sample], busy: Sequence[Sample]) -> float:
    """CPU seconds a line of each node, between a fifth and the last of them."""
    all_of_it = busy[-1].arrived
    first = next(each for each in busy if each.arrived >= all_of_it / 5)
    last = next(each for each in busy if each.arrived >= all_of_it * 0.98)
    begun = next(each for each in quiet if each.arrived)
    ended = [each for each in quiet if each.time <= begun.time + last.time - first.time][-1]
    idle = (ended.cpu - begun.cpu) / (ended.time - begun.time)
    seconds = last.time - first.time
    return (last.cpu - first.cpu - idle * seconds) / (seconds * RATE)


def _train(
    cluster: Cluster, root: Path, screen: bool, lines: int, seconds: float
) -> tuple[list[Sample], int]:
    words = [sys.executable, "-m", "cloudtrain", "train", str(cluster.file), "--"]
    begun = time.time()

    def logs() -> list[Path]:
        found = cluster.home.glob("clusters/*/runs/*/*.log")
        return [path for path in found if path.stat().st_mtime > begun]

    def arrived() -> int:
        with suppress(OSError):
            return sum(path.stat().st_size for path in logs())
        return 0

    environment = {**cluster.environment, "PYTHONPATH": str(root)}
    words += [str(lines), str(seconds)]
    samples, text = _run(words, environment, screen, arrived)
    found = logs()
    assert len(found) == cluster.count
    for log in found:
        numbers = re.findall(rb"^step (\d+) ", log.read_bytes(), re.MULTILINE)
        assert numbers == [b"%d" % n for n in range(lines)], f"{log} is not whole"
    shown = re.findall("(?:×([0-9]+))?[^\n×]*step [0-9]+ loss".encode(), text)
    return samples, sum(int(each or 1) for each in shown)


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    screen: bool,
    arrived: Callable[[], int] | None = None,
) -> tuple[list[Sample], bytes]:
    """CPU of a process while it ran, and its output; on a terminal of 40 lines, 120 columns."""
    ours, theirs = pty.openpty() if screen else os.pipe()
    process = subprocess.Popen(
        words,
        cwd="/",  # `python -m` would take the package of this folder
        env={**environment, "TERM": "xterm", "LINES": "40", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = bytearray()

    def read() -> None:
        with suppress(OSError):  # EIO: the terminal's last process has ended
            while data := os.read(ours, 1 << 16):
                text.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    samples = []
    while process.poll() is None:
        with suppress(OSError):
            size = arrived() if arrived else len(text)
            samples.append(Sample(time=time.monotonic(), cpu=_cpu(process.pid), arrived=size))
        time.sleep(0.05)
    reader.join()
    os.close(ours)
    assert process.returncode == 0, text[-3000:].decode(errors="replace")
    return samples, bytes(text)


def _cpu(pid: int) -> float:
    """Seconds of all its threads (proc(5), schedstat: nanoseconds on a processor)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def _tails(cluster: Cluster, lines: int, seconds: float) -> tuple[list[Sample], int]:
    """An ssh for each node, which ends with the writer; what the first one used."""
    config = cluster.folder / "ssh"
    config.write_text(cluster.cloudtrain("ssh-config", cluster.name))
    line = f"rm -f tailed; : >tailed; python3 -c {quote(WRITER)} {lines} {seconds} >tailed & "
    line += "tail -n +1 -F --pid=$! tailed"
    used: dict[int, list[Sample]] = {}
    shown: dict[int, int] = {}

    def follow(n: int) -> None:
        words = ["ssh", "-F", str(config), f"{cluster.name}-worker{n}", line]
        used[n], text = _run(words, os.environ, screen=False)
        shown[n] = text.count(b"step ")

    threads = [threading.Thread(target=follow, args=(n,)) for n in range(cluster.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = used[0]
    all_of_them = [
        Sample(time=each.time, cpu=each.cpu * cluster.count, arrived=each.arrived) for each in first
    ]
    return all_of_them, sum(shown.values())


def _head(options: argparse.Namespace, load: float) -> str:
    against = "".join(f" --against {each.partition('=')[0]}=FOLDER" for each in options.against)
    return (
        "# Client CPU of a task's log, line by line\n\n"
        f"Made by `python bench/logs.py --runs {options.runs} --lines {options.lines} --nodes "
        f"{' '.join(map(str, options.nodes))}{against}`: {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, load average {load:.1f} at the "
        f"start. Nodes of `provider: local`; {RATE:,} lines a second and node, each a write of its "
        "own. Medians, best in brackets; by turns. Every line was in the log here. `ssh` does not "
        "keep a log, name the task, or notice the end.\n"
    )


if __name__ == "__main__":
    main()
