"""Reads the end of a task's log: its last exception, its headline, and TensorFlow's own errors."""

from __future__ import annotations

import re

from cloudtrain.core.dataclass import dataclass

LINES_SHOWN = 12

_EXCEPTION = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception|Interrupt)\b.*)")
_FUNCTION_NODE = re.compile(r"\{\{function_node \S*\}\} ?")


def headline(log: bytes) -> str:
    """The line of a log that says why the program ended; empty if none does."""
    lines = last_exception(log).splitlines()
    for number, line in enumerate(lines):
        if found := _EXCEPTION.match(line):
            # TensorFlow puts the place before the error: `Graph execution error:`, `From
            # /job:ps/replica:0/task:0:`. So a colon is followed by the lines that it announces.
            head = found[1]
            rest = [line.strip() for line in lines[number + 1 :] if not _ABOUT.match(line)]
            while head.rstrip().endswith(":") and rest:
                head = f"{head.rstrip()} {rest.pop(0)}"
            return _FUNCTION_NODE.sub("", head)[:200]
    last = lines[-1] if lines else ""
    return last[:200] if re.search(r"error|not found|can't open|denied", last, re.I) else ""


_ABOUT = re.compile(
    r"\s+File |Detected at |Node: |Stack trace|<stack traces|\d+ root error|\s*$|Traceback "
)


def last_lines(log: bytes, count: int = LINES_SHOWN) -> tuple[str, ...]:
    """Last lines of the program's own output, without TensorFlow's. Its message and the line of the
    user's own code come first if they are further up."""
    text = last_exception(log)
    shown = [line[:500] for line in text.splitlines()][-count:]
    head, frame = headline(log), own_frame(text)
    above = [head] if head and not any(_begins(line, head) for line in shown) else []
    if frame is not None and frame.line not in shown:
        above.append(frame.line)
    return (*above, *shown[len(above) :])


def _begins(line: str, head: str) -> bool:
    """True if the line has the headline, or the part of it that it was joined from."""
    return head in line or (line.rstrip().endswith(":") and _EXCEPTION.fullmatch(line) is not None)


@dataclass(frozen=True)
class Frame:
    """A line of the user's own code in a traceback."""

    place: str
    """`train.py:16`, below the delivered code or, elsewhere, without its folder."""
    line: str
    """As Python wrote it."""


def own_frame(text: str) -> Frame | None:
    """The innermost line of the last traceback that is neither in a library nor in Python's own."""
    found = list(_FRAME.finditer(text.rpartition(TRACEBACK)[2]))
    own = [each for each in found if not is_library(each["file"])]
    if not own:
        return None
    return Frame(f"{delivered_name(own[-1]['file'])}:{own[-1]['line']}", own[-1][0])


def is_library(file: str) -> bool:
    """True for a file of Python, of an installed package, or of none."""
    return _LIBRARY.search(file) is not None


def delivered_name(file: str) -> str:
    """`lib/loop.py`: below the delivered code; elsewhere without its folder."""
    delivered = _DELIVERED.search(file)
    return file[delivered.end() :] if delivered else file.rpartition("/")[2]


_FRAME = re.compile(r'(?m)^  File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in .*|$)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|/bin/")
_DELIVERED = re.compile(r"/runs/[^/]+/[^/]+/code/")
"""A task's copy of the delivered code: `runs/start`."""


TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NATIVE = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d [\d:.]+: [IWE] |WARNING: All log messages"
)
_NATIVE_MORE = re.compile(
    r"Additional GRPC error|:UNKNOWN:|This could happen if the remote|\t \[\[|To (enable|rebuild) "
)


def last_exception(log: bytes) -> str:
    """The last exception with those that it came from; without a traceback, the whole log.
    TensorFlow's native lines are skipped: they follow Python's traceback, and also report lost
    peers of a running program."""
    lines = program_lines(log)
    starts = [number for number, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return "\n".join(lines)
    start = starts.pop()
    while starts and lines[start - 1] in _CHAINED:
        start = starts.pop()
    return "\n".join(lines[start:])


def program_lines(log: bytes) -> list[str]:
    """Lines of the program itself, without TensorFlow's own and what Python ignores at its end."""
    lines: list[str] = []
    native = ignored = False
    for raw in log.decode("utf-8", "replace").splitlines():
        # A progress bar rewrites its line: only its last state counts.
        line = re.split(r"[\r\b]+", raw.rstrip("\r\b"))[-1]
        native = bool(_NATIVE.match(line) or (native and _NATIVE_MORE.match(line)))
        if line.startswith("Exception ignored in"):
            ignored = True
        elif ignored and line != TRACEBACK and not line.startswith(" "):
            ignored = False
        elif not (native or ignored or re.fullmatch(r"[\s^~]*", line)):
            lines.append(line)
    return lines


def native_errors(log: bytes) -> list[str]:
    """Last error lines of TensorFlow itself: a crash leaves nothing else."""
    lines = log.decode("utf-8", "replace").splitlines()
    return [line for line in lines if _NATIVE_ERROR.match(line)][-LINES_SHOWN:]


_NATIVE_ERROR = re.compile(r"[EF]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d [\d:.]+: [EF] ")


_LOST_PEER = re.compile(
    r"Collective ops is aborted"
    r"|errors_impl\.(UnavailableError|AbortedError)"
    r"|stopped sending heartbeats"
    r"|Failed to send RPC to coordination service"
    r"|Horovod has been shut down|Horovod's rendezvous at \S+ does not answer"
    r"|gloo::|/gloo/\S+\.cc:\d+\]"
)


def reports_lost_peer(text: str) -> bool:
    """True for messages of TensorFlow 2.21 and Horovod 0.28.1 after another task died, froze or was
    cut off: tests/data."""
    return _LOST_PEER.search(text) is not None


_WAITS = re.compile(rb"still waiting for response from worker|Waiting for \d+/\d+ tasks to connect")


def waits_for_peers(data: bytes) -> bool:
    """True if each new line is TensorFlow's about waiting for its peers, every ten seconds
    (`CreateSession still waiting for response from worker`, master.cc)."""
    lines = [line for line in data.splitlines() if line.strip()]
    return bool(lines) and all(_WAITS.search(line) for line in lines)


GRPC_WINDOW = 4000
"""Bytes before new ones in which the line of `reduces_over_grpc` may begin."""

_GRPC = re.compile(
    rb"num_workers = (\d+), local_devices = \([^)]*device:GPU[^)]*\), "
    rb"communication = (Col|Com)\w+\.AUTO\b"
)


def reduces_over_grpc(log: bytes) -> str | None:
    """The argument of MultiWorkerMirroredStrategy that replaces gRPC by NCCL, if a log says that
    gradients of GPUs on several nodes go over gRPC; else None.

    TensorFlow uses NCCL only if asked: AUTO is its ring over gRPC, through the CPU
    (`CollectiveParamResolverLocal::AssignCollectiveType`, read in 2.4's and 2.21's source). The
    strategy logs what it uses when it is made; until 2.3 the enumeration had another name."""
    found = _GRPC.search(log)
    if found is None or int(found[1]) < 2:
        return None
    return NCCL if found[2] == b"Com" else OLD_NCCL


NCCL = (
    "communication_options=tf.distribute.experimental.CommunicationOptions("
    "implementation=tf.distribute.experimental.CommunicationImplementation.NCCL)"
)
OLD_NCCL = "communication=tf.distribute.experimental.CollectiveCommunication.NCCL"
"""Until TensorFlow 2.3, and of the experimental class."""
