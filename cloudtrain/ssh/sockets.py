"""Sockets for paramiko: a tuned TCP connection, or a program whose stdin and stdout are one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import IO

from cloudtrain.core.retry import PROXY_ANSWER, PROXY_END
from cloudtrain.ssh.ssh_proxy import ProxyFailed, described, not_started, program_of

DEAD_AFTER_MS = 5000
"""Milliseconds after which unacknowledged bytes end the connection (TCP_USER_TIMEOUT)."""

_POLL_SECONDS = 1.0
BUFFER_BYTES = 1 << 16

# Linux has all of these; options that another system lacks are skipped.
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", DEAD_AFTER_MS),
)


class BufferedSocket:
    """The socket methods that paramiko and Fabric call. paramiko reads each packet in three pieces:
    a buffer here makes one system call of them."""

    def __init__(self, raw: socket.socket) -> None:
        raw.settimeout(_POLL_SECONDS)
        self._raw = raw
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._closed = False

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end. Raises what the socket's `recv` does."""
        if self._start == self._end:
            self._end = self._raw.recv_into(self._buffer)
            self._start = 0
            self._filled()
        end = min(self._start + size, self._end)
        data = self._view[self._start : end].tobytes()
        self._start = end
        return data

    def _filled(self) -> None:
        """Called when the buffer was filled."""

    def send(self, data: bytes) -> int:
        return self._raw.send(data)

    def close(self) -> None:
        """Close, and wake a reader in another thread at once."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._release()

    def _release(self) -> None:
        self._raw.close()

    def settimeout(self, _: float | None) -> None:
        """Do nothing: paramiko asks for ten wake-ups a second, which only its timers need."""

    def gettimeout(self) -> float | None:
        return self._raw.gettimeout()

    def fileno(self) -> int:
        return self._raw.fileno()


class TunedSocket(BufferedSocket):
    """A tuned TCP socket. paramiko sets no option at all: with Nagle's algorithm against delayed
    acknowledgements a connect and a command wait for timers on every round trip."""

    def __init__(self, raw: socket.socket) -> None:
        for level, name, value in _OPTIONS:
            option = getattr(socket, name, None)
            if option is not None:
                raw.setsockopt(level, option, value)
        super().__init__(raw)

    def _filled(self) -> None:
        if _QUICKACK is not None:
            # Linux falls back to delayed acknowledgements by itself: set it again each time.
            with contextlib.suppress(OSError):
                self._raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def getpeername(self) -> tuple[str, int]:
        address: tuple[str, int] = self._raw.getpeername()
        return address


# ── a program: it ends with its socket ─────────────────────────────────────────


AT_ONCE = 8
"""Programs that open a connection at the same time. OpenSSH's sshd begins to drop connections
that have not logged in at 10 (MaxStartups 10:30:100, sshd_config(5)), and gcloud, aws and az are
Python programs that take a second of CPU each."""

_SHOWN_LINES, _SHOWN_BYTES = 3, 8192

_starting = threading.BoundedSemaphore(AT_ONCE)


class ProxySocket(BufferedSocket):
    """A program that connects to an SSH server, as a socket for paramiko. One end
    of a socket pair is the program's stdin and stdout, so that nothing is copied here. paramiko's
    own ProxyCommand reads a pipe byte by byte with a select before each."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start the program. Raises ProxyFailed if it cannot be started."""
        self._words = tuple(argv)
        import tempfile

        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the socket
        ours, its = socket.socketpair()
        with its:
            try:
                self._process = subprocess.Popen(
                    self._words,
                    stdin=its.fileno(),
                    stdout=its.fileno(),
                    stderr=self._errors,
                    start_new_session=True,  # Ctrl-C here must not end it: what follows lands files
                )
            except OSError as error:
                ours.close()
                self._errors.close()
                raise not_started(self._words, error) from error
        super().__init__(ours)
        self._lock = threading.Lock()
        self._kept = b""
        """The end of stderr, once its file is closed."""

    def await_answer(self, seconds: float = PROXY_ANSWER) -> None:
        """Wait until the SSH server has sent its first byte, as it does before its client. Raises
        ProxyFailed with the program's own words."""
        ready, poll = [], select.poll()
        with contextlib.suppress(ValueError, OSError):  # it is closed meanwhile
            poll.register(self._raw, select.POLLIN)
            ready = poll.poll(seconds * 1000)
        if self._closed:
            raise ProxyFailed("the connections were closed")
        if not ready:
            last = self.last_words()
            said = f": {last}" if last else ""
            raise ProxyFailed(f"{self.program} gave no connection within {seconds:g} s{said}")
        if not self._raw.recv(1, socket.MSG_PEEK):
            raise self.failure()

    def failure(self) -> ProxyFailed:
        """Error that says why the program has closed its side."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PROXY_END)
        code = self._process.poll()
        ended = "closed the connection" if code is None else f"ended with exit code {code}"
        said = self.last_words()
        text = f"{self.program} {ended}: {said}" if said else f"{self.program} {ended}"
        return described(text, self._written())

    def has_ended(self) -> bool:
        """True if the program has ended by itself, or does so in a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PROXY_END / 4)
        return self._process.poll() is not None

    @property
    def program(self) -> str:
        return program_of(self._words)

    def last_words(self) -> str:
        """The end of what the program has written to stderr, in one line; "" for nothing."""
        lines = [line.strip() for line in self._written().splitlines() if line.strip()]
        return "; ".join(lines[-_SHOWN_LINES:])

    def _written(self) -> str:
        with self._lock:
            data = self._kept if self._errors.closed else self._read()
        text = data.decode("utf-8", "replace")
        return "".join(c if c.isprintable() or c == "\n" else " " for c in text)

    def _read(self) -> bytes:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), _SHOWN_BYTES, max(0, size - _SHOWN_BYTES))

    def _release(self) -> None:
        threading.Thread(target=self._end_program, name="proxy").start()

    def _end_program(self) -> None:
        """Let it end by itself, as its stdin has ended; then end its process group."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)
            try:
                self._process.wait(PROXY_END)
                break
            except subprocess.TimeoutExpired:
                continue
        self._raw.close()
        with self._lock:
            self._kept = self._read()
            self._errors.close()

    def getpeername(self) -> tuple[str, int]:
        return self.program, 0


class Turn:
    """A turn to open a connection, of which there are AT_ONCE. `close` ends the wait for it."""

    def __init__(self) -> None:
        self._given_up = threading.Event()

    def close(self) -> None:
        self._given_up.set()

    def __enter__(self) -> None:
        while not _starting.acquire(timeout=0.2):
            if self._given_up.is_set():
                raise ProxyFailed("the connections were closed")

    def __exit__(self, *_: object) -> None:
        _starting.release()


def connect(argv: Sequence[str]) -> ProxySocket:
    """Open a connection. Raises ProxyFailed."""
    with Turn():
        opened = ProxySocket(argv)
        try:
            opened.await_answer()
        except BaseException:
            opened.close()
            raise
    return opened


def is_installed(program: str) -> bool:
    import shutil

    return shutil.which(program) is not None
