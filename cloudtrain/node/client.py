"""What ties a program on a node to the client that started it: it ends with it, and answers it."""

import json
import os
import select
import sys
import threading
import time


def attend() -> None:
    """Heartbeats from now on, and the end of this process with the client's."""
    for work in (beat, leave):
        threading.Thread(target=work, daemon=True).start()


def beat() -> None:
    """A large file gives no line for minutes: a NUL on stderr says that it goes on."""
    while True:
        time.sleep(5)
        os.write(2, b"\0")


def leave() -> None:
    """Ends this process when the client is gone, and the end of stdout that it reads is closed."""
    poll = select.poll()
    poll.register(1, 0)  # POLLERR and POLLHUP are told always
    poll.poll()
    os._exit(1)


def order() -> "dict[str, object]":
    """The first line on stdin."""
    read = json.loads(sys.stdin.buffer.readline().decode())
    assert isinstance(read, dict)
    return read


said = threading.Lock()


def tell(fact: object) -> None:
    line = json.dumps(fact) + "\n"
    with said:
        sys.stdout.write(line)
        sys.stdout.flush()


def plain(name: str) -> bytes:
    """The bytes of a file name that came as JSON."""
    return name.encode("utf-8", "surrogateescape")
