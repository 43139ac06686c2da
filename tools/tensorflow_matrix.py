"""Trains each TensorFlow release on each Python by each strategy, and writes docs/versions.md.

    python tools/tensorflow_matrix.py [--releases 2.18,2.21] [--strategies mirrored]
        [--pythons newest] [--limit 1] [--again] [--list]

Each cell is a `cloudtrain run` on nodes of this machine (`provider: local`), in the environment
that the playbook makes of the package index; a CPU build is about 1.5 GB. Results are kept in
docs/versions.json after each cell: run again, it goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cache
from itertools import islice
from pathlib import Path

import yaml

from cloudtrain.playbooks import tensorflow_releases
from cloudtrain.training.horovod import LIBRARY as HOROVOD

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "versions.json"
SCRIPT = Path(__file__).parent / "matrix_training.py"

RELEASES = (*(f"2.{minor}" for minor in range(21, 10, -1)), "2.8", "2.4", "1.15")
NODES: Mapping[str, Mapping[str, int]] = {
    "multi_worker_mirrored": {"chief": 1, "worker": 1},
    "parameter_server": {"chief": 1, "worker": 1, "ps": 1},
    "mirrored": {"chief": 1},
    "one_device": {"chief": 1},
    "central_storage": {"chief": 1},
    "custom": {"chief": 1, "worker": 1, "ps": 1},
    "horovod": {"worker": 2},
}
"""By strategy, in the order in which they are run."""
LIMIT = 1800.0
"""Seconds for one cell, with its environment."""
NOTHING_TO_DO = 3
"""Exit code where all that was asked for has a result: a loop of `--limit 1` ends there."""


@dataclass(frozen=True, order=True)
class Cell:
    release: str
    python: str
    strategy: str

    @property
    def name(self) -> str:
        return f"{self.release} {self.python} {self.strategy}"


@dataclass(frozen=True, kw_only=True)
class Result:
    date: str
    seconds: float
    """Of `cloudtrain run`, from nothing to nothing."""
    made: bool
    """True if the environment was made in it."""
    passed: bool
    text: str = ""
    """Why it failed, in one line."""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def absent(cell: Cell) -> str | None:
    """Why TensorFlow or Horovod has no such cell; None where it has."""
    release = number(cell.release)
    first, last = HOROVOD.tensorflow
    if cell.strategy == "custom" and release > (2, 15):
        return "no tf.estimator"
    if cell.strategy == "horovod" and not first <= release <= last:
        return "Horovod does not build with it"
    if cell.strategy == "horovod" and number(cell.python) > number(HOROVOD.python):
        return "Horovod's launcher needs distutils"
    if cell.strategy == "parameter_server" and release < (2, 5):
        return "`fit` knows it from 2.5 on"
    if cell.strategy == "multi_worker_mirrored" and release < (2, 0):
        return "`fit` knows it from 2.0 on"
    return None


def pythons(release: str) -> list[str]:
    """With wheels of the release, the newest first."""
    first, last = map(number, tensorflow_releases.pythons(release))
    return [f"3.{minor}" for minor in range(last[1], first[1] - 1, -1)]


@cache
def interpreter(version: str) -> str | None:
    """A Python of this version that makes environments: in PATH, or pyenv's."""
    places = [shutil.which(f"python{version}")]
    places += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    check = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for place in filter(None, places):
        done = subprocess.run([place, "-c", check], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return place
    return None


def cells(releases: Sequence[str], strategies: Sequence[str], *, newest: bool) -> Iterator[Cell]:
    """The newest Python of every release first; what shares an environment is together."""
    ranks = 1 if newest else max(len(pythons(release)) for release in releases)
    for rank in range(ranks):
        for release in releases:
            for python in pythons(release)[rank : rank + 1]:
                each = (Cell(release, python, strategy) for strategy in strategies)
                yield from (cell for cell in each if absent(cell) is None)


# ── one cell ─────────────────────────────────────────────────────────────────


def train(cell: Cell, python: str, kept: Path, folder: Path) -> Result:
    """Run it in a folder of its own in `folder`; only the environments in `kept` stay."""
    before = {each.parent.name for each in kept.glob("venvs/*/.complete")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix="cell-") as work:
        config = write_config(cell, python, Path(work))
        environ = {
            **os.environ,
            "CLOUDTRAIN_HOME": f"{work}/home",
            "CLOUDTRAIN_CACHE": str(kept),
            "NO_COLOR": "1",
        }
        code, out, err = run_bounded(config, environ, Path(work))
        landed = next(Path(work).glob("store/**/result.json"), None)
        told = json.loads(landed.read_text()) if landed else {}
    passed = code == 0 and bool(told)
    return Result(
        date=datetime.now(timezone.utc).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        made=bool({each.parent.name for each in kept.glob("venvs/*/.complete")} - before),
        passed=passed,
        text="" if passed else cause(code, out, err),
        versions=told.get("versions", {}),
        machine=machine(),
    )


def write_config(cell: Cell, python: str, work: Path) -> Path:
    code = work / "code"
    code.mkdir()
    shutil.copy(SCRIPT, code / "train.py")
    role = "worker" if cell.strategy == "horovod" else "chief"
    command = f"python train.py {cell.strategy} --output {{output}} --shared {work}/shared"
    config = {
        "name": "matrix",
        "provider": "local",
        "strategy": cell.strategy,
        "nodes": {role: {"count": count} for role, count in NODES[cell.strategy].items()},
        "setup": {"tensorflow": cell.release, "python": python},
        "code": {"path": str(code)},
        "train": {
            "command": command,
            "env": {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
            "start_timeout": "300s",
            **({"tf_config": "estimator"} if cell.strategy == "custom" else {}),
        },
        "artifacts": {"store": f"file://{work}/store", "require": ["output/result.json"]},
    }
    if role == "worker":
        config["artifacts"] = {"store": f"file://{work}/store", "paths": ["output/**"]}
    path = work / "matrix.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def run_bounded(config: Path, environ: Mapping[str, str], work: Path) -> tuple[int, str, str]:
    """Interrupt it after LIMIT, as Ctrl-C does: it deletes its nodes."""
    asked = [sys.executable, "-m", "cloudtrain", "run", str(config), "--yes"]
    process = subprocess.Popen(
        asked,
        cwd=work,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        if isinstance(error, KeyboardInterrupt):
            raise
        return 124, out, f"{err}\nerror: not done after {LIMIT:.0f} s"
    return process.returncode, out, err


def cause(code: int, out: str, err: str) -> str:
    """The error of cloudtrain, or else the last line."""
    print(out[-3000:], err[-6000:], sep="\n", file=sys.stderr)
    lines = [line.strip() for line in (out + "\n" + err).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("error:")]
    return (named or lines or [f"exit code {code}"])[-1][:300]


def machine() -> str:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} × {cpu}, {platform.system()}"


def make_room(own: Path, environments: int) -> None:
    """Delete the environments that were used the longest ago, but not `own`."""
    others = sorted(
        (each for each in own.parent.iterdir() if each != own),
        key=lambda each: each.stat().st_mtime,
    )
    for each in others[: max(0, len(others) + 1 - environments)]:
        shutil.rmtree(each, ignore_errors=True)


# ── results ──────────────────────────────────────────────────────────────────


def read(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    return {name: Result(**kept) for name, kept in json.loads(path.read_text()).items()}


def write(results: Mapping[str, Result], path: Path) -> None:
    text = json.dumps({name: asdict(results[name]) for name in sorted(results)}, indent=1)
    for place, content in ((path, f"{text}\n"), (path.with_suffix(".md"), page(results))):
        new = place.with_suffix(f"{place.suffix}.new")
        new.write_text(content, encoding="utf-8")
        new.replace(place)


HEAD = """\
# TensorFlow versions that were run

<!-- written by tools/tensorflow_matrix.py: run that again instead of editing this page -->

Each figure is the seconds of a `cloudtrain run` on nodes of one machine without GPUs, from no nodes
to no nodes, with `*` including the environment. It is the environment that the
[playbook](playbooks.md#tensorflow) makes, a small real training by that strategy, and its landed
result. It fails if its loss does not halve, if a replica is missing, or if it cannot save. `custom`
is an Estimator with chief, worker and ps. Other programs were running: do not compare releases.
"""


def page(results: Mapping[str, Result]) -> str:
    """A line for each release and Python with a result, and one for each failure."""
    found = [results[cell.name] for cell in every_cell() if cell.name in results]
    days, machines = sorted({each.date for each in found}), sorted({each.machine for each in found})
    lines = [HEAD]
    if found:
        passed = sum(each.passed for each in found)
        when = " to ".join(dict.fromkeys([days[0], days[-1]]))
        where = ", ".join(machines)
        lines.append(f"{passed} of {len(found)} cells passed; {when}, on {where}.\n")
    failures: list[str] = []
    left = 0
    for release in RELEASES:
        for python in pythons(release):
            row = [Cell(release, python, strategy) for strategy in NODES]
            row = [cell for cell in row if absent(cell) is None]
            known = {cell: results[cell.name] for cell in row if cell.name in results}
            left += len(row) - len(known)
            if known:
                lines.append(line(release, python, known, failures))
    reasons = dict.fromkeys(
        f"{cell.strategy} ({why})" for cell in every_cell() if (why := absent(cell)) is not None
    )
    lines += ["", *failures] if failures else []
    lines += [f"\nNot run yet: {left} others. Not there are:\n"]
    return "\n".join([*lines, *(f"- {reason}" for reason in reasons), ""])


def line(release: str, python: str, row: Mapping[Cell, Result], failures: list[str]) -> str:
    """The versions of a release on one Python, and each strategy's seconds or failure."""
    versions = {name: text for each in row.values() for name, text in each.versions.items()}
    first = f"{versions.pop('tensorflow', release)}, Python {versions.pop('python', python)}"
    told = ", ".join(f"{name} {text}" for name, text in versions.items() if name in PACKAGES)
    runs = ", ".join(word(cell, result, failures) for cell, result in row.items())
    return f"- **{first}**{f', {told}' if told else ''}:\n  {runs}"


PACKAGES = ("keras", "tf-keras", "numpy", "protobuf", "h5py")


def word(cell: Cell, result: Result, failures: list[str]) -> str:
    if result.passed:
        return f"{cell.strategy} {result.seconds:.0f} s{'*' if result.made else ''}"
    failures.append(f"{len(failures) + 1}. {cell.name}: {result.text}")
    return f"{cell.strategy} failed ({len(failures)})"


def every_cell() -> Iterator[Cell]:
    for release in RELEASES:
        for python in pythons(release):
            yield from (Cell(release, python, strategy) for strategy in NODES)


# ── the command ──────────────────────────────────────────────────────────────


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--releases", default=",".join(RELEASES), help="such as 2.18,2.21")
    parser.add_argument("--strategies", default=",".join(NODES), help="such as mirrored")
    parser.add_argument("--pythons", default="all", help="newest, all, or such as 3.10,3.11")
    parser.add_argument("--limit", type=int, help="end after so many cells")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--failed", action="store_true", help="what failed, again")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--folder", type=Path, help="for environments and runs")
    parser.add_argument("--environments", type=int, default=3, help="to keep: 1 to 3 GB each (3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the JSON beside the page")
    return parser.parse_args(arguments)


def wanted_cells(asked: argparse.Namespace, results: Mapping[str, Result]) -> Iterator[Cell]:
    """Cells that are wanted and have no result yet, on a Python of this machine."""
    releases, strategies = asked.releases.split(","), asked.strategies.split(",")
    for cell in cells(releases, strategies, newest=asked.pythons == "newest"):
        if asked.pythons not in ("newest", "all") and cell.python not in asked.pythons.split(","):
            continue
        known = results.get(cell.name)
        done = known is not None and (known.passed or not asked.failed)
        if (asked.again or not done) and interpreter(cell.python) is not None:
            yield cell


def main(arguments: Sequence[str]) -> int:
    asked = options(arguments)
    folder = asked.folder or Path(tempfile.gettempdir()) / "tensorflow-matrix"
    results = read(asked.results)
    if asked.page:
        write(results, asked.results)
        return 0
    todo = list(islice(wanted_cells(asked, results), asked.limit))
    if asked.list:
        print("\n".join(cell.name for cell in todo))
        return 0
    for cell in todo:
        own = folder / "environments" / f"{cell.release}-{cell.python}"
        own.mkdir(parents=True, exist_ok=True)
        make_room(own, asked.environments)
        print(f"{cell.name} …", file=sys.stderr, flush=True)
        result = train(cell, interpreter(cell.python) or "", own, folder)
        write({**read(asked.results), cell.name: result}, asked.results)
        words = "passed" if result.passed else result.text
        print(f"  {words} ({result.seconds:.0f} s)", file=sys.stderr, flush=True)
    return 0 if todo else NOTHING_TO_DO


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
