"""Starts the watcher of one attempt (watcher.py) in a session of its own, and gives its answer.

Arguments: FOLDER WORK PORT ADDRESS TAG GRACE SAMPLER HELPERS; stdin: what `payload` reads. The
answer is `started PID`, `already`, `stopped` or `failed WHY`.
"""

# `signal`, which makes its numbers into an enumeration, takes half as long as the start of Python.
import _signal  # type: ignore[import-not-found]
import os
import sys

from cloudtrain.node import watcher

END = b"#end\n"


def main() -> None:
    folder = os.path.join(os.getcwd(), sys.argv[1])
    mask = os.umask(0o077)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        print(f"failed {folder} cannot be created: {error.strerror}")
        return
    os.umask(mask)
    given = payload(b"".join(iter(lambda: os.read(0, 1 << 16), b"")))
    if given is None:
        print("failed the environment arrived incomplete")
        return
    told, tells = os.pipe()
    if not os.fork():
        try:
            os.close(told)
            alone()
            watcher.Watcher(folder, *sys.argv[2:]).watch(given, tells)
        finally:
            os._exit(127)
    os.close(tells)
    with open(told, errors="surrogateescape") as answers:
        answer = answers.readline().rstrip("\n")
    os.write(1, os.fsencode(answer or "failed the start was interrupted") + b"\n")


def payload(text: bytes) -> "tuple[dict[bytes, bytes], bytes] | None":
    """The task's variables and its line: `NAME=VALUE` each, an empty part, the line and an end. If
    the client died while sending, half an environment must not be run."""
    *variables, nothing, line, end = [b"", b"", b"", *text.split(b"\0")]
    if end != END or nothing:
        return None
    pairs = (variable.partition(b"=") for variable in variables if variable)
    return {name: value for name, _, value in pairs}, line


def alone() -> None:
    """Become a process in a session of its own, without files and signals of Python or a client. A
    socket of the SSH server held by the watcher would keep the channel open."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    os.close(nothing)
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python itself ignores them
        _signal.signal(number, _signal.SIG_DFL)
