"""Runs the same work on many items in parallel; returns every result or raises every failure."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Generic, TypeVar

from cloudtrain.core.errors import NodesError, raise_all

T = TypeVar("T")
R = TypeVar("R")


def fan_out(
    items: Sequence[T],
    work: Callable[[T], R],
    *,
    name: Callable[[T], str],
    workers: int = 64,
    on_interrupt: Callable[[], None] = lambda: None,
) -> list[R]:
    """Run `work` on every item in at most `workers` threads; results in the items' order.

    Processes every item even if others fail. A single failure is raised unchanged; several as a
    NodesError with all of them by `name`. On Ctrl-C, starts nothing more, calls `on_interrupt` once
    (which may end work sooner, like closing a transport), waits for everything in flight, as a node
    that is being created must not be lost, and then raises KeyboardInterrupt."""
    if len(items) == 1:
        return [work(items[0])]
    batch = _Batch(items, work)
    interrupt = batch.finish(workers, on_interrupt)
    failures = _by_name(items, batch.failures, name)
    if interrupt is not None:
        raise interrupt from (NodesError(failures) if failures else None)
    raise_all(failures)
    return [batch.results[number] for number in range(len(items))]


def ask_all(
    items: Sequence[T], ask: Callable[[T], R], *, name: Callable[[T], str], workers: int = 64
) -> list[R]:
    """Same as `fan_out`, for queries that change nothing: Ctrl-C does not wait for the answers."""
    if len(items) == 1:
        return [ask(items[0])]
    batch = _Batch(items, ask)
    batch.answer(workers)
    raise_all(_by_name(items, batch.failures, name))
    return [batch.results[number] for number in range(len(items))]


class _Batch(Generic[T, R]):
    """Work on a batch of items. `missing` counts those waiting or in flight."""

    def __init__(self, items: Sequence[T], work: Callable[[T], R]) -> None:
        self.results: dict[int, R] = {}
        self.failures: dict[int, BaseException] = {}
        self._work = work
        self._waiting = deque(enumerate(items))
        self._missing = len(items)
        self._changed = threading.Condition()

    def finish(self, workers: int, on_interrupt: Callable[[], None]) -> KeyboardInterrupt | None:
        """Wait until nothing is missing; return a KeyboardInterrupt raised meanwhile."""
        try:
            for _ in range(min(workers, len(self._waiting))):
                threading.Thread(target=copy_context().run, args=(self._drain,)).start()
            self._wait()
        except KeyboardInterrupt as interrupt:
            _uninterrupted(self._cancel)
            try:
                _uninterrupted(on_interrupt)
            finally:
                _uninterrupted(self._wait)
            return interrupt
        return None

    def answer(self, workers: int) -> None:
        """Wait until nothing is missing; raise Ctrl-C at once: dropping queries loses nothing."""
        try:
            threads = [
                threading.Thread(target=copy_context().run, args=(self._drain,), daemon=True)
                for _ in range(min(workers, len(self._waiting)))
            ]
            for thread in threads:
                thread.start()
            self._wait()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            _uninterrupted(self._cancel)
            raise

    def _drain(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    return
                number, item = self._waiting.popleft()
            try:
                self.results[number] = self._work(item)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                self.failures[number] = error
            with self._changed:
                self._missing -= 1
                self._changed.notify_all()

    def _cancel(self) -> None:
        with self._changed:
            self._missing -= len(self._waiting)
            self._waiting.clear()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._missing)


def _uninterrupted(step: Callable[[], None]) -> None:
    """Run `step` to completion, ignoring KeyboardInterrupt."""
    while True:
        try:
            return step()
        except KeyboardInterrupt:
            continue


def _by_name(
    items: Sequence[T], failures: Mapping[int, BaseException], name: Callable[[T], str]
) -> dict[str, BaseException]:
    """The failures by name, in the items' order; of two with one name, the second gets its own."""
    named: dict[str, BaseException] = {}
    for number in sorted(failures):
        label = name(items[number])
        named[f"{label} ({number})" if label in named else label] = failures[number]
    return named
