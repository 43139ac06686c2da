"""Runs programs for one client, one after the other, each in a fork of this Python.

Starting Python takes a node 8 ms, and a fork of it 1 ms (2026-11-27). Sent as `python3 -c`; the
other side is ssh/resident.py. A request on stdin: a line `TOKEN LENGTH…`, the bytes of a program's
text and of its arguments, then its stdin in pieces, each a line with its length before its bytes;
the line `0` ends it. The program has stdout and stderr of this process, until `TOKEN CODE>`, whose
code is negative for a signal; those of the first one begin after `<TOKEN`, as a shell may speak
before. Everything else of it is as if it was started alone: session, stdin, signals, variables.
Ends with its client, or after the program that has all of its stdin by then.
"""

# `signal`, which makes its numbers into an enumeration, takes half as long as the start of Python.
import _signal  # type: ignore[import-not-found]
import gc
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types

AHEAD = 1 << 20
"""Bytes of stdin that are held for a program that does not read them."""


def main() -> None:
    gc.disable()
    getattr(gc, "freeze", gc.collect)()  # what is here is never freed: no fork copies it for that
    code, arguments = Requests().next_program()
    gc.enable()
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["-c", *arguments]
    exec(code, module.__dict__)
    if "threading" not in sys.modules:
        sys.stdout.flush()
        os._exit(0)


class Requests:
    def __init__(self) -> None:
        self.rest = b""
        self.woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(wakes)
        self.wakes = wakes
        self.code = b"", ""  # type: tuple[bytes, types.CodeType | str]
        """The last program's text, and its code: most programs begin with the same text."""

    def next_program(self) -> "tuple[types.CodeType | str, list[str]]":
        """Serve the client. Returns a program's code and arguments in each process that is to run
        one."""
        begins = b"<"
        while True:
            token, *lengths = self.line().split(b" ")
            parts = [self.exactly(int(length)) for length in lengths]
            for output in (1, 2) if begins else ():
                write(output, begins + token)
            begins = b""
            self.code = self.compiled(parts[0])
            given, gives = os.pipe()
            pid = os.fork()
            if not pid:
                os.close(gives)
                self.become_own(given)
                return self.code[1], [os.fsdecode(part) for part in parts[1:]]
            os.close(given)
            code, is_fed = self.attend(pid, gives)
            for output in (1, 2):
                os.set_blocking(output, True)  # a program may have changed that for all
                write(output, token + b" %d>" % code)
            while not is_fed:
                is_fed = not self.exactly(int(self.line()))

    def compiled(self, text: bytes) -> "tuple[bytes, types.CodeType | str]":
        if text == self.code[0]:
            return self.code
        try:
            return text, compile(text, "<string>", "exec")
        except (SyntaxError, ValueError):  # the program says so
            return text, text.decode()

    def become_own(self, stdin: int) -> None:
        """Be a process like one that the client has started alone."""
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        os.setsid()
        os.dup2(stdin, 0)
        for each in (stdin, self.woken, self.wakes):
            os.close(each)

    def attend(self, pid: int, stdin: int) -> "tuple[int, bool]":
        """Feed a program until it has ended: its exit code, and whether all of its stdin came."""
        os.set_blocking(stdin, False)
        waiting, left, is_fed = b"", 0, False
        while True:
            while self.rest and len(waiting) < AHEAD and not is_fed:
                if not left:
                    line, end, after = self.rest.partition(b"\n")
                    if not end:
                        break
                    left, self.rest, is_fed = int(line), after, line == b"0"
                piece, self.rest = self.rest[:left], self.rest[left:]
                left -= len(piece)
                waiting += piece
            if stdin < 0:
                waiting = b""  # it reads no more
            else:
                waiting, takes = feed(stdin, waiting)
                if not takes or (is_fed and not waiting):
                    os.close(stdin)
                    stdin, waiting = -1, b""
            poll = select.poll()
            poll.register(self.woken, select.POLLIN)
            if not is_fed and len(waiting) < AHEAD:
                poll.register(0, select.POLLIN)
            if waiting:
                poll.register(stdin, select.POLLOUT)
            ready = dict(poll.poll())
            if self.woken in ready:
                os.read(self.woken, 4096)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    if left:
                        self.exactly(left)
                    if stdin >= 0:
                        os.close(stdin)
                    killed = os.WIFSIGNALED(status)
                    return (-os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)), is_fed
            if 0 in ready:
                self.read()

    def line(self) -> bytes:
        while b"\n" not in self.rest:
            self.read()
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def exactly(self, length: int) -> bytes:
        pieces, count = [self.rest], len(self.rest)
        while count < length:
            pieces.append(self.more())
            count += len(pieces[-1])
        data = b"".join(pieces)
        self.rest = data[length:]
        return data[:length]

    def read(self) -> None:
        self.rest += self.more()

    def more(self) -> bytes:
        data = os.read(0, 1 << 16)
        if not data:  # the client is gone; a program that reads sees its stdin end, too
            os._exit(0)
        return data


def feed(stdin: int, data: bytes) -> "tuple[bytes, bool]":
    """Write what the program takes now. Returns the rest, and whether it takes any more."""
    while data:
        try:
            data = data[os.write(stdin, data) :]
        except BlockingIOError:
            break
        except OSError:
            return data, False
    return data, True


def write(output: int, data: bytes) -> None:
    """Write a mark. Nobody reads any more: this process ends, as a shell would by SIGPIPE."""
    try:
        while data:
            data = data[os.write(output, data) :]
    except OSError:
        os._exit(1)
