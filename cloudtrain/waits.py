"""Who is told what is waited for, where nothing else is heard of for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SOON = 10.0
"""Seconds that may be waited without a word."""
AGAIN = 30.0
"""Seconds in which the same words are told once, by however many threads."""

_listeners: list[Callable[[str], None]] = []
_told: dict[str, float] = {}
_lock = threading.Lock()


@contextmanager
def told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile that one is told, and nobody from before."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(text: str) -> None:
    with _lock:
        now = time.monotonic()
        if not _listeners or now - _told.get(text, -AGAIN) < AGAIN:
            return
        _told[text] = now
        listener = _listeners[-1]
    listener(text)
