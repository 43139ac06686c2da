"""How the process begins and ends: signals, streams that are closed, the last exit code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TextIO

BROKEN_PIPE = 128 + signal.SIGPIPE


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: what Ctrl-C would have ended well ends as well."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def prepare() -> None:
    """For the process of the command alone: a library must not take over signals."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def end(code: int) -> int:
    """The exit code, once all output is written: `| head` that has enough ends quietly."""
    fault = _flushed(sys.stdout)
    _flushed(sys.stderr)
    if isinstance(fault, BrokenPipeError):
        return BROKEN_PIPE
    if fault is not None:
        sys.stderr.write(f"error: standard output: {fault.strerror}\n")
        return code or 1
    return code


def stdout_is_lost() -> bool:
    """Whether words on it can still be read."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _terminate(number: int, _: FrameType | None) -> None:
    raise Terminated(number)


def _flushed(stream: TextIO) -> OSError | None:
    try:
        stream.flush()
    except OSError as fault:
        # What cannot be written is dropped, or the interpreter complains of it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return fault
    return None
