"""How long does a second `up` take, with nothing to do, beside the first one? And on more nodes?

    python bench/ready.py --nodes 1 4 --runs 3

Then: the environment step of a first and of a later cluster beside pip on each node, on 1 and 8
nodes, with a real package index (bench/environments.py): `--environments TensorFlow:1`.

As root: real nodes (cloud-init, sshd) stand behind a cloud's stand-in. Cold is `cloudtrain up` from
nothing: VMs, first boot, host keys, the playbooks (python3-venv by apt, an environment with a
package of 400 modules by pip, 2,000 files of code), all from archives on this machine: what a
mirror and a larger package take comes on top. Warm is the same command again. Changed is again
after an edit of one file of the code. Each is a whole process.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench import environments  # noqa: E402
from tests.standins.cloud import DESCRIPTIONS, Cloud, running  # noqa: E402
from tests.standins.image import with_archive, with_package  # noqa: E402
from tests.standins.nodes import Nodes, unavailable  # noqa: E402

STAGES = ("nodes on", "first login", "setup and code")
FILES = 2000


@dataclass(frozen=True, kw_only=True)
class Up:
    """Seconds of one `up`: all of it, and what its stages say."""

    wall: float
    stages: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    cold: Up
    warm: Up
    changed: Up


def main() -> None:
    options = _options()
    if reason := unavailable():
        sys.exit(reason)
    load = os.getloadavg()[0]
    runs: dict[int, list[Run]] = {count: [] for count in options.nodes}
    for number in range(options.runs):
        for count in options.nodes:
            runs[count].append(_run(options.cloud, count))
            print(f"round {number + 1}: {count} nodes done", file=sys.stderr)
    measured = {}
    for wanted in options.environments:
        packages, _, size = wanted.rpartition(":")
        with tempfile.TemporaryDirectory(prefix="ready") as place:
            setup = environments.SETS[packages]
            title = f"{packages}, {size} node{'s' if size != '1' else ''}"
            measured[title] = environments.measure(options.cloud, int(size), Path(place), setup)
            print(f"environments: {title} done", file=sys.stderr)
    report = _report(options, load, runs) if options.runs else ""
    if measured:
        report += environments.HEAD.format(load=load) + environments.section(measured)
    options.output.write_text(report)
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cloud", default="gcp", choices=sorted(DESCRIPTIONS))
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--environments",
        nargs="*",
        default=[f"{packages}:{size}" for packages in environments.SETS for size in (1, 8)],
        metavar="PACKAGES:NODES",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "ready.md")
    return parser.parse_args()


def _run(name: str, count: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="ready") as place:
        folder = Path(place)
        with_archive(folder / "image")
        with_package(folder / "image")
        config = _config(folder, name, count)
        with Nodes(files=folder / "image") as nodes, running(name, nodes=nodes) as cloud:
            cold = _up(cloud, folder, config)
            warm = _up(cloud, folder, config)
            (folder / "code" / "part0" / "0.bin").write_text("edited")
            changed = _up(cloud, folder, config)
            _cloudtrain(cloud, folder, "down", "ready", "--yes")
            if held := cloud.holdings():
                sys.exit(f"{name} still holds {held}")
    return Run(cold=cold, warm=warm, changed=changed)


def _config(folder: Path, name: str, count: int) -> Path:
    draw = random.Random(1)
    for number in range(FILES):
        file = folder / "code" / f"part{number % 20}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw.randbytes(25_000))
    described = DESCRIPTIONS[name]
    nodes = {"chief": {"machine": described.machine}}
    if count > 1:
        nodes["worker"] = {"machine": described.machine, "count": count - 1}
    values = {
        "name": "ready",
        "provider": name,
        "project": described.project,
        "placement": list(described.placement),
        "strategy": "multi_worker_mirrored",
        "nodes": nodes,
        "setup": {"packages": ["many"]},
        "code": {"path": "code"},
        "train": {"command": "true"},
        "artifacts": {"store": (folder / "store").as_uri()},
    }
    config = folder / "ready.yaml"
    config.write_text(yaml.safe_dump(values))
    return config


def _up(cloud: Cloud, folder: Path, config: Path) -> Up:
    began = time.perf_counter()
    said = _cloudtrain(cloud, folder, "up", str(config), "--yes")
    wall = time.perf_counter() - began
    found = re.findall(r"s  (.+?): \d+ of \d+.*  ([\d.]+)s$", said, re.MULTILINE)
    took = {stage: float(text) for title, text in found for stage in STAGES if stage in title}
    return Up(wall=wall, stages=tuple(took[stage] for stage in STAGES))


def _cloudtrain(cloud: Cloud, folder: Path, *arguments: str) -> str:
    """A new process with no settings of the user's."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
    own = {"HOME": str(folder), "PYTHONPATH": str(ROOT), **cloud.environment}
    done = subprocess.run(
        [sys.executable, "-m", "cloudtrain", *arguments],
        env={**kept, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{arguments}: {done.stderr[-4000:]}")
    return done.stderr


# ── The table ────────────────────────────────────────────────────────────────


def _report(options: argparse.Namespace, load: float, runs: dict[int, list[Run]]) -> str:
    sizes: Sequence[int] = options.nodes
    heads = [f"{size} nodes" if size > 1 else "1 node" for size in sizes]
    kinds = {
        "cold": [[run.cold for run in runs[size]] for size in sizes],
        "warm": [[run.warm for run in runs[size]] for size in sizes],
        "changed": [[run.changed for run in runs[size]] for size in sizes],
    }
    rows = []
    for kind, columns in kinds.items():
        rows.append([f"**up, {kind}**", *map(_wall, columns, kinds["cold"])])
        rows += [
            [f"{stage.removesuffix(' on')}, {kind}", *(_stage(ups, number) for ups in columns)]
            for number, stage in enumerate(STAGES)
        ]
    return "".join(
        [
            "# A second `up`, with nothing to do\n\n",
            f"Made by `python bench/ready.py --cloud {options.cloud} --nodes "
            f"{' '.join(map(str, sizes))} --runs {options.runs}`: {os.cpu_count()} cores, "
            f"{platform.system()}, Python {platform.python_version()}, load average {load:.1f} at "
            "the start. Best of the runs in seconds, median in brackets; then the ratio of the "
            "bests to the cold one. The stand-in and all nodes share the cores with the client.\n",
            "\n| | " + " | ".join(heads) + " |\n|---|" + "---|" * len(sizes) + "\n",
            *("| " + " | ".join(row) + " |\n" for row in rows),
        ]
    )


def _wall(ups: Sequence[Up], cold: Sequence[Up]) -> str:
    best = min(up.wall for up in ups)
    median = statistics.median(up.wall for up in ups)
    return f"{best:.2f} ({median:.2f}) · {best / min(up.wall for up in cold):.2f} ×"


def _stage(ups: Sequence[Up], number: int) -> str:
    return f"{min(up.stages[number] for up in ups):.1f}"


if __name__ == "__main__":
    main()
