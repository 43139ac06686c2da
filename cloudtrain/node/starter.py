"""Starts the watcher of one attempt (task_watcher.sh) in a session of its own, with its stdin.

Sent as text, with WATCHER FOLDER WORK PORT SAMPLER TAG GRACE. Gives the watcher's answer:
`started PID`, `already`, `stopped` or `failed WHY`. The watcher gets the orphans below it as its
children, which a shell cannot ask for itself; the request outlives execve(2):
https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html (read).
"""

# `signal`, which makes its numbers into an enumeration, takes half as long as the start of Python.
import _signal  # type: ignore[import-not-found]
import os
import sys

SET_CHILD_SUBREAPER = 36


def main() -> None:
    watcher, folder, *others = sys.argv[1:]
    folder = os.path.join(os.getcwd(), folder)
    mask = os.umask(0o077)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        print(f"failed {folder} cannot be created: {error.strerror}")
        return
    os.umask(mask)
    text = b"".join(iter(lambda: os.read(0, 1 << 16), b""))
    # Private pipes: a socket of the SSH server held by the watcher would keep the channel open.
    (given, gives), (told, tells) = os.pipe(), os.pipe()
    if not os.fork():
        try:
            become(("/bin/sh", "-c", watcher, "sh", folder, *others), given, tells)
        finally:
            os._exit(127)
    os.close(given)
    os.close(tells)
    try:
        while text:
            text = text[os.write(gives, text) :]
    except BrokenPipeError:
        pass  # its answer says why
    os.close(gives)
    with open(told, errors="surrogateescape") as answers:
        answer = answers.readline().rstrip("\n")
    os.write(1, os.fsencode(answer or "failed the start was interrupted") + b"\n")


def become(program: "tuple[str, ...]", stdin: int, stdout: int) -> None:
    """Become a program in a session of its own, with the environment and signals of this one."""
    os.setsid()
    for target, source in ((0, stdin), (1, stdout), (2, os.open(os.devnull, os.O_WRONLY))):
        os.dup2(source, target)
    try:
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass
    # Python itself ignores them, and may set LC_CTYPE (PEP 538).
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    with open("/proc/self/environ", "rb") as file:
        variables = [line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line]
    os.execve(program[0], program, dict(variables))
