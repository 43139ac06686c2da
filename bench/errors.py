"""Mistakes that people make, refusals of clouds and Ctrl-C at bad moments: what people are told.

    python bench/errors.py

renews errors.md. Each case is run as a user would: the command itself, in a folder of its own,
without a network beyond this machine; without credentials, or with those of a cloud's stand-in.
Computed are the exit code, whether a line is named where the fault is in a file, whether a next
step is named, and that there is no traceback. tests/integration/test_mistakes.py runs the same
cases.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
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
RENTED = {
    "aws": ("provider: aws\nplacement: [us-east-1a]", "m6i.xlarge"),
    "gcp": ("provider: gcp\nproject: test-project\nplacement: [us-central1-a]", "n1-standard-4"),
    "azure": (
        "provider: azure\nproject: 00000000-0000-4000-8000-000000000001\nplacement: [eastus]",
        "Standard_D4s_v5",
    ),
}
"""For each stand-in: where, and a machine without GPUs."""
SLOW = """\
name: demo
provider: local
strategy: custom
nodes: {worker: {count: 2}}
setup: {run: ["sleep SETUP"]}
train: {command: "echo begins; sleep TRAIN"}
limits: {max_lifetime: 10m}
artifacts: {store: file:///tmp/cloudtrain-errors}
"""


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
    cloud: str = ""
    """The stand-in whose credentials the user has."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Of the stand-in: what it has."""
    answer: tuple[str, int, str, str] | None = None
    """An action of the stand-in that is refused every time: with this status, code and message."""
    before: tuple[str, ...] = ()
    """Commands that come first."""
    interrupt: str = ""
    """Ctrl-C as soon as the command has said this."""


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
        text=edit("accelerator: T4:1", "machine: g4dn.xlarge", CLOUD),
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


def rented(provider: str, what: str, command: str, code: int, **more: Any) -> Case:
    """A refusal of a cloud."""
    where, machine = RENTED[provider]
    text = GOOD.replace("provider: local", where).replace("{count: 2}", f"{{machine: {machine}}}")
    text = text.replace("chief: {}", f"chief: {{machine: {machine}}}")
    text = text.replace('setup:\n  tensorflow: "2.21"\n', more.pop("setup", ""))
    return Case(
        what=f"{provider}: {what}",
        command=f"{command} demo.yaml",
        text=text + more.pop("text", ""),
        code=code,
        cloud=provider,
        **more,
    )


def slow(what: str, command: str, interrupt: str, code: int, **more: Any) -> Case:
    """Ctrl-C during a command on local nodes."""
    seconds = {"SETUP": more.pop("setup", 0), "TRAIN": more.pop("train", 0)}
    text = SLOW
    for word, value in seconds.items():
        text = text.replace(word, str(value))
    return Case(what=what, command=command, text=text, interrupt=interrupt, code=code, **more)


DENIED = "You are not authorized to perform this operation."
CASES += (
    rented(
        *("aws", "refused keys", "check", 4),
        answer=(
            *("*", 401, "AuthFailure"),
            "AWS was not able to validate the provided access credentials",
        ),
    ),
    rented(
        *("aws", "expired session", "up --yes", 4),
        answer=("RunInstances *", 400, "RequestExpired", "Request has expired."),
    ),
    rented(
        *("aws", "a right that is missing in `up`", "up --yes --ignore permissions", 4),
        answer=("RunInstances *", 403, "UnauthorizedOperation", DENIED),
    ),
    rented(
        *("aws", "an account that was never verified", "up --yes --ignore permissions", 4),
        answer=("RunInstances *", 400, "PendingVerification", "Your account is being verified."),
    ),
    rented(
        *("aws", "no capacity anywhere", "up --yes", 3),
        attributes={"capacity": {"m6i.xlarge us-east-1a": 0}},
    ),
    rented("aws", "an image that is not there", "check", 2, text="image: ami-0123456789abcdef0\n"),
    rented(
        *("gcp", "a quota that is too small", "check", 3),
        attributes={"quotas": {"us-central1/CPUS": 4.0}},
    ),
    rented(*("gcp", "no capacity anywhere", "up --yes", 3), attributes={"capacity": {"*": 0}}),
    rented(
        *("gcp", "an API that is not enabled", "check", 4),
        answer=(
            *("projects.get", 403, "accessNotConfigured"),
            "Compute Engine API has not been used in project 1 before or it is disabled.",
        ),
    ),
    rented(
        *("gcp", "a project that does not exist", "check", 2),
        answer=("projects.get", 404, "notFound", "The resource 'projects/p' was not found"),
    ),
    rented("gcp", "an image that is not there", "check", 2, text="image: my-project/no-such\n"),
    rented(
        *("azure", "a subscription that is not there", "check", 4),
        answer=(
            *("*subscriptions*", 404, "SubscriptionNotFound"),
            "The subscription 'x' could not be found.",
        ),
    ),
    rented(
        *("azure", "a machine that the subscription may not use", "check", 3),
        attributes={"restricted": ["eastus/*"]},
    ),
    rented(
        *("azure", "a quota that is too small", "check", 3),
        attributes={"quotas": {"eastus/cores": 4}},
    ),
    rented(*("azure", "no capacity anywhere", "up --yes", 3), attributes={"capacity": {"*": 0}}),
    rented(
        *("azure", "a policy that refuses", "up --yes", 4),
        answer=(
            *("PUT virtualMachines *", 403, "RequestDisallowedByPolicy"),
            "Resource 'demo-chief0' was disallowed by policy: Require a tag on resources.",
        ),
    ),
    # Ctrl-C
    rented(
        *("gcp", "Ctrl-C while nodes are created", "up --yes", 130),
        attributes={"delay": 2.0},  # the stage says something while it goes on, after 5 s
        interrupt="nodes on gcp: 0 of 2",
        said="no node of demo exists, nothing is billed",
    ),
    slow("Ctrl-C during setup", "up demo.yaml", "sleep 20", 130, setup=20),
    slow(
        "Ctrl-C in train: it detaches",
        "train demo.yaml",
        "attempt 1: 2 of 2",
        130,
        train=5,
        before=("up demo.yaml",),
        said="stop-run",
    ),
    slow(
        "Ctrl-C in run: all is taken down",
        "run demo.yaml",
        "sleep 20",
        130,
        setup=20,
        said="lists nothing of it any more",
    ),
    slow(
        "Ctrl-C in logs -f: the run goes on",
        "logs demo.yaml -f",
        "begins",
        130,
        said="interrupted",
        train=60,
        before=("up demo.yaml", "train demo.yaml --detach"),
    ),
)


@contextlib.contextmanager
def account(case: Case) -> Iterator[Mapping[str, str]]:
    """The variables of a user with an account on the case's stand-in."""
    if not case.cloud:
        yield {}
        return
    from tests.standins.cloud import running
    from tests.standins.faults import EVER

    with running(case.cloud) as cloud:
        cloud.set(**case.attributes)
        if case.answer is not None:
            action, status, code, text = case.answer
            cloud.fault(
                *("answer",), action=action, status=status, code=code, message=text, times=EVER
            )
        yield cloud.environment


class Process(Protocol):
    """A command that runs: the part of subprocess.Popen that is used here."""

    def wait(self, timeout: float | None = None) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...


Start = Callable[[Sequence[str], Mapping[str, str], Path, IO[bytes]], Process]
"""Starts the command with these arguments, environment, folder and output."""


def as_a_user(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, output: IO[bytes]
) -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", *arguments],
        cwd=folder,
        env=environment,
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
    )


