"""Seconds that `cloudtrain train` adds to the same processes started by hand, nodes up already.

    python bench/overhead.py --runs 3

The example examples/multi_worker_mirrored.py on a chief and two workers: by `cloudtrain train`, and
by three shells with TF_CONFIG exported by hand; same interpreter, same ports, by turns. Then a
program that does nothing on few and many nodes, where all of the time is ours. The environment
with TensorFlow is made in the usual cache where it is not there yet (minutes, not measured).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
LIMIT = 600.0
CORES = os.cpu_count() or 1
TRAINS = "python multi_worker_mirrored.py --output {output} --epochs 3"
NOTHING = "true"
TENSORFLOW = {"tensorflow": "2.21", "packages": ["scikit-learn"]}

TRAIN = "**`cloudtrain train`**"
FLOOR = "the floor: `cloudtrain exec` of a Python that does nothing"
"""A connection to each node, and one start of Python there: no run can do with less."""

EXIT = "the last exit, as the supervisor on its node marked it"

REASON = """
## Where the CPU of a node goes, and why 32 nodes take longer than a second

Asked were 0.4 s on 3 nodes and 1 s on 32. Both sides below by turns, before and after the programs
of a node were kept compiled, and a task's watcher became a fork of Python (5 to 9 rounds at nice
-19 on 2 cores that were busy, load average 18, 2026-11-27; on quiet ones the first lines were 0.44
and 1.84 s):

| | seconds | CPU here | CPU of a node |
|---|---|---|---|
| 3 nodes, before | 0.59 (0.49) | 0.344 (0.322) | 0.087 (0.077) |
| 3 nodes, after | 0.50 (0.45) | 0.330 (0.320) | 0.053 (0.037) |
| 32 nodes, before | 2.17 (2.11) | 0.688 (0.681) | 0.085 (0.082) |
| 32 nodes, after | 1.61 (1.57) | 0.656 (0.634) | 0.052 (0.050) |

All nodes are on these cores: 32 × 0.050 s and the client's 0.634 s fill 2 of them for 1.12 s, so
that a second is out of reach here without a third less of both. With a machine each, nodes take
their 0.05 s side by side. A node's 50 ms are, about: its server 9; the start of the Python that
stays 10; the check of the steps by a shell 4; seven forks of that Python 8, and what runs in them:
the work folder with `cp` 4, the preflight 2 and 62 connections, the start, the watcher and the
task 7, the follower 2, the listing 4. The client's 0.65 s are: 0.30 in the main thread, of which
half are imports; 0.12 in paramiko's reading threads, 0.14 in what is done for each node (a key
exchange among it), 0.02 for the followers, 0.02 for the report.
"""

# Each phase ends with the first event that starts so; the last one with the process.
PHASES = (
    ("start-up: imports, config, nodes asked", "stage begun: setup and code"),
    ("code and environment looked at", "stage done: setup and code"),
    ("work folders made", "stage begun: preflight"),
    ("preflight", "stage done: preflight"),
    ("tasks started", "stage done: start run"),
    ("tasks run on, to the last exit", EXIT),
    ("that noticed", "stage begun: upload artifacts"),
    ("artifacts landed", "stage done: upload artifacts"),
    ("records landed, end", ""),
)


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ct") as place:
        folder = Path(place)
        training = None if options.no_training else _training(folder / "train", options.runs)
        fixed = {
            count: _fixed(folder / f"n{count}", count, options.runs) for count in options.nodes
        }
    report = "".join(_report(options, load, training, fixed))
    options.output.write_text(report, encoding="utf-8")
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 32], help="doing nothing")
    parser.add_argument("--no-training", action="store_true", help="leave TensorFlow out")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "overhead.md")
    return parser.parse_args()


# ── what is measured ─────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Run:
    """One `cloudtrain train`: seconds in all, by phase, and from first task to last exit; CPU
    seconds of the client, and of one node with all that it ran."""

    wall: float
    phases: Mapping[str, float]
    tasks: float
    client: float
    node: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A command: seconds in all, and of CPU of the client and of one node."""

    wall: float
    client: float
    node: float


