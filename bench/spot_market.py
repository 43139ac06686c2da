"""Does a run end in a market that takes a node every minute, and what does that cost?

    python bench/spot_market.py                      # as root: the stand-in boots real nodes
    python bench/spot_market.py --cloud gcp aws --every 60 40 --dry 30 --seed 3

Three spot nodes behind a cloud's stand-in train together (tests/data/rank.py, without TensorFlow)
and save a checkpoint every few steps. Every `--every` seconds the cloud takes one of them, chosen
at random, without a notice, and has no room for another one for `--dry` seconds. `cloudtrain run`
has to bring the run to its end and to leave nothing. Its own report says what it cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.standins.cloud import Cloud, running  # noqa: E402
from tests.standins.nodes import Nodes, unavailable  # noqa: E402
from tests.support.cloud_user import READY, Account  # noqa: E402
from tests.support.project import Project, until  # noqa: E402
from tests.support.three_clouds import NO_ROOM, PLACES  # noqa: E402

LIMIT = 3600.0
"""Seconds after which the run is given up."""


class Market(threading.Thread):
    """Takes a node every so often until it is told to end."""

    def __init__(self, account: Account, options: argparse.Namespace, every: float) -> None:
        super().__init__(daemon=True)
        self._every = every
        self._cloud: Cloud = account.cloud
        self._nodes, self._options = account.nodes, options
        self._chance = random.Random(options.seed)
        self._over = threading.Event()
        self.taken: list[str] = []

    def run(self) -> None:
        while not self._over.wait(self._every):
            names = sorted(self._nodes.running())
            if not names:
                continue
            name = self._chance.choice(names)
            self._cloud.set(capacity=NO_ROOM[self._cloud.name])
            with suppress(HTTPError):  # it was deleted a moment ago
                self._cloud.tell("interrupt", name=name)
                self.taken.append(name)
            print(f"{time.strftime('%H:%M:%S')} took {name}", file=sys.stderr, flush=True)
            self._over.wait(self._options.dry)
            self._cloud.set(capacity={})

    def end(self) -> None:
        self._over.set()
        self.join()


def main() -> None:
    options = _options()
    if reason := unavailable():
        sys.exit(reason)
    load, columns = os.getloadavg()[0], dict[str, dict[str, str]]()
    for name, every in itertools.product(options.cloud, options.every):
        columns[f"{name}, {every:g} s"] = _trial(options, name, every)
        options.output.write_text(_report(options, load, columns))
    print(_report(options, load, columns))
    sys.exit(any(rows["left in the account"] != "nothing" for rows in columns.values()))


def _trial(options: argparse.Namespace, name: str, every: float) -> dict[str, str]:
    """One run in a market that takes a node each `every` seconds: what came of it, in words."""
    with (
        tempfile.TemporaryDirectory(prefix="spot-market-") as folder,
        Nodes() as nodes,
        running(name, nodes=nodes) as cloud,
    ):
        project = Project(Path(folder) / "project")
        project.environment.update(cloud.environment)
        account = Account(project, cloud, nodes)
        market = Market(account, options, every)
        process = project.start("run", _config(account, options), "--json")
        began = time.monotonic()
        until(lambda: "cluster formed" in project.stderr, LIMIT)  # `up` itself starts in peace
        market.start()
        try:
            code = process.wait(timeout=LIMIT)
        finally:
            process.kill()
            market.end()
            print(project.stderr, file=sys.stderr)
        took, held = time.monotonic() - began, cloud.holdings()
        (path,) = project.store.glob("*/report.json")
        return _rows(options, took, code, market, held, json.loads(path.read_text()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cloud", nargs="+", choices=READY, default=["gcp"])
    parser.add_argument(
        "--every", type=float, nargs="+", default=[60.0], help="seconds between two nodes"
    )
    parser.add_argument("--dry", type=float, default=10.0, help="seconds without room after each")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds for each step")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    return parser.parse_args()


def _config(account: Account, options: argparse.Namespace) -> Path:
    command = (
        f"python3 rank.py --output {{output}} --steps {options.steps} --pause {options.pause} "
        f"--save-every {options.save_every}"
    )
    file = account.config(
        roles={"chief": 1, "worker": 2},
        placement=[PLACES[account.cloud.name]],
        train={"command": command, "max_restarts": 1000},
        artifacts={"store": account.project.store.as_uri(), "every": "5s"},
    )
    values = yaml.safe_load(file.read_text())
    for group in values["nodes"].values():
        group["spot"] = True
    file.write_text(yaml.safe_dump(values))
    return file


def _rows(
    options: argparse.Namespace,
    took: float,
    code: int,
    market: Market,
    held: list[str],
    report: dict[str, Any],
) -> dict[str, str]:
    lost, undisturbed = report["lost"] or {}, options.steps * options.pause
    return {
        "the run": f"{report['run']['state']}, exit code {code}",
        "left in the account": ", ".join(held) or "nothing",
        "nodes taken": str(len(market.taken)),
        "attempts": str(len(report["run"]["attempts"])),
        "steps": f"{options.steps}, and {lost.get('repeated') or 0} again "
        f"({_seconds(lost.get('repeated_seconds'))}, {_dollars(lost.get('repeated_cost'))})",
        "between attempts": f"{_seconds(lost.get('between_seconds'))}, "
        f"{_dollars(lost.get('between_cost'))}",
        "from `run` to its end": f"{took:.0f} s; {undisturbed:.0f} s are its steps alone",
        "cost of the cluster": f"{_dollars(report['cost'])}, at the prices of the packaged table",
    }


def _report(options: argparse.Namespace, load: float, columns: dict[str, dict[str, str]]) -> str:
    every = " ".join(f"{each:g}" for each in options.every)
    names = list(next(iter(columns.values())))
    return "".join(
        [
            "# A spot market that takes a node every minute\n\n",
            f"Made by `python bench/spot_market.py --cloud {' '.join(options.cloud)} "
            f"--every {every} --dry {options.dry:g} --steps {options.steps} "
            f"--pause {options.pause:g} --save-every {options.save_every} --seed {options.seed}`: "
            f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
            f"load average {load:.1f} at the start. The script's docstring says what is done; "
            "steps, times and $ are those of the run's own report.\n\n",
            "The scale: nodes of the stand-in boot in a few seconds and need no setup, where those "
            "of a cloud take minutes. A minute here is therefore rather half an hour there; where "
            "a node is taken more often than it takes to be ready, no run ends.\n\n",
            f"| a node each | {' | '.join(columns)} |\n",
            "|---|" + "---|" * len(columns) + "\n",
            *(
                f"| {name} | {' | '.join(rows[name] for rows in columns.values())} |\n"
                for name in names
            ),
        ]
    )


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.0f} s"


def _dollars(cost: dict[str, float | None] | None) -> str:
    if cost is None or cost["most"] is None:
        return "$ not known"
    least, most = cost["least"] or 0.0, cost["most"]
    return f"{most:.4f} $" if least == most else f"{least:.4f} to {most:.4f} $"


if __name__ == "__main__":
    main()
