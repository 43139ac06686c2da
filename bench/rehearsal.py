"""Other people's scripts under `cloudtrain rehearse --faults`, with TensorFlow on local nodes.

Writes bench/rehearsal.md. Each script of tests/strangers is as it was written, but for its number
of steps: a fault needs some seconds of training to come into.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.ports import free_ports
from tests.support.pythons import python

ROOT = Path(__file__).resolve().parent.parent
STRANGERS = ROOT / "tests" / "strangers"
ROWS = Path(__file__).with_suffix(".jsonl")
"""The last report of each script, so that several calls make one table."""
FAULTS = "kill,freeze,cut,preempt"
RESTARTS = 2
TWO: Mapping[str, Any] = {"chief": {}, "worker": {}}
PS: Mapping[str, Any] = {"chief": {}, "worker": {"count": 2}, "ps": {}}
ONE: Mapping[str, Any] = {"chief": {}}
HOSTS = "--ps_hosts={ps.hosts} --worker_hosts={worker.hosts} --job_name={role} --task_index={index}"
TIMEOUT = 1800.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script of someone else, and how it is run."""

    name: str
    strategy: str
    nodes: Mapping[str, Any]
    arguments: str = ""
    longer: tuple[str, str] | None = None
    """What stands in the script, and what a longer training has there."""
    checkpoints: str | None = None
    """Where the script saves what it restores itself; None: it restores nothing."""
    file: str = ""
    """Below tests/strangers, if it is not NAME.py."""
    program: str = ""
    setup: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


MULTI = "multi_worker_mirrored"
SCRIPTS = (
    Script(
        name="custom_loop",
        strategy=MULTI,
        nodes=TWO,
        longer=("= 3, 10", "= 40, 10"),
        checkpoints="output/ckpt",
    ),
    Script(
        name="keras_fit_experimental",
        strategy=MULTI,
        nodes=TWO,
        longer=("epochs=2", "epochs=14"),
    ),
    Script(
        name="parameter_server_v2",
        strategy="parameter_server",
        nodes=PS,
        longer=("range(3)", "range(80)"),
    ),
    Script(
        name="parameter_server_fit",
        strategy="parameter_server",
        nodes=PS,
        longer=("epochs=5,", "epochs=80,"),
    ),
    Script(
        name="mirrored_notebook",
        strategy="mirrored",
        nodes=ONE,
        longer=("epochs=3", "epochs=300"),
    ),
    Script(
        name="mirrored_custom_training",
        strategy="mirrored",
        nodes=ONE,
        longer=("EPOCHS = 3", "EPOCHS = 300"),
    ),
    Script(
        name="package",
        strategy=MULTI,
        nodes=TWO,
        file="package/trainer/task.py",
        program="-m trainer.task",
        arguments="--job-dir {output} --num-epochs 24",
    ),
    Script(
        name="with_evaluator",
        strategy=MULTI,
        nodes={**TWO, "evaluator": {}},
        longer=("epochs=3", "epochs=40"),
        checkpoints="ckpt",
        train={"evaluator_grace": "15s"},
    ),
    Script(
        name="estimator",
        strategy=MULTI,
        nodes=TWO,
        longer=("max_steps=60", "max_steps=3000"),
        setup={"tensorflow": "2.15", "python": "3.11"},
        checkpoints="output/estimator",
    ),
    Script(
        name="between_graph",
        strategy="custom",
        nodes={"ps": {}, "worker": {"count": 2}},
        arguments=f"{HOSTS} --log_dir={{output}} --train_steps 15000",
    ),
)


def main() -> int:
    """1 if a rehearsal came to no report."""
    options, untold = arguments(), 0
    chosen = [script for script in SCRIPTS if not options.only or script.name in options.only]
    for script in chosen:
        row = rehearsed(script, options.faults, options.seed)
        untold += row["report"] is None
        old = [json.loads(line) for line in lines_of(options.rows)]
        rows = [*(each for each in old if each["script"] != script.name), row]
        options.rows.write_text("".join(json.dumps(each) + "\n" for each in rows))
        options.rows.with_suffix(".md").write_text(table(rows))
    return int(untold > 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="these scripts; the others keep their rows")
    parser.add_argument("--faults", default=FAULTS)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rows", type=Path, default=ROWS, help="all reports; the table is beside")
    return parser.parse_args()


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def rehearsed(script: Script, faults: str, seed: int) -> dict[str, Any]:
    """What one rehearsal said, and how long it took."""
    words = ["rehearse", "--faults", faults, "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory(prefix="cloudtrain-rehearsal-") as name:
        folder = Path(name)
        config = written(script, folder)
        environment = {
            **os.environ,
            "CLOUDTRAIN_HOME": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
        }
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "cloudtrain", *words, str(config)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIMEOUT,
            check=False,
        )
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    print(script.name, done.returncode, done.stdout, done.stderr, sep="\n", flush=True)
    return {
        "script": script.name,
        "strategy": script.strategy,
        "commit": commit(),
        "seconds": round(time.monotonic() - begun),
        "exit": done.returncode,
        "report": report if "outcomes" in report else None,
        "error": next((x for x in done.stderr.splitlines() if x.startswith("error:")), None),
    }


