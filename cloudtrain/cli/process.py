"""Start and end of the process: signals, a closed stdout, the exit code."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
from types import FrameType

BROKEN_PIPE = 128 + signal.SIGPIPE
COLLECTED_AFTER = 100_000
"""New objects before a search for garbage. Python's 700 are reached by each few imports."""
PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP. Handled as Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Stdout(io.TextIOWrapper):
    """Standard output that may be lost: `| head` has closed it, or the disk is full. The thread
    that writes (it may follow a log) gets no error; the command is ended in its main thread, as by
    SIGTERM."""

    fault: OSError | None = None
    ending = False

    def write(self, text: str) -> int:
        try:
            return super().write(text) if self.fault is None else len(text)
        except OSError as fault:
            self._lose(fault)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as fault:
            self._lose(fault)

    def _lose(self, fault: OSError) -> None:
        self.fault = self.fault or fault
        _to_nowhere(self.fileno())
        main = threading.main_thread().ident
        if not self.ending and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)


def prepare() -> None:
    """Install signal handlers and streams, in the command's own process only: a library must
    not."""
    gc.set_threshold(COLLECTED_AFTER)
    # Some supervisors ignore SIGCHLD, and children inherit that: the exit status of our children,
    # and of tasks on local nodes, would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _terminate)
    # An ASCII terminal gets `\u2502`, not an error. sys.stdout is None if it was closed.
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding, lines = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = Stdout(sys.stdout.detach(), encoding, "backslashreplace", None, lines)


def end(code: int) -> int:
    """Flush the streams and return the exit code, another if stdout was lost."""
    if isinstance(sys.stdout, Stdout):
        sys.stdout.ending = True
        sys.stdout.flush()
        fault = sys.stdout.fault
        if isinstance(fault, BrokenPipeError):
            return BROKEN_PIPE
        if fault is not None:
            sys.stderr.write(f"error: standard output: {fault.strerror}\n")
            return 1
    try:
        sys.stderr.flush()
    except (OSError, AttributeError):
        _to_nowhere(2)
    return code


def go_on_in_child() -> None:
    """Return in a child, in the same terminal; this process ends as it does. A shell takes its
    terminal back from a command that stands still (bash(1), "JOB CONTROL"), but sees the first
    process alone."""
    import ctypes  # slow, and needed only here

    sys.stdout.flush()
    sys.stderr.flush()
    passed_on = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        seen = signal.sigwaitinfo({*passed_on, signal.SIGCHLD})
        if seen.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
        else:
            # First that: a signal to a process that stands still may be taken by any of its threads
            # once it goes on, and Python's handlers run in the first one alone.
            os.kill(child, signal.SIGCONT)
            if seen.si_code <= 0:  # of a process; what a terminal sends has reached the child
                os.kill(child, seen.si_signo)


def stdout_is_lost() -> bool:
    return isinstance(sys.stdout, Stdout) and sys.stdout.fault is not None


def _terminate(number: int, _: FrameType | None) -> None:
    raise Terminated(number)


def _to_nowhere(descriptor: int) -> None:
    """Drop unwritten output: the interpreter would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
