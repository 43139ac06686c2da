"""Reads where a task's Python is, in the stacks that its own node prints; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloudtrain.training.log_text import delivered_name, is_library

_PROCESS = re.compile(r"(?m)^== \d+ .*$")
_THREAD = re.compile(r"(?m)^(?:Current thread|Thread) 0x[0-9a-f]+.*$")
_FRAME = re.compile(r'(?m)^  File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<name>.+)$')
_SOURCE = re.compile(r"(?m)^source (\d+) (.+?): (.*)$")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_COLLECTIVE = re.compile(r"collective|cross_device|all_reduce|allreduce|horovod", re.IGNORECASE)
_WRAPPERS = frozenset({"error_handler", "wrapper", "op_dispatch_handler", "_method_wrapper"})
"""Functions between a script and what it calls (Keras' and TensorFlow's traceback_utils)."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str


def waits_in(stacks: bytes) -> str | None:
    """`in evaluate, in a collective (train.py:16)`: where the user's own code waits; None if the
    stacks do not say.
    """
    text = stacks.decode("utf-8", "replace")
    sources = {(found[2], int(found[1])): found[3] for found in _SOURCE.finditer(text)}
    for process in _PROCESS.split(text):
        threads = [_frames(each) for each in _THREAD.split(process)[1:]]
        own = [thread for thread in threads if any(not is_library(each.file) for each in thread)]
        if own:
            main = next((each for each in own if each[-1].name == "<module>"), own[-1])
            waits = _described(main, sources)
            together = any(_COLLECTIVE.search(f.file) for thread in threads for f in thread)
            return f"{waits[0]}{', in a collective' if together else ''} ({waits[1]})"
    return _in_kernel(text)


def _in_kernel(text: str) -> str | None:
    """`in a sleep (python3)`: what the kernel says of a program that wrote no stack."""
    for process in _STATE.finditer(text):
        waits = next((words for names, words in _KERNEL if names.search(process["waits"])), None)
        if waits is not None and process["name"] not in _SHELLS:
            return f"{waits} ({process['name']})"
    return None


_STATE = re.compile(r"(?m)^== \d+ (?P<name>\S+), state S, \d+ ticks, waits in (?P<waits>\w+)")
_KERNEL = (
    (re.compile("nanosleep"), "in a sleep"),
    (re.compile("futex"), "for a lock or a thread"),
    (
        re.compile("inet_csk_accept|sk_wait_data|unix_stream|skb_wait|inet_csk_wait"),
        "for a connection",
    ),
    (re.compile("poll|ep_|select"), "for a connection or a file"),
    (re.compile("pipe_"), "for a pipe"),
)
"""By the names of the kernel's functions (/proc/PID/wchan, proc(5)), which differ between
releases."""
_SHELLS = frozenset({"sh", "bash", "dash", "timeout", "setsid", "tee", "cat", "tail"})


def _frames(thread: str) -> Sequence[Frame]:
    return [
        Frame(file=found["file"], line=int(found["line"]), name=found["name"])
        for found in _FRAME.finditer(thread)
    ]


def _described(thread: Sequence[Frame], sources: Mapping[tuple[str, int], str]) -> tuple[str, str]:
    """What the innermost line of the user's own code calls, and its place. The innermost frame
    comes first; a call of C code has none.
    """
    number = next(n for n, each in enumerate(thread) if not is_library(each.file))
    here = thread[number]
    called = next((f.name for f in reversed(thread[:number]) if f.name not in _WRAPPERS), None)
    if called is None or called.startswith("__"):  # a class is made
        found = _CALL.search(sources.get((here.file, here.line), ""))
        called = found[1] if found else here.name
    return f"in {called}", f"{delivered_name(here.file)}:{here.line}"
