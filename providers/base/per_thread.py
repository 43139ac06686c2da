"""One object per thread: libcloud's connections are not thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerThread(Generic[T]):
    """Calls `make()` once in each thread."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._local = threading.local()

    def get(self) -> T:
        if not hasattr(self._local, "value"):
            self._local.value = self._make()
        value: T = self._local.value
        return value