@dataclass(frozen=True, kw_only=True)
class Sides:
    ours: list[Run]
    hand: list[float]
    commands: Mapping[str, list[Cost]]
    """Other commands on the cluster that is up."""


def _training(folder: Path, runs: int) -> Sides:
    nodes = {"chief": {}, "worker": {"count": 2}}
    code = folder / "code"  # beside its config: what is outside of the project is asked about
    shutil.copytree(EXAMPLES, code)
    cluster = Cluster(folder, "multi_worker_mirrored", nodes, TRAINS, code, TENSORFLOW)
    return _measured(cluster, runs, commands={})


def _fixed(folder: Path, count: int, runs: int) -> Sides:
    (folder / "empty").mkdir(parents=True)
    cluster = Cluster(
        folder, "custom", {"worker": {"count": count}}, NOTHING, folder / "empty", setup={}
    )
    file = str(cluster.file)
    commands = {
        "`cloudtrain up`, nothing to do": ["up", file],
        "`cloudtrain status`": ["status", file],
        FLOOR: ["exec", file, "--", sys.executable, "-I", "-S", "-c", "pass"],
    }
    return _measured(cluster, runs, commands)


def _measured(cluster: Cluster, runs: int, commands: Mapping[str, list[str]]) -> Sides:
    """All take turns within each round; a first round of each side warms caches, uncounted."""
    sides = Sides(ours=[], hand=[], commands={name: [] for name in commands})
    with cluster.up():
        _by_hand(cluster)
        cluster.train()
        for number in range(runs):
            turns = [lambda: sides.hand.append(_by_hand(cluster))]
            turns.insert(number % 2, lambda: sides.ours.append(cluster.train()))
            for turn in turns:
                turn()
            for name, words in commands.items():
                sides.commands[name].append(cluster.cost(*words))
            print(f"{cluster.name}: round {number + 1} of {runs} done", file=sys.stderr)
    return sides


