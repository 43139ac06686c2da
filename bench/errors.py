"""Sixty mistakes that people make, and what they are told.

    python bench/errors.py

renews errors.md. Each case is run as a user would: the command itself, in a folder of its own,
without credentials and without a network beyond this machine. Computed are the exit code, whether a
line is named where the fault is in a file, whether a next step is named, and that there is no
traceback. tests/integration/test_mistakes.py runs the same cases.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_suffix(".md")

GOOD = """\
name: demo
provider: local
strategy: multi_worker_mirrored
nodes:
  chief: {}
  worker: {count: 2}
setup:
  tensorflow: "2.21"
code:
  path: .
train:
  command: python train.py --output {output}
artifacts:
  store: file:///tmp/cloudtrain-errors
"""
CLOUD = GOOD.replace("provider: local", "provider: gcp\nproject: p1\nplacement: [us-central1-a]")
CLOUD = CLOUD.replace("chief: {}", "chief: {accelerator: T4:1}")


NEXT_STEP = re.compile(
    r"hint: |did you mean|`cloudtrain |: .*\b(must|needs|add|set|use|remove|save|check|indent)\b"
    r"|the roles are|has wheels for|is for parameter_server|relative to the config"
)
"""What to write or do instead, in any of the forms that messages have."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mistake. `text` is the config in demo.yaml; `files` are further files."""

    what: str
    command: str
    text: str | bytes | None = GOOD
    files: Mapping[str, str] = field(default_factory=lambda: {"train.py": "import tensorflow\n"})
    environment: Mapping[str, str] = field(default_factory=dict)
    in_file: bool = False
    """The fault is in demo.yaml, so its line must be named."""
    code: int = 2
    said: str = ""
    """Words that must be there, if it is no error but a note."""


@dataclass(frozen=True, kw_only=True)
class Told:
    case: Case
    code: int
    text: str

    @property
    def faults(self) -> list[str]:
        found = []
        if self.code != self.case.code:
            found.append(f"exit code {self.code}, not {self.case.code}")
        if "Traceback" in self.text:
            found.append("traceback")
        if self.case.in_file and not re.search(r"demo\.yaml:\d+", self.text):
            found.append("no line")
        if self.case.said not in self.text:
            found.append(f"not said: {self.case.said}")
        if not self.case.said and not NEXT_STEP.search(self.text):
            found.append("no next step")
        return found


def edit(old: str, new: str, text: str = GOOD) -> str:
    assert old in text, old
    return text.replace(old, new, 1)


def config(what: str, old: str, new: str, command: str = "plan demo.yaml", **more: object) -> Case:
    return Case(what=what, command=command, text=edit(old, new), in_file=True, **more)  # type: ignore[arg-type]


def cloud(what: str, old: str, new: str, command: str = "plan demo.yaml", **more: object) -> Case:
    text = edit(old, new, CLOUD)
    return Case(what=what, command=command, text=text, in_file=True, **more)  # type: ignore[arg-type]


