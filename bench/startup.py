"""Seconds until a command that asks nobody has ended: ours beside `python -c pass` and `sky`.

    python -m venv sky && sky/bin/pip install skypilot
    python bench/startup.py --sky sky/bin/sky

All commands take turns within each round, so that a busy moment meets all of them alike. Ours runs
as it is installed, from the `cloudtrain` script beside the Python that runs this; `status
--offline` has a cluster with five runs to show. Writes bench/startup.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

TARGETS = {
    "cloudtrain --help": 8.0,
    "cloudtrain status --offline": 15.0,
    "cloudtrain gpus T4": 25.0,
}
BASE = "python -c pass"


def main() -> None:
    options = arguments()
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
    for number in range(5):
        run = Run(
            id=f"20261121-06240{number}-aaaa",
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
    ours = [str(Path(sys.executable).parent / "cloudtrain")]
    found = {
        BASE: [sys.executable, "-c", "pass"],
        "cloudtrain --help": [*ours, "--help"],
        "cloudtrain status --offline": [*ours, "status", "--offline"],
        "cloudtrain gpus T4": [*ours, "gpus", "T4"],
    }
    if options.sky:
        sky = options.sky.absolute()
        found["sky: python -c pass"] = [str(sky.parent / "python"), "-c", "pass"]
        found["sky --help"] = [str(sky), "--help"]
    return found


def measure(
    found: dict[str, list[str]], rounds: int, environment: dict[str, str]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 1):
        for name, command in found.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            if number:  # the first one writes byte code
                times[name].append(time.perf_counter() - began)
    return times


def report(times: dict[str, list[float]], options: argparse.Namespace) -> str:
    base = statistics.median(times[BASE])
    sky = " --sky sky/bin/sky" if options.sky else ""
    lines = [
        "# Start-up",
        "",
        f"`python bench/startup.py{sky}{' --checkout' if options.checkout else ''}`, "
        f"{options.rounds} rounds, commands in turns; {platform.python_implementation()} "
        f"{platform.python_version()}, {os.cpu_count()} cores, {platform.system()}.",
        "",
        f"| command | median, ms | best, ms | × `{BASE}` | target |",
        "|---|---|---|---|---|",
    ]
    for name, seconds in times.items():
        median = statistics.median(seconds)
        target = f"≤ {TARGETS[name]:.0f} ×" if name in TARGETS else ""
        lines.append(
            f"| `{name}` | {median * 1e3:.1f} | {min(seconds) * 1e3:.1f} "
            f"| {median / base:.1f} × | {target} |"
        )
    if options.sky:
        ratio = statistics.median(times["sky --help"]) / statistics.median(
            times["cloudtrain --help"]
        )
        lines += ["", f"`sky --help` takes {ratio:.0f} × the time of `cloudtrain --help`."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