def run(case: Case, start: Start = as_a_user) -> Told:
    with (
        tempfile.TemporaryDirectory(prefix="errors-") as name,
        account(case) as credentials,
    ):
        folder = Path(name)
        if case.text is not None:
            text = case.text if isinstance(case.text, bytes) else case.text.encode()
            own = text.replace(b"file:///tmp/cloudtrain-errors", f"file://{name}/store".encode())
            (folder / "demo.yaml").write_bytes(own)
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
            **credentials,
            **case.environment,
        }
        for command in case.before:
            said(command, folder, environment, start)
        code, text = said(case.command, folder, environment, start, case.interrupt)
        if case.before or case.interrupt:
            said("down demo.yaml --yes --discard", folder, environment, start)
        return Told(case=case, code=code, text=text.replace(name, "FOLDER").strip())


def said(
    command: str,
    folder: Path,
    environment: Mapping[str, str],
    start: Start,
    interrupt: str = "",
) -> tuple[int, str]:
    """Exit code of a command, and what it printed; `interrupt`: SIGINT once it has said that."""
    output = folder / "output"
    with output.open("wb") as file:
        process = start(command.split(), environment, folder, file)
    deadline = time.monotonic() + 120
    while interrupt and process.poll() is None and time.monotonic() < deadline:
        if interrupt in output.read_text(errors="replace"):
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.05)
    code = process.wait(timeout=120)
    return code, output.read_text(errors="replace")


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
            "# Mistakes, refusals and Ctrl-C, and what is said",
            "",
            f"Written by bench/errors.py, {time.strftime('%Y-%m-%d')}: {len(told)} cases, "
            f"{wrong} answered badly. Good means: the documented exit code, the line of",
            "the file if the fault is in one, a next step, no traceback. Clouds are stand-ins.",
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
