"""The same first steps and mistakes with cloudtrain, SkyPilot, dstack and Ray, without an account.

    python -m venv sky && sky/bin/pip install skypilot
    python -m venv dstack && dstack/bin/pip install dstack
    python -m venv ray && ray/bin/pip install 'ray[default]' boto3
    python bench/side_by_side.py --sky sky/bin/sky --dstack dstack/bin/dstack --ray ray/bin/ray

Each command runs alone, in a folder and a home of its own, without credentials. Written down are
the seconds (the best of three, or the one with a server that starts), the exit code, the lines that
are printed, whether one of them is a traceback, and whether the wrong word or the file's line is
named. A tool that has no such step, or needs a server or a network for it, is shown with what it
says. Writes side_by_side.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).with_suffix(".md")
OURS = """\
provider: gcp
project: p1
placement: [us-central1]
strategy: multi_worker_mirrored
nodes: {chief: {accelerator: T4:1}, worker: {accelerator: T4:1}}
train: {command: python train.py}
"""
SKY = "resources: {infra: gcp, accelerators: T4:1}\nnum_nodes: 2\nrun: python train.py\n"
DSTACK = "type: task\nname: t\nnodes: 2\ncommands: [python train.py]\nresources: {gpu: T4:1}\n"
RAY = (
    "cluster_name: t\nmax_workers: 1\nauth: {ssh_user: ubuntu}\n"
    "provider: {type: aws, region: us-east-1}\n"
)
CHECK = {
    "cloudtrain": "plan t.yaml",
    "sky": "launch --dryrun -y t.yaml",
    "dstack": "apply -y -f t.yaml",
    "ray": "up -y t.yaml",
}
"""How a tool reads its file without creating anything, or comes nearest to that."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that people do. `commands` and `texts` (of t.yaml) are by tool."""

    what: str
    commands: Mapping[str, str] = field(default_factory=lambda: CHECK)
    texts: Mapping[str, str] = field(default_factory=dict)
    names: str = ""
    """What a good answer has: the wrong word, or the line."""


def all_texts(old: str, new: str) -> dict[str, str]:
    texts = {"cloudtrain": OURS, "sky": SKY, "dstack": DSTACK, "ray": RAY}
    return {tool: text.replace(old, new) for tool, text in texts.items()}


STEPS = (
    Step(what="`--help`", commands=dict.fromkeys(CHECK, "--help")),
    Step(what="a file that is right", texts=all_texts("\0", ""), names=r"\$|T4|nodes"),
    Step(what="no such file", texts={}, names=r"t\.yaml"),
    Step(
        what="a misspelt field",
        texts={
            "cloudtrain": OURS.replace("train:", "trian:"),
            "sky": SKY.replace("num_nodes", "num_node"),
            "dstack": DSTACK.replace("commands", "comands"),
            "ray": RAY.replace("max_workers", "max_worker"),
        },
        names=r"trian|num_node\b|comands|max_worker\b",
    ),
    Step(
        what="an unclosed bracket",
        texts={
            "cloudtrain": OURS.replace("[us-central1]", "[us-central1"),
            "sky": SKY.replace("T4:1}", "T4:1"),
            "dstack": DSTACK.replace("train.py]", "train.py"),
            "ray": RAY.replace("us-east-1}", "us-east-1"),
        },
        names=r"line \d|yaml:\d",
    ),
    Step(what="an unknown GPU", texts=all_texts("T4:1", "V10000:1"), names="V10000"),
    Step(
        what="an unknown command",
        commands=dict.fromkeys(CHECK, "tarin"),
        names=r"did you mean|Did you mean|usage|No such command",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    seconds: float
    code: int | None
    text: str
    """Without colours."""

    def cell(self, step: Step) -> str:
        if self.code is None:
            return f"no end within {self.seconds:.0f} s"
        lines = [line for line in self.text.splitlines() if line.strip()]
        traceback = ", a traceback" if any("Traceback" in line for line in lines) else ""
        named = re.search(step.names, self.text) if step.names else None
        told = "" if not step.names else ", named" if named else ", not named"
        return f"{self.seconds:.2f} s, exit {self.code}, {len(lines)} lines{traceback}{told}"

    @property
    def last(self) -> str:
        lines = [" ".join(line.split()) for line in self.text.splitlines() if line.strip()]
        return (lines[-1] if lines else "")[:160].replace("|", "\\|")


def answer(program: str, tool: str, step: Step) -> Answer:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if step.texts:
            (folder / "t.yaml").write_text(step.texts[tool], encoding="utf-8")
        (folder / "train.py").write_text("", encoding="utf-8")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "COLUMNS": "100",
            "LANG": "C.UTF-8",
        }
        times = []
        for _ in range(3 if step.what == "`--help`" else 1):
            begun = time.monotonic()
            try:
                done = subprocess.run(
                    [program, *step.commands[tool].split()],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    stdin=subprocess.DEVNULL,
                    check=False,
                    timeout=120,
                )
            except subprocess.TimeoutExpired:
                return Answer(seconds=120, code=None, text="")
            times.append(time.monotonic() - begun)
        if tool == "sky":  # its server goes on otherwise
            subprocess.run(
                [program, "api", "stop"], env=environment, capture_output=True, check=False
            )
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).replace(name, "FOLDER")
        return Answer(seconds=min(times), code=done.returncode, text=text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for tool in ("sky", "dstack", "ray"):
        parser.add_argument(f"--{tool}", type=Path, required=True)
    options = parser.parse_args()
    ours = Path(sys.executable).with_name("cloudtrain")
    programs = {"cloudtrain": ours, **vars(options)}
    rows, said = [], []
    for step in STEPS:
        answers = {
            tool: answer(str(Path(program).absolute()), tool, step)
            for tool, program in programs.items()
        }
        rows.append(f"| {step.what} | " + " | ".join(a.cell(step) for a in answers.values()) + " |")
        said += [f"| {step.what} | {tool} | {each.last} |" for tool, each in answers.items()]
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            "# The same first steps with other tools",
            "",
            f"Written by bench/side_by_side.py, {time.strftime('%Y-%m-%d')}: {versions(options)}.",
            "No account, and no network beyond a package index: SkyPilot downloads its catalogue",
            "at first use, dstack asks its server, Ray asks the cloud, and none of the three could",
            "do so here: what they say of files is what a newcomer without a login sees.",
            "`named`: the wrong word, the line of the file, or the way on is in the answer.",
            "",
            f"| | {' | '.join(programs)} |",
            "|---" * (len(programs) + 1) + "|",
            *rows,
            "",
            "The last line of each:",
            "",
            "| | tool | |",
            "|---|---|---|",
            *said,
            "",
        ]
    )
    RESULTS.write_text(text, encoding="utf-8")


def versions(options: argparse.Namespace) -> str:
    found = []
    for tool, package in (("sky", "skypilot"), ("dstack", "dstack"), ("ray", "ray")):
        python = Path(getattr(options, tool)).absolute().with_name("python")
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        found.append(f"{package} {done.stdout.strip()}")
    return ", ".join(found)


if __name__ == "__main__":
    main()