def commit() -> str:
    """The commit of this checkout, that a row may be of an older one."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def written(script: Script, folder: Path) -> Path:
    """The code and the config of the script in a folder."""
    file = script.file or f"{script.name}.py"
    source = STRANGERS / file.partition("/")[0]
    code = folder / "code"
    for path in source.rglob("*.py") if source.is_dir() else [source]:
        text = path.read_text(encoding="utf-8")
        if script.longer is not None:
            assert script.longer[0] in text, script.name
            text = text.replace(*script.longer)
        target = code / (path.relative_to(source) if source.is_dir() else path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    local = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))
    setup = {**local["setup"], **script.setup}
    if "python" in setup:
        setup["python"] = python(int(setup["python"].partition(".")[2]))
    else:
        setup["keras"] = "legacy"
    config = folder / "cluster.yaml"
    values = {
        "name": script.name.replace("_", "-")[:20],
        "provider": "local",
        "strategy": script.strategy,
        "nodes": dict(script.nodes),
        "setup": setup,
        "code": {"path": str(code)},
        "train": {
            "command": f"python {script.program or file} {script.arguments}".strip(),
            "port": free_ports(16),
            "max_restarts": RESTARTS,
            "grace": "5s",
            **({"checkpoints": script.checkpoints} if script.checkpoints else {}),
            **script.train,
        },
        "artifacts": {"store": (folder / "store").as_uri()},
    }
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    return config


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    order = {script.name: number for number, script in enumerate(SCRIPTS)}
    lines = [
        "# Other people's scripts under faults",
        "",
        "Made by `python bench/rehearsal.py` (`--only NAME …` renews some): "
        f"`cloudtrain rehearse FILE --faults {FAULTS} --seed 7` of each script in tests/strangers, "
        f"with TensorFlow on {os.cpu_count()} cores with other work on them, "
        f"`train.max_restarts: {RESTARTS}`. Each script is as it was written, but for its number "
        "of steps; beside its strategy stands the commit that ran it. The columns are those of "
        "[docs/rehearsal.md](../docs/rehearsal.md); advice that is given for several faults of a "
        "script stands once.",
        "",
        "| script | fault | task | verdict | attempts | repeated | final loss | recovered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sentences = []
    for row in sorted(rows, key=lambda each: order[each["script"]]):
        report = row["report"]
        if report is None:
            lines.append(f"| **{row['script']}** | none | – | {row['error']} | – | – | – | – |")
            continue
        loss = cell(report["loss"])
        lines.append(
            f"| **{row['script']}** ({row['strategy']}; {row['commit']}) | none | – "
            f"| {report['seconds']:g} s | 1 | – | {loss} | – |"
        )
        lines += [outcome_line(outcome) for outcome in report["outcomes"]]
        sentences += said(row["script"], report["outcomes"])
    left = [script.name for script in SCRIPTS if script.name not in {r["script"] for r in rows}]
    missing = ["", f"Not run yet: {', '.join(left)}."] if left else []
    return "\n".join([*lines, *missing, "", "## What each was told", "", *sentences, ""])


def outcome_line(outcome: Mapping[str, Any]) -> str:
    again, unit = outcome["repeated"], outcome["unit"]
    cells = [
        "",
        outcome["fault"],
        outcome["task"],
        outcome["verdict"],
        str(outcome["attempts"]),
        "–" if again is None else f"{again} {unit}{'' if again == 1 else 's'}",
        cell(outcome["loss"]),
        "–" if outcome["recovered_after"] is None else f"{outcome['recovered_after']:g} s",
    ]
    return f"| {' | '.join(cells)} |"


def said(script: str, outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each cause and each advice, with the faults that it was said of."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        failed = outcome["verdict"] == "failed"
        texts = [f"change: {text}" for text in outcome["change"]]
        texts += [f"cause: {outcome['cause'].splitlines()[0]}"] if failed else []
        for text in texts:
            found.setdefault(text, []).append(outcome["fault"])
    return [f"- {script} ({', '.join(faults)}): {text}" for text, faults in found.items()]


def cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


if __name__ == "__main__":
    sys.exit(main())
