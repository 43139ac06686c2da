"""A user's project in a temporary folder, and the `cloudtrain` command run on it for real."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import yaml

from tests.support import commands, processes
from tests.support.commands import Command
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"


class Project:
    """Own home, own store, own ports. `files` of it are the user's code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "state home"
        self.store = folder / "store"
        self.code = folder / "code"
        self._commands: list[Command] = []
        self.code.mkdir(parents=True)
        self.port = free_ports(16)
        self.name = f"t{os.getpid() % 100000}-{self.port}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CLOUDTRAIN_")},
            "CLOUDTRAIN_HOME": str(self.home),
            "CLOUDTRAIN_TRUST_ENDPOINT": "localhost",  # where all machines of the tests are
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }
        self.limits: dict[str, float] = {}
        """Other seconds for constants of the product: see commands.start."""

    def config(self, **sections: Any) -> Path:
        """Writes cluster.yaml: a mirrored chief and worker of tests/data/rank.py, changed so."""
        values: dict[str, Any] = {
            "name": self.name,
            "provider": "local",
            "strategy": "multi_worker_mirrored",
            "nodes": {"chief": {}, "worker": {"count": 1}},
            "code": {"path": str(self.code)},
            "train": {},
            "artifacts": {"store": self.store.as_uri()},
        }
        for name, section in sections.items():
            old = values.get(name)
            if isinstance(section, dict) and isinstance(old, dict) and name != "nodes":
                values[name] = {**old, **section}
            else:
                values[name] = section
        values["train"] = {
            "command": "python3 rank.py --output {output}",
            "port": self.port,
            "checkpoints": "ckpt",
            "grace": "1s",
            **values["train"],
        }
        if not (self.code / "rank.py").exists():
            (self.code / "rank.py").write_bytes((DATA / "rank.py").read_bytes())
        path = self.folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
        return path

    def cloudtrain(
        self, *arguments: str | Path, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        with TemporaryFile() as out, TemporaryFile() as err:
            command = self._command(arguments, stdout=out, stderr=err)
            try:
                code = command.wait(timeout)
            except BaseException:
                command.kill()
                raise
            texts = [_text(file) for file in (out, err)]
        return subprocess.CompletedProcess(command.args, code, *texts)

    def start(self, *arguments: str | Path) -> Command:
        """The command in a session of its own, its output in files of the folder."""
        with (self.folder / "stdout").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            return self._command(arguments, stdout=out, stderr=err, own_session=True)

    def _command(self, arguments: Sequence[str | Path], **options: Any) -> Command:
        words = [str(word) for word in arguments]
        options |= {"env": self.environment, "cwd": self.folder, "limits": self.limits}
        command = commands.start(words, **options)
        self._commands.append(command)
        return command

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def shared(self) -> Path:
        """A folder that local nodes started from now on see as it is here."""
        folder = self.folder / "shared"
        folder.mkdir(exist_ok=True)
        self.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(folder)
        return folder

    def runs(self) -> list[dict[str, Any]]:
        """The run records that landed in the store."""
        return [json.loads(path.read_text()) for path in sorted(self.store.glob("*/run.json"))]

    def landed(self, task: str, path: str) -> str:
        (found,) = self.store.glob(f"*/{task}/{path}")
        return found.read_text()

    def processes(self) -> dict[int, str]:
        """Every process of this project's nodes and tasks that is left on this machine."""
        typed = [command for command in self._commands if command.poll() is None]
        found = {command.pid: " ".join(map(str, command.args)) for command in typed}
        own = {os.getpid(), os.getppid()}
        home = str(self.home)
        tag = re.compile(rb"CLOUDTRAIN_NODE=.*/%b/.*" % self.name.encode())
        for pid in set(processes.pids()) - own:
            variables, command = processes.environment(pid), " ".join(processes.words(pid))
            ours = home in command or any(home.encode() in one for one in variables)
            if ours or any(map(tag.fullmatch, variables)):
                found[pid] = command
        return found

    def pid_of(self, task: str) -> int:
        """The pid here of what the task printed when it started, latest attempt."""
        logs = sorted(self.home.glob(f"clusters/*/runs/*/*{task}*"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        said = [line for line in lines if f"{task} started, pid" in line][-1].split()[-1]
        return processes.here(int(said), f"{self.name}-{task}")

    def end(self) -> None:
        self.cloudtrain("down", self.name, "--discard", "--yes")
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as subprocess.run(text=True) reads it


def until(condition: Callable[[], Any], within: float, what: str = "") -> Any:
    """Waits for something that a real process does; fails the test where it does not."""
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        try:
            result = condition()
        except (OSError, IndexError, ValueError):
            result = None
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"not within {within} s: {what or condition}")


def project(folder: Path) -> Iterator[Project]:
    """The body of the `project` fixture."""
    made = Project(folder)
    try:
        yield made
    finally:
        made.end()
        until(lambda: made.processes() == {}, 30, "what a test left has ended")