CASES = (
    # YAML
    Case(
        what="unclosed brace",
        command="plan demo.yaml",
        text=edit("{count: 2}", "{count: 2"),
        in_file=True,
    ),
    Case(what="a list as file", command="plan demo.yaml", text="- a\n- b\n", in_file=True),
    Case(what="a binary file", command="plan demo.yaml", text=bytes(range(256))),
    Case(what="an empty file", command="plan demo.yaml", text=""),
    Case(what="a tab", command="plan demo.yaml", text=edit("  chief", "\tchief"), in_file=True),
    Case(what="a key twice", command="plan demo.yaml", text=GOOD + "name: other\n", in_file=True),
    Case(what="not UTF-8", command="plan demo.yaml", text=b"name: caf\xe9\n"),
    Case(what="no such file", command="plan dem.yaml"),
    Case(what="the other ending", command="plan demo.yml"),
    Case(what="a folder as FILE", command="plan ."),
    # fields
    config("misspelt section", "train:", "trian:"),
    config("misspelt field", "command:", "comand:"),
    config("misspelt strategy", "multi_worker_mirrored", "multi_worker_miror"),
    config("misspelt provider", "provider: local", "provider: loca"),
    config("a word as count", "count: 2", "count: two"),
    config("a negative count", "count: 2", "count: -1"),
    config("a ps in a mirrored cluster", "worker: {count: 2}", "worker: {count: 2}\n  ps: {}"),
    config("a role that the strategy lacks", "worker: {count: 2}", "wroker: {count: 2}"),
    config("an invalid name", "name: demo", "name: Demo_1"),
    config("a store without scheme", "file:///tmp/cloudtrain-errors", "/tmp/results"),
    config("a bucket name that is too short", "file:///tmp/cloudtrain-errors", "gs://b/p"),
    config("a word as duration", "train:\n", "train:\n  deadline: soon\n"),
    config("a variable that is not set", "name: demo", "name: ${NO_SUCH_NAME}"),
    config("an unknown placeholder of a role", "{output}", "{output} --ps {ps.hosts}"),
    config("a port that is too high", "train:\n", "train:\n  port: 80000\n"),
    config("a secret with a default", "artifacts:", "secrets:\n  KEY: ${KEY:-x}\nartifacts:"),
    config("a pattern for files elsewhere", "store: file", "paths: [../x]\n  store: file"),
    # software and code
    Case(
        what="a TensorFlow newer than this version knows: a note",
        command="plan demo.yaml",
        text=edit('"2.21"', '"2.99"'),
        code=0,
        said="newer than the table",
    ),
    config("an unknown Python", '"2.21"', '"2.21"\n  python: "3.2"'),
    config("a missing requirements file", '"2.21"', '"2.21"\n  requirements: reqs.txt'),
    Case(
        what="a missing code folder",
        command="check demo.yaml",
        text=edit("path: .", "path: ./nowhere"),
    ),
    Case(
        what="a misspelt script",
        command="check demo.yaml",
        text=edit("train.py", "trian.py"),
        code=1,
    ),
    Case(
        what="a git repository that is not there",
        command="check demo.yaml",
        text=edit("path: .", "git: file:///nowhere.git\n  ref: main"),
    ),
    # clouds
    cloud("a misspelt zone", "us-central1-a", "us-centrall-a"),
    cloud("an unknown accelerator", "T4:1", "V10000:1"),
    cloud("a retired GPU", "T4:1", "K80:1"),
    cloud("more GPUs than a machine has", "T4:1", "T4:64"),
    Case(
        what="a misspelt machine: a note",
        command="plan demo.yaml",
        text=edit("accelerator: T4:1", "machine: n1-standrd-4", CLOUD),
        code=0,
        said="did you mean n1-standard-4?",
    ),
    Case(
        what="another cloud's machine: a note",
        command="plan demo.yaml",
        text=edit("accelerator: T4:1", "machine: p3.2xlarge", CLOUD),
        code=0,
        said="this is a machine of aws",
    ),
    cloud("a zone that is no list", "[us-central1-a]", "us-central1-a"),
    Case(what="no credentials of Google", command="check demo.yaml", text=CLOUD, code=4),
    Case(
        what="a broken key file",
        command="check demo.yaml",
        text=CLOUD,
        code=4,
        files={"train.py": "", "key.json": "{"},
        environment={"GOOGLE_APPLICATION_CREDENTIALS": "key.json"},
    ),
    Case(
        what="`hosts` without hosts",
        command="plan demo.yaml",
        text=edit("provider: local", "provider: hosts"),
    ),
    # commands
    Case(what="launch (SkyPilot)", command="launch demo.yaml"),
    Case(what="queue (SkyPilot)", command="queue"),
    Case(what="ps (dstack)", command="ps"),
    Case(what="apply (dstack)", command="apply -f demo.yaml"),
    Case(what="destroy (Terraform)", command="destroy demo"),
    Case(what="a misspelt command", command="tarin demo.yaml"),
    Case(what="a misspelt flag", command="up demo.yaml --yse"),
    Case(what="an unknown shell", command="completion tcsh"),
    Case(what="an unknown page", command="docs comands"),
    Case(what="train before up", command="train demo.yaml"),
    Case(what="down of an unknown cluster", command="down dem"),
    Case(what="logs without a run", command="logs demo.yaml"),
    Case(what="logs of an unknown run", command="logs demo.yaml --run 20260101-000000-aaaa"),
    Case(what="ssh without a cluster", command="ssh demo worker0"),
    Case(what="fetch of nothing", command="fetch demo.yaml"),
    Case(
        what="status of a store that is not there",
        command="status --store file:///not/there",
        code=5,
    ),
    Case(
        what="a store that cannot be written",
        command="check demo.yaml",
        code=5,
        text=edit("file:///tmp/cloudtrain-errors", "file:///proc/nowhere"),
    ),
    Case(what="--set of an unknown field", command="plan demo.yaml --set nodes.worker.cuont=4"),
    Case(what="--since without unit", command="logs demo.yaml --since yesterday"),
    Case(what="an --env-file that is not there", command="plan demo.yaml --env-file none.env"),
    Case(
        what="a state folder that cannot be written",
        command="up demo.yaml --yes",
        environment={"CLOUDTRAIN_HOME": "/proc/nowhere"},
    ),
)


