"""Starts a node's processes and reaps all of them, including orphans that the kernel re-parents."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RESET = (signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

Ended = Callable[[int], None]
"""Called with the wait status (for `os.WIFSIGNALED`, …); must not block."""


class Reaper:
    """Reaps all children of a node server, including orphans re-parented to it
    (PR_SET_CHILD_SUBREAPER).
    """

    def __init__(self) -> None:
        self._ended: dict[int, Ended] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def spawn(
        self,
        arguments: tuple[bytes | str, ...],
        environment: Mapping[str, str],
        files: Sequence[tuple[Any, ...]],
        ended: Ended,
    ) -> int:
        """Start a process in its own session; `files` are posix_spawn's file actions.

        Holds the lock, so that even a process that exits at once is known before it is reaped.
        """
        with self._changed:
            pid = os.posix_spawn(
                arguments[0],
                arguments,
                environment,
                file_actions=files,
                setsid=True,
                setsigmask=(),
                setsigdef=RESET,
            )
            self._ended[pid] = ended
            self._changed.notify()
            return pid

    def forget(self, pid: int) -> None:
        """Stop reporting this process's end; it is still reaped."""
        with self._changed:
            self._ended.pop(pid, None)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                # No child, so no orphan either: orphans come from our children.
                with self._changed:
                    self._changed.wait_for(lambda: self._ended)
                continue
            with self._changed:
                ended = self._ended.pop(pid, None)
                if ended:
                    ended(status)
