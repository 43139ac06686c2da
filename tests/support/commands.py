"""`cloudtrain` commands as processes of their own, forked from one that has everything imported.

What a user's shell would start costs half a second of imports each time; a test types several
hundred commands. The warm process is this test process' own and ends with it. Use a real one
(`python -m cloudtrain`) where the start itself, the command line or the imports are tested.

Commands whose waits are shorter than a user's (`limits`) are forked from a warm process of their
own, which has imported everything with these limits in their place.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

ROOT = Path(__file__).parents[2]
MODULE = "tests.support.commands"
MODULES = (
    *("api", "cli.app", "cli.process", "cli.errors"),
    *("providers.local.provider", "providers.hosts.provider", "stores.file"),
    *(f"providers.{cloud}.provider" for cloud in ("aws", "azure", "gcp")),
)
"""What the warm process imports, below the modules of all commands."""
LATE = ("boto3.session", "azure.identity", "google.oauth2.service_account")
"""What those import when they are used."""
STARTS = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads when it starts."""

BEGAN_WITH = dict(os.environ)
"""For warm processes. What a test sets, such as its home, would make one seem to be of that test,
which kills all that it left."""


class Command(Protocol):
    """A command that runs: the part of subprocess.Popen that tests use."""

    args: Any
    returncode: Any
    pid: int

    def wait(self, timeout: float | None = None) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...


class Forked:
    """One that was forked."""

    def __init__(self, arguments: Sequence[str], connection: socket.socket) -> None:
        self.args = ["cloudtrain", *arguments]
        self.returncode: int | None = None
        self._connection, self._told = connection, b""
        self.pid = int(self._line(None))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(int(self._line(timeout)))
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _line(self, timeout: float | None) -> str:
        while b"\n" not in self._told:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            more = self._connection.recv(100)
            assert more, "the warm process has ended"
            self._told += more
        line, _, self._told = self._told.partition(b"\n")
        return line.decode()


def start(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: IO[Any],
    stderr: IO[Any],
    own_session: bool = False,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> Command:
    """Without input. Where the environment changes how an interpreter starts, a real one; it takes
    no `limits`, which are other seconds for constants of `core/retry`, or of the module that
    the name begins with: `console.plain.SILENCE`; of a Retry they are its first pause.
    Nothing is tried again for half an hour (OUTAGE) without its own word."""
    path = env.get("PYTHONPATH", "")
    if not limits and _starts_otherwise(env):
        return subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", *arguments],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=own_session,
        )
    job = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd), "session": own_session}
    ours, theirs = socket.socketpair()
    with theirs, _lock:
        control = _warm(json.dumps({"OUTAGE": 0.0, **limits}, sort_keys=True), path)
        control.sendall(len(text := json.dumps(job).encode()).to_bytes(4, "big") + text)
        socket.send_fds(control, [b"!"], [theirs.fileno(), stdout.fileno(), stderr.fileno()])
    return Forked(arguments, ours)


def _starts_otherwise(env: Mapping[str, str]) -> bool:
    """Whether an interpreter would start in another way than a warm process has."""
    names = {name for name in {**os.environ, **env} if name.startswith(STARTS)}
    names -= {"PYTHONPATH", "PYTEST_VERSION"}
    return any(env.get(name) != os.environ.get(name) for name in names)


_lock = threading.Lock()
_controls: dict[tuple[str, str], socket.socket] = {}
"""By the limits and PYTHONPATH."""


def _warm(limits: str, path: str) -> socket.socket:
    if (limits, path) not in _controls:
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as nothing:  # noqa: PTH123
            subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), limits],
                cwd=ROOT,
                env={**BEGAN_WITH, "PYTHONPATH": path},
                stdin=nothing,
                stdout=nothing,  # no terminal's: text would be buffered by lines
                pass_fds=[theirs.fileno()],
            )
        _controls[limits, path] = ours
    return _controls[limits, path]


# ── In the warm process ──────────────────────────────────────────────────────


def main() -> None:
    import gc
    import pkgutil

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, tests type commands to clean up
    control = socket.socket(fileno=int(sys.argv[1]))
    from cloudtrain.core.retry import Retry

    limits = json.loads(sys.argv[2])
    for name in sorted(limits, key=lambda name: "." in name):  # others import limits by name
        module, _, constant = f"cloudtrain.{name}".rpartition(".")
        changed = importlib.import_module(module if "." in name else "cloudtrain.core.retry")
        assert hasattr(changed, constant), name
        old, seconds = getattr(changed, constant), limits[name]
        new = replace(old, pause=seconds) if isinstance(old, Retry) else seconds
        setattr(changed, constant, new)
    from tests.support.botocore_models import read_before_forks

    for name in (*(f"cloudtrain.{name}" for name in MODULES), *LATE):
        importlib.import_module(name)
    read_before_forks()
    for package in ("cli", "commands", "cluster", "runs", "artifacts", "setup", "playbooks"):
        whole = importlib.import_module(f"cloudtrain.{package}")
        for found in pkgutil.iter_modules(whole.__path__, f"{whole.__name__}."):
            if not found.name.endswith("fabfile"):
                importlib.import_module(found.name)
    gc.freeze()
    assert threading.active_count() == 1
    waiting: dict[int, socket.socket] = {}  # by pid
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes.fileno())
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(1000)
            _tell_ends(waiting)
        if control in ready and not _begin(control, waiting):
            return


def _tell_ends(waiting: dict[int, socket.socket]) -> None:
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with waiting.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(f"{status}\n".encode())


def _begin(control: socket.socket, waiting: dict[int, socket.socket]) -> bool:
    """False at the end of whoever types the commands."""
    head = control.recv(4, socket.MSG_WAITALL)
    if not head:
        return False
    job = json.loads(control.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    _, files, _, _ = socket.recv_fds(control, 1, 3)
    connection = socket.socket(fileno=files[0])
    pid = os.fork()
    if not pid:
        _become(job, connection, files[1:], [control, *waiting.values()])
    for file in files[1:]:
        os.close(file)
    waiting[pid] = connection
    return True


def _become(
    job: dict[str, Any], connection: socket.socket, files: list[int], others: list[socket.socket]
) -> None:
    """The command itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for other in others:
        other.close()
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    if job["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None  # by this environment
    os.chdir(job["cwd"])
    sys.argv[:] = [str(ROOT / "cloudtrain" / "__main__.py"), *job["arguments"]]
    code: Any = 1
    try:
        with connection:
            connection.sendall(f"{os.getpid()}\n".encode())
        from cloudtrain.__main__ import main

        main()
    except SystemExit as end:
        code = end.code
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
