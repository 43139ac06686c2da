"""How long do `create` and `destroy` of N nodes take on the clouds' stand-ins, beside one node's
own slowest chain; how many calls do they make, how much memory; and how does that grow?

    python bench/up.py --nodes 1 8 32 128 512 --runs 3 --delay 0.5

Each stand-in is a process of its own, and each operation that changes something takes `--delay`
seconds there. A stand-in is one Python process: what it computes itself (its CPU time, for N nodes
beyond that for one) delays the client as no cloud does, so there is a ratio without it, too: the
truth lies between the two, as some of it goes on beside the client's own waiting. The slowest chain
is what a single node waits for: of a run with one node, the time in which a call was on its way or
an operation that it had asked for was not done. What is over it is asking later than necessary, and
all that more nodes add. The client is a new process each time; it has imported the provider and
made the keys before the clock starts.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.standins import cloud  # noqa: E402

SLOW = {
    "gcp": ("*.insert", "*.delete", "*.patch", "*.update"),
    "aws": ("RunInstances *", "TerminateInstances *"),
    "azure": ("PUT *", "DELETE *"),
}
"""The calls whose operation takes `--delay` there."""
ROOM: dict[str, dict[str, Any]] = {
    "gcp": {},
    "aws": {"quotas": {"L-DB2E81BA": 10_000}},
    "azure": {"quotas": {"cores": 10_000, "Standard NCASv3_T4 Family": 10_000}},
}
"""What a stand-in must be told, so that 512 nodes may be had."""
NOTES = {
    "gcp": "A network kept between clusters would save one or two of three operations of `up`, two "
    "or three of four of `down`. It was not built. A network takes 7 s to create "
    "(https://github.com/GoogleCloudPlatform/magic-modules/pull/5031), with its subnet 20 to 30 s: "
    "not a third of an `up` whose node boots for a minute and installs a driver for some. `down` "
    "would be shorter by the subnet and the network (20 s or more each: "
    "https://github.com/terraform-google-modules/terraform-google-container-vm/pull/31), after "
    "billing has ended. For that something would stay in the account after each `down`.\n\n",
    "aws": "On EC2 itself, 512 nodes take four minutes, whatever the client does: it accepts 2 "
    "RunInstances a second from an account in a region, after the first 5 "
    "(https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html), and each node "
    "needs one of its own, as its host key is in its user data. The stand-in does not throttle; "
    "moto takes about 40 ms of CPU for each.\n\nOne RunInstances for many nodes would give all of "
    "them one user data, and so one host key, which each could use to pass for another. That holds "
    "only if no task starts anywhere before every node has got a key of its own over a connection "
    "that the shared one has proved, and if that is so again for each node that is replaced. Names "
    "would have to follow from AmiLaunchIndex, as tags are of the whole call. It was not built: "
    "`up` of 16 nodes would gain 6 s, and a killed `up` would leave nodes without names.\n\n",
}
CLIENT = """
import importlib, json, os, resource, sys, time
from dataclasses import replace
from pathlib import Path
from cloudtrain.ssh.keys import create_identity
from cloudtrain.core.model import NodeGroup
from cloudtrain.cluster.plan import make_plan
from tests.standins.cloud import Cloud

told, count, folder = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
here = Cloud(told["name"], told)
config = here.config()
one = config.nodes["chief"]
nodes = {"chief": one, **({"worker": replace(one, count=count - 1)} if count > 1 else {})}
config = replace(config, nodes=nodes)
plan = make_plan(config)
identity = create_identity(folder, [node.name for node in plan.nodes])
module = importlib.import_module(f"cloudtrain.providers.{here.name}.provider")
provider = module.provider(config)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def journal(*_, **__): pass
before, moments = peak(), [time.time()]
made = provider.create(plan, identity, journal)
moments.append(time.time())
assert len(made) == count and {node.state for node in made} == {"running"}, made
provider.destroy(config.name, journal)
moments.append(time.time())
cpu = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"moments": moments, "before": before, "peak": peak(),
                  "cpu": cpu.ru_utime + cpu.ru_stime}))
"""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one `create` or `destroy`; seconds."""

    wall: float
    chain: float
    calls: int
    work: float
    """CPU time of the stand-in."""


@dataclass(frozen=True, kw_only=True)
class Run:
    up: Figures
    down: Figures
    before: float
    peak: float
    """MB of the client's memory, before and at most."""
    client: float
    server: float
    """Seconds of CPU."""


def main() -> None:
    options = _options()
    load = os.getloadavg()[0]
    runs: dict[tuple[str, int], list[Run]] = {}
    for number in range(options.runs):
        for name in options.clouds:
            for count in options.nodes:
                runs.setdefault((name, count), []).append(_run(name, count, options.delay))
                print(f"round {number + 1}: {name}, {count} nodes done", file=sys.stderr)
    report = _report(options, load, runs)
    options.output.write_text(report)
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clouds", nargs="+", default=list(SLOW), choices=list(SLOW))
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 32, 128, 512])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.5, help="seconds for each operation")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "up.md")
    given = parser.parse_args()
    given.nodes = sorted({1, *given.nodes})
    return given


def _run(name: str, count: int, delay: float) -> Run:
    before = _children_cpu()
    with tempfile.TemporaryDirectory(prefix="up") as folder:
        with cloud.start(name, delay=delay, **ROOM[name]) as here, Watch() as watch:
            told = {
                "name": name,
                "url": here.url,
                "environment": here.environment,
                "endpoints": here.endpoints,
            }
            output = _client(told, count, Path(folder))
            calls = here.calls()
            held = here.holdings()
        if held:
            sys.exit(f"{name} still holds {held}")
    began, between, ended = output["moments"]
    return Run(
        up=_figures(name, calls, began, between, delay, watch),
        down=_figures(name, calls, between, ended, delay, watch),
        before=output["before"],
        peak=output["peak"],
        client=output["cpu"],
        server=_children_cpu() - before - output["cpu"],
    )


