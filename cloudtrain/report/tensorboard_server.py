"""TensorBoard as a process of this machine, which nobody else can reach."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.core import own_python
from cloudtrain.core.errors import UsageError

EVERY = 5.0
"""Seconds after which it reads its folder again."""

START = 60.0
"""Seconds within which TensorBoard serves; it took 0.9 s here (2.21.0)."""

_SERVING = re.compile(r"at (http://127\.0\.0\.1:\d+/\S*)")
"""`TensorBoard 2.21.0 at http://127.0.0.1:6006/ (Press CTRL+C to quit)`."""

_PREFIX = "CLOUDTRAIN_TENSORBOARD_PREFIX"
_PROGRAM = f"""\
import os, sys
found = sys.argv.index("--")
sys.path[:] = sys.argv[1:found]
sys.argv[1:] = sys.argv[found + 1 :] + ["--path_prefix", os.environ.pop("{_PREFIX}")]
from tensorboard.main import run_main
run_main()
"""
"""TensorBoard below a path that nobody can guess: it answers every local user, and a page in the
browser whose name resolves to 127.0.0.1 (DNS rebinding). A variable, as every user of the machine
sees the arguments."""


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self.url = ""
        self._serving = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="tensorboard").start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines = [*self._lines[-20:], line.rstrip()]
            found = _SERVING.search(line)
            if found and not self.url:
                self.url = found[1]
                self._serving.set()
        self._serving.set()

    def wait(self) -> None:
        """Wait until it serves. Raises UsageError with its own words if it does not."""
        self._serving.wait(START)
        if not self.url:
            raise self._failure("TensorBoard did not start")

    def refuse_end(self) -> None:
        if self._process.poll() is not None:
            raise self._failure(f"TensorBoard ended with exit code {self._process.returncode}")

    def _failure(self, what: str) -> UsageError:
        words = next((line for line in reversed(self._lines) if line.strip()), "no output")
        return UsageError(f"{what}: {words}", hint="another --port, or omit it for a free one")


@contextmanager
def serving(folder: Path, port: int) -> Iterator[Server]:
    """TensorBoard on 127.0.0.1, until the block is left; nobody else can reach it."""
    command = own_python.code(_PROGRAM, *own_python.import_path(), "--", "--logdir", str(folder))
    command += ["--host", "127.0.0.1", "--port", str(port), "--reload_interval", f"{EVERY:g}"]
    # Without it TensorBoard reads only the newest file of a folder, and a restart begins another.
    command += ["--reload_multifile", "true"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=own_python.NEUTRAL,
        env={**os.environ, _PREFIX: f"/{secrets.token_hex(16)}"},
    )
    try:
        server = Server(process)
        server.wait()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