def run(case: Case) -> Told:
    with tempfile.TemporaryDirectory(prefix="errors-") as name:
        folder = Path(name)
        if case.text is not None:
            text = case.text if isinstance(case.text, bytes) else case.text.encode()
            (folder / "demo.yaml").write_bytes(text)
        for path, content in case.files.items():
            (folder / path).write_text(content)
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
        environment = {
            **kept,
            "HOME": name,
            "CLOUDTRAIN_HOME": f"{name}/state",
            "CLOUDTRAIN_METADATA": "http://127.0.0.1:9",
            "GCE_METADATA_HOST": "127.0.0.1:9",
            "NO_GCE_CHECK": "true",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            **case.environment,
        }
        done = subprocess.run(
            [sys.executable, "-m", "cloudtrain", *case.command.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=120,
        )
        text = (done.stdout + done.stderr).replace(name, "FOLDER")
        return Told(case=case, code=done.returncode, text=text.strip())


def message(told: Told) -> str:
    """What matters of it: the error, or the finding or note that is one."""
    lines = told.text.splitlines()
    if told.case.said:
        return next((line.strip() for line in lines if told.case.said in line), "")
    begins = ("error:", "FAIL")
    first = next((n for n, line in enumerate(lines) if line.startswith(begins)), 0)
    kept = [" ".join(line.split()) for line in lines[first:] if "would stop" not in line]
    return "<br>".join(line.replace("|", "\\|") for line in kept)


def table(told: Sequence[Told]) -> str:
    rows = [
        f"| {one.case.what} | `cloudtrain {one.case.command}` | {one.code} | "
        f"{', '.join(one.faults) or 'good'} | {message(one)} |"
        for one in told
    ]
    wrong = sum(bool(one.faults) for one in told)
    return "\n".join(
        [
            "# Sixty mistakes, and what is said",
            "",
            f"Written by bench/errors.py, {time.strftime('%Y-%m-%d')}: {len(told)} mistakes, "
            f"{wrong} answered badly. Good means: the documented exit code, the line of",
            "the file if the fault is in one, a next step, no traceback.",
            "",
            "| mistake | command | exit code | grade | what is said |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(run, CASES))
    RESULTS.write_text(table(told), encoding="utf-8")
    for one in told:
        if one.faults:
            print(f"{one.case.what}: {', '.join(one.faults)}")


if __name__ == "__main__":
    main()