def _by_hand(cluster: Cluster) -> float:
    """The code in a folder for each task, then a shell for each, all at once."""
    tasks = cluster.tasks()
    place = cluster.folder / "by hand"
    for task in tasks:
        shutil.copytree(cluster.code, place / task["node"])
        (place / task["node"] / "output").mkdir()
    lines = {task["node"]: cluster.shell_line(task, tasks) for task in tasks}
    began = time.perf_counter()
    shells = [
        subprocess.Popen(
            ["/bin/sh", "-c", line],
            cwd=place / node,
            stdin=subprocess.DEVNULL,
            stdout=(place / f"{node}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,  # as a terminal each: Linux shares the CPU out by session
        )
        for node, line in lines.items()
    ]
    try:
        codes = [shell.wait(LIMIT) for shell in shells]
        seconds = time.perf_counter() - began
    finally:
        for shell in shells:
            shell.kill()
    if any(codes):
        logs = [(place / f"{node}.log").read_text(errors="replace")[-1000:] for node in lines]
        sys.exit(f"by hand, the processes ended with {codes}:\n" + "\n".join(logs))
    shutil.rmtree(place)
    return seconds


# ── a cluster of ours ────────────────────────────────────────────────────────


class Cluster:
    """A config in a folder with a state home of its own, and `cloudtrain` run on it."""

    def __init__(
        self,
        folder: Path,
        strategy: str,
        nodes: Mapping[str, Any],
        command: str,
        code: Path,
        setup: Mapping[str, Any],
    ) -> None:
        self.folder, self.code, self.command = folder, code, command
        self.name = f"bench-{folder.name}"
        self.home = folder / "home"
        self.file = folder / "cluster.yaml"
        self.count = sum(node.get("count", 1) for node in nodes.values())
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "CLOUDTRAIN_HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
        }
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "name": self.name,
            "provider": "local",
            "strategy": strategy,
            "nodes": nodes,
            "setup": setup,
            "code": {"path": str(code)},
            "train": {"command": command, "port": free_ports(self.count)},
            "artifacts": {"store": (folder / "store").as_uri()},
        }
        self.file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML too

    @contextmanager
    def up(self) -> Iterator[None]:
        try:
            self.cloudtrain("up", str(self.file))
            yield
        finally:
            self.cloudtrain("down", self.name, "--discard", "--yes")

    def cloudtrain(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cloudtrain", *words],
            capture_output=True,
            text=True,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            sys.exit(f"cloudtrain {' '.join(words)} failed:\n{done.stderr[-4000:]}")
        return done.stdout

    def cost(self, *words: str) -> Cost:
        before = self._cpu_of_nodes()
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cloudtrain(*words)
        wall = time.perf_counter() - began
        client = _cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu(used)
        return Cost(wall=wall, client=client, node=(self._cpu_of_nodes() - before) / self.count)

    def train(self) -> Run:
        """A whole process, with the times of its events."""
        written = self.file.with_name("events")
        written.unlink(missing_ok=True)
        words = ["train", str(self.file), "--json", "--events", str(written)]
        before = self._cpu_of_nodes()
        began, used = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        try:
            output, progress = process.communicate()
            ended = time.time()
        finally:
            process.terminate()  # it detaches, so that `down` may have the cluster
            process.wait()
        client = _cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu(used)
        if process.returncode:
            sys.exit(f"cloudtrain train failed:\n{progress[-4000:]}")
        events = map(json.loads, written.read_text(encoding="utf-8").splitlines())
        lines = [(each["time"], f"{each['event']}: {each.get('stage', '')}") for each in events]
        first, last = self._first_start_and_last_exit(json.loads(output)["id"])
        return Run(
            wall=ended - began,
            phases=_phases(began, [*lines, (last, EXIT)], ended),
            tasks=last - first,
            client=client,
            node=(self._cpu_of_nodes() - before) / self.count,
        )

    def _cpu_of_nodes(self) -> float:
        """CPU seconds of the nodes' servers and of all processes of theirs that have ended."""
        ticks = 0
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (each / "cwd").readlink().is_relative_to(self.home / "local"):
                    figures = (each / "stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, figures[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def tasks(self) -> list[dict[str, Any]]:
        """Role, index, node and port of each, as `plan` has them, with the node's address."""
        plan = json.loads(self.cloudtrain("plan", str(self.file), "--json"))
        status = json.loads(self.cloudtrain("status", self.name, "--json"))
        internal = {node["name"]: node["internal"] for node in status["clusters"][0]["nodes"]}
        return [
            {**node, "node": node["name"], "address": internal[node["name"]]}
            for node in plan["nodes"]
        ]

    def shell_line(self, task: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> str:
        """What one would type in a shell of one's own."""
        roles: dict[str, list[str]] = {}
        for each in tasks:
            roles.setdefault(each["role"], []).append(f"{each['address']}:{each['port']}")
        mine = {"type": task["role"], "index": task["index"]}
        exports = [f"export TF_CONFIG={shlex.quote(json.dumps({'cluster': roles, 'task': mine}))}"]
        python = self._interpreter()
        if python is not None:
            exports += [
                f'export PATH={shlex.quote(str(python.parent))}:"$PATH"',
                "export TF_USE_LEGACY_KERAS=1 PYTHONUNBUFFERED=1",
            ]
        return "\n".join([*exports, f"exec {self.command.replace('{output}', 'output')}"])

    def _interpreter(self) -> Path | None:
        """The environment that the playbook made, found as a user finds it: by asking a node."""
        if not json.loads(self.file.read_text())["setup"]:
            return None
        sys.path.insert(0, str(ROOT))
        from cloudtrain.config import load
        from cloudtrain.playbooks import tensorflow
        from cloudtrain.providers.local.provider import provider

        os.environ["CLOUDTRAIN_HOME"] = str(self.home)
        config = load(self.file)
        node = provider(config).nodes(config.name)[0]
        return Path(tensorflow.bin_folder(config, node) or "") / "python"

    def _first_start_and_last_exit(self, run: str) -> tuple[float, float]:
        """By the marks that the supervisor leaves on the nodes, whose clock is this one's."""
        runs = f"local/{self.name}/*/home/.cloudtrain/{self.name}/runs/{run}/*/attempt-1"
        attempts = list(self.home.glob(runs))
        started = [(attempt / "task").lstat().st_mtime for attempt in attempts]
        ended = [(attempt / "exit").lstat().st_mtime for attempt in attempts]
        assert len(attempts) == self.count
        return min(started), max(ended)


def _cpu(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def _phases(began: float, lines: Sequence[tuple[float, str]], ended: float) -> dict[str, float]:
    found, last = {}, began
    for name, mark in PHASES:
        end = next((stamp for stamp, text in lines if mark and text.startswith(mark)), ended)
        found[name], last = end - last, end
    return found


def free_ports(count: int) -> int:
    """The first of so many consecutive ports that are free, below the ephemeral ones."""
    for start in range(20_000 + os.getpid() % 1000, 32_000, count):
        if all(map(_is_free, range(start, start + count))):
            return start
    sys.exit("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


# ── the report ───────────────────────────────────────────────────────────────


def _report(
    options: argparse.Namespace, load: float, training: Sides | None, fixed: Mapping[int, Sides]
) -> Iterator[str]:
    yield "# Overhead of `cloudtrain train`\n\n"
    yield (
        f"Made by `python bench/overhead.py --runs {options.runs} "
        f"--nodes {' '.join(map(str, options.nodes))}`: {CORES} cores, "
        f"{platform.system()}, Python {platform.python_version()}, {_openssh()}, load average "
        f"{load:.1f} at the start. Nodes of `provider: local`, up already. Medians in seconds, "
        "best in brackets; both sides by turns, after one uncounted run of each.\n\n"
    )
    if training is not None:
        yield "## The example on a chief and two workers\n\n"
        yield f"`{TRAINS}`; by hand: three shells, from their start to the last exit.\n\n"
        yield from _both(training, 3)
    for count, sides in fixed.items():
        yield f"\n## `{NOTHING}` on {count} nodes: the fixed cost\n\n"
        yield from _both(sides, count)
    yield REASON


def _both(sides: Sides, nodes: int) -> Iterator[str]:
    walls = [run.wall for run in sides.ours]
    more = statistics.median(walls) - statistics.median(sides.hand)
    ratio = statistics.median(walls) / statistics.median(sides.hand)
    times = f"{ratio:.2f} × · " if statistics.median(sides.hand) > 1 else ""  # of nothing: no sense
    own = [run.wall - run.tasks for run in sides.ours]
    yield "| | seconds |\n|---|---|\n"
    yield f"| by hand | {_cell(sides.hand)} |\n"
    yield f"| {TRAIN} | {_cell(walls)} · {times}{more:+.2f} s |\n"
    yield "| … of that, from the first task's start to the last exit | "
    yield f"{_cell([run.tasks for run in sides.ours])} |\n"
    yield f"| … and all the rest, which is ours | {_cell(own)} |\n"
    yield "\n| | seconds | CPU here | CPU of a node |\n|---|---|---|---|\n"
    costs: Mapping[str, Sequence[Run | Cost]] = {TRAIN: sides.ours, **sides.commands}
    for name, of in costs.items():
        cells = [_cell([each.wall for each in of])]
        cells += [_cell([each.client for each in of], 3), _cell([each.node for each in of], 3)]
        yield f"| {name} | {' | '.join(cells)} |\n"
    if FLOOR in costs:
        least, run = (
            (min(each.client for each in of) + nodes * min(each.node for each in of)) / CORES
            for of in (costs[FLOOR], costs[TRAIN])
        )
        yield f"\nShared by {CORES} cores, the CPU of the floor takes {least:.2f} s, "
        yield f"that of `cloudtrain train` {run:.2f} s.\n"
    yield "\n| phase of `cloudtrain train` | seconds |\n|---|---|\n"
    for name, _ in PHASES:
        yield f"| {name} | {_cell([run.phases[name] for run in sides.ours])} |\n"


def _cell(seconds: Sequence[float], digits: int = 2) -> str:
    return f"{statistics.median(seconds):.{digits}f} ({min(seconds):.{digits}f})"


def _openssh() -> str:
    if not shutil.which("ssh"):
        return "no OpenSSH"
    words = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    return words.split(",")[0].strip()


if __name__ == "__main__":
    main()
