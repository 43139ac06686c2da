"""Time until a command that asks nobody has ended, as multiples of `python -c pass`; and `sky`'s.

    python -m venv sky && sky/bin/pip install skypilot
    python bench/startup.py --sky sky/bin/sky

All commands take turns within each round, so that a busy moment meets all of them alike. The CPU
time is the figure: others at work change it least. `launch` and `run` are the imports of what they
name; `status --offline` has a cluster with 100 runs to show. Writes bench/startup.md.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

BASE = "python -c pass"
TARGETS = {
    "cloudtrain --help": 4.0,
    "launch: imports": 6.0,
    "cloudtrain status --offline": 7.0,
    "cloudtrain plan local.yaml": 15.0,
    "cloudtrain gpus T4": 15.0,
    "run: imports": 20.0,
}
LAUNCH = """
import json, sys, time, pathlib, cloudtrain.core.codec, cloudtrain.core.parallel
import cloudtrain.ssh.keys, cloudtrain.core.model, cloudtrain.core.shell, cloudtrain.ssh.transport
"""
RUN = "import cloudtrain.cli.app, cloudtrain.cli.run, cloudtrain.commands.run"
AS_A_COMMAND = "import gc; from cloudtrain.cli.process import prepare; prepare(); {}; gc.freeze()"


class Took(NamedTuple):
    """Seconds of one process: by the clock, and of CPU."""

    wall: float
    cpu: float


def main() -> None:
    options = arguments()
    compileall.compile_dir(str(ROOT / "cloudtrain"), quiet=2)
    with tempfile.TemporaryDirectory() as home:
        make_records(Path(home))
        environment = {**os.environ, "CLOUDTRAIN_HOME": home}
        environment.pop("PYTHONPATH", None)
        if options.checkout:
            environment["PYTHONPATH"] = str(ROOT)
        times = measure(commands(options), options.rounds, environment)
    text = report(times, options)
    print(text)
    (ROOT / "bench" / "startup.md").write_text(text, encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sky", type=Path, help="the `sky` command of an environment of its own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--checkout", action="store_true", help="measure this checkout's code")
    return parser.parse_args()


def make_records(home: Path) -> None:
    os.environ["CLOUDTRAIN_HOME"] = str(home)
    from cloudtrain.core.events import RunEnded
    from cloudtrain.core.run_record import Run, RunAttempt, Task
    from cloudtrain.state import Records

    records = Records("mnist")
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    for number in range(100):
        run = Run(
            id=f"20261121-0624{number:02}-aaaa",
            cluster="mnist",
            command="python train.py",
            tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900),),
            state="succeeded",
            created=1795242244.0,
            ended=1795242304.0,
            attempts=(RunAttempt(number=1, started=1795242244.0, ended=1795242304.0),),
        )
        records.save_run(run)
        records.journal(RunEnded(run=run.id))


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    python = sys.executable
    ours = [str(Path(python).parent / "cloudtrain")]
    found = {
        BASE: [python, "-c", "pass"],
        "cloudtrain --help": [*ours, "--help"],
        "launch: imports": [python, "-c", LAUNCH],
        "cloudtrain status --offline": [*ours, "status", "--offline"],
        "cloudtrain plan local.yaml": [*ours, "plan", str(ROOT / "configs" / "local.yaml")],
        "cloudtrain gpus T4": [*ours, "gpus", "T4"],
        "run: imports": [python, "-c", AS_A_COMMAND.format(RUN)],
    }
    if options.sky:
        sky = options.sky.absolute()
        found["sky: python -c pass"] = [str(sky.parent / "python"), "-c", "pass"]
        found["sky --help"] = [str(sky), "--help"]
    return found


def measure(
    found: dict[str, list[str]], rounds: int, environment: dict[str, str]
) -> dict[str, list[Took]]:
    times: dict[str, list[Took]] = {name: [] for name in found}
    for number in range(rounds + 1):
        for name, command in found.items():
            took = run(command, environment)
            if number:  # the first one reads everything from disk
                times[name].append(took)
    return times


def run(command: list[str], environment: dict[str, str]) -> Took:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Took(time.perf_counter() - began, used.ru_utime + used.ru_stime)


def report(times: dict[str, list[Took]], options: argparse.Namespace) -> str:
    base = statistics.median(took.cpu for took in times[BASE])
    sky = " --sky sky/bin/sky" if options.sky else ""
    lines = [
        "# Start-up",
        "",
        f"`python bench/startup.py{sky}{' --checkout' if options.checkout else ''}`, "
        f"{options.rounds} rounds, commands in turns; {platform.python_implementation()} "
        f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{platform.system()}.",
        "",
        f"| command | median, ms | CPU, ms | × `{BASE}`, CPU | target |",
        "|---|---|---|---|---|",
    ]
    for name, each in times.items():
        wall = statistics.median(took.wall for took in each)
        cpu = statistics.median(took.cpu for took in each)
        target = f"≤ {TARGETS[name]:.0f} ×" if name in TARGETS else ""
        lines.append(
            f"| `{name}` | {wall * 1e3:.1f} | {cpu * 1e3:.1f} | {cpu / base:.1f} × | {target} |"
        )
    if options.sky:
        sky_help, ours = times["sky --help"], times["cloudtrain --help"]
        walls = [statistics.median(took.wall for took in each) for each in (sky_help, ours)]
        ratio = walls[0] / walls[1]
        lines += ["", f"`sky --help` takes {ratio:.0f} × the time of `cloudtrain --help`."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
