"""A machine for the supervisor's tests: a home folder here, and every process told by a mark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from shutil import which

from cloudtrain.core import paths
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command, Secret
from cloudtrain.runs import task_commands
from tests.support.fakes import eventually

PYTHON = quote(sys.executable)
"""As a word of a shell line."""
SHELLS = tuple(filter(None, (which("dash"), which("bash"))))
"""Every POSIX shell here that a node's /bin/sh may be."""

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print("daemon", flush=True)
time.sleep(600)
"""


class Machine:
    """Runs commands as a node does: in its home, with `/bin/sh` being the shell under test."""

    def __init__(self, home: Path, shell: str = "/bin/sh") -> None:
        self.home = home
        self.shell = shell
        self.environment = {**os.environ, "HOME": str(home), "CLOUDTRAIN_TEST": str(home)}
        (home / "work").mkdir(parents=True, exist_ok=True)

    def arguments(self, command: Command) -> list[str]:
        return [argument.replace("/bin/sh", self.shell) for argument in command.arguments]

    def popen(self, command: Command) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.arguments(command),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, command: Command, stdin: bytes = b"") -> Completed:
        process = self.popen(command)
        stdout, stderr = process.communicate(stdin, timeout=60)
        return Completed(exit_code=process.returncode, stdout=stdout, stderr=stderr)

    def marked(self) -> dict[int, str]:
        """Every live process that this machine's commands left behind, with its command line."""
        mark = f"CLOUDTRAIN_TEST={self.home}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode(errors="replace")
        return found

    def kill_all(self) -> None:
        while left := self.marked():
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


class Attempt:
    """One attempt of worker0 on a machine, with short words for what the tests do."""

    def __init__(self, machine: Machine, number: int = 1, run: str = "r1") -> None:
        self.machine = machine
        cluster = f"test{os.getpid()}"
        self.cluster = cluster
        self.folder = paths.attempt_folder(cluster, run, "worker0", number)
        self.tag = paths.tag(cluster, run, "worker0", number)

    @property
    def path(self) -> Path:
        return self.machine.home / self.folder

    @property
    def log(self) -> bytes:
        return (self.path / "log").read_bytes()

    def remote(
        self,
        command: str,
        environment: Mapping[str, str | Secret] | None = None,
        port: int | None = None,
        nccl_address: str | None = None,
    ) -> task_commands.RemoteCommand:
        return task_commands.start(
            self.folder,
            tag=self.tag,
            work="work",
            command=command,
            environment=environment or {},
            port=port,
            nccl_address=nccl_address,
        )

    def start(
        self,
        command: str,
        environment: Mapping[str, str | Secret] | None = None,
        port: int | None = None,
        nccl_address: str | None = None,
    ) -> str:
        remote = self.remote(command, environment, port, nccl_address)
        return task_commands.parse_start("n", self.machine.run(remote.command, remote.stdin))

    def status(self) -> task_commands.TaskStatus:
        (status,) = task_commands.parse_status(
            "n", self.machine.run(task_commands.status(self.folder))
        )
        return status

    def wait(self) -> task_commands.TaskStatus:
        """Until the attempt is over."""
        eventually(lambda: self.status().state != "running")
        return self.status()

    def stop(self, grace: float = 5) -> task_commands.StopResult:
        command = task_commands.stop(self.folder, tag=self.tag, grace=grace)
        return task_commands.parse_stop("n", self.machine.run(command))

    def kill_watcher(self) -> None:
        os.kill(int(str((self.path / "task").readlink()).split(":")[3]), signal.SIGKILL)

    def wait_for_log(self, text: bytes) -> None:
        eventually(lambda: text in self.log)