def _client(told: dict[str, Any], count: int, folder: Path) -> dict[str, Any]:
    """A new process with no settings of the user's."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(told), str(count), str(folder / "keys")],
        env={**kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), **told["environment"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{told['name']}, {count} nodes: {done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _figures(
    name: str,
    calls: Iterable[dict[str, Any]],
    began: float,
    ended: float,
    delay: float,
    watch: Watch,
) -> Figures:
    """`chain`: how long anything of ours was at work at the cloud, within these two moments."""
    mine = [call for call in calls if began <= call["started"] < ended]
    busy: list[tuple[float, float]] = []
    for call in mine:
        slow = any(fnmatch.fnmatchcase(call["action"], pattern) for pattern in SLOW[name])
        taken = slow and call["status"] is not None and call["status"] < 300
        busy.append((call["started"], call["ended"] + (delay if taken else 0.0)))
    chain, until = 0.0, began
    for start, end in sorted(busy):
        chain += max(0.0, min(end, ended) - max(start, until))
        until = max(until, end)
    work = watch.cpu(ended) - watch.cpu(began)
    return Figures(wall=ended - began, chain=chain, calls=len(mine), work=work)


class Watch:
    """Reads the CPU time of the stand-in's process ten times a second."""

    def __enter__(self) -> Watch:
        self._pid = next(pid for pid in _children() if b"tests.standins" in _line(pid))
        self._seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def cpu(self, moment: float) -> float:
        """Seconds used until that moment (Unix time)."""
        return max((used for time, used in self._seen if time <= moment), default=0.0)

    def _read(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        while not self._over.wait(0.1):
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
            self._seen.append((time.time(), (int(fields[11]) + int(fields[12])) / ticks))


def _children() -> list[int]:
    found = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    return [int(pid) for pid in found.split()]


def _line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ── The table ────────────────────────────────────────────────────────────────


def _report(
    options: argparse.Namespace, load: float, runs: dict[tuple[str, int], list[Run]]
) -> str:
    sizes: Sequence[int] = options.nodes
    lines = [
        "# Up and down on N nodes\n\n",
        f"Made by `python bench/up.py --nodes {' '.join(map(str, sizes))} --runs {options.runs} "
        f"--delay {options.delay:g}`: {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}, load average {load:.1f} at the start. Each operation takes "
        f"{options.delay:g} s at the stand-in, which shares the cores with the client. Best of "
        "the runs in seconds, median in brackets; then the ratio to one node's slowest chain "
        "(see the script). Target: 1.15.\n",
    ]
    for name in options.clouds:
        rows = [
            ("**up**", [_wall(runs, name, size, "up") for size in sizes]),
            ("up, without the stand-in's work", [_without(runs, name, s, "up") for s in sizes]),
            ("**down**", [_wall(runs, name, size, "down") for size in sizes]),
            ("down, without it", [_without(runs, name, s, "down") for s in sizes]),
            ("calls per node, up", [_calls(runs[name, size], "up", size) for size in sizes]),
            ("calls per node, down", [_calls(runs[name, size], "down", size) for size in sizes]),
            ("client's memory at most, MB", [_memory(runs, name, size) for size in sizes]),
            ("CPU s: client, stand-in", [_cpu(runs[name, size]) for size in sizes]),
        ]
        chains = [f"{_chain(runs, name, part):.2f} s {part}" for part in ("up", "down")]
        lines += [
            f"\n## {name}\n\nOne node's slowest chain: {', '.join(chains)}.\n\n",
            NOTES.get(name, ""),
            "| | " + " | ".join(f"{size} nodes" if size > 1 else "1 node" for size in sizes),
            " |\n|---|" + "---|" * len(sizes) + "\n",
            *("| " + " | ".join([title, *cells]) + " |\n" for title, cells in rows),
        ]
    return "".join(lines)


def _part(run: Run, part: str) -> Figures:
    return run.up if part == "up" else run.down


def _chain(runs: dict[tuple[str, int], list[Run]], name: str, part: str) -> float:
    return min(_part(run, part).chain for run in runs[name, 1])


def _wall(runs: dict[tuple[str, int], list[Run]], name: str, size: int, part: str) -> str:
    walls = [_part(run, part).wall for run in runs[name, size]]
    ratio = min(walls) / _chain(runs, name, part)
    return f"{min(walls):.2f} ({statistics.median(walls):.2f}) · {ratio:.2f} ×"


def _without(runs: dict[tuple[str, int], list[Run]], name: str, size: int, part: str) -> str:
    one = min(_part(run, part).work for run in runs[name, 1])
    figures = [_part(run, part) for run in runs[name, size]]
    least = min(each.wall - max(0.0, each.work - one) for each in figures)
    return f"{least:.2f} · {least / _chain(runs, name, part):.2f} ×"


def _calls(runs: Sequence[Run], part: str, size: int) -> str:
    calls = min(_part(run, part).calls for run in runs)
    return f"{calls / size:.1f} ({calls} in all)"


def _memory(runs: dict[tuple[str, int], list[Run]], name: str, size: int) -> str:
    peak = min(run.peak for run in runs[name, size])
    one = min(run.peak for run in runs[name, 1])
    return f"{peak:.0f}" if size == 1 else f"{peak:.0f} · {(peak - one) / (size - 1):.2f} a node"


def _cpu(runs: Sequence[Run]) -> str:
    return f"{min(run.client for run in runs):.1f}, {min(run.server for run in runs):.1f}"


if __name__ == "__main__":
    main()
