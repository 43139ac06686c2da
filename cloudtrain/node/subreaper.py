"""Becomes another program, which gets the orphans below it as its children.

A shell cannot ask for that itself, and the request outlives execve(2):
https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html (read). Any Python from
3.6, as text.
"""

import os
import signal
import sys

SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Become the program in the arguments, with the environment and signals that this one got."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass
    # Python itself ignores them, and may set LC_CTYPE (PEP 538).
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open("/proc/self/environ", "rb") as file:
        variables = [line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line]
    os.execve(sys.argv[1], sys.argv[1:], dict(variables))
