"""One listing of Azure's serves all threads that wait for something in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cloudtrain.core.errors import TransientError
from cloudtrain.core.parallel import fan_out
from cloudtrain.providers.azure.shared_poll import SharedPoll, interval
from cloudtrain.providers.base.timing import POLLS, Timing
from tests.support.fake_account import Clock

FAST = Timing(polls=replace(POLLS, pause=0.01, longest=0.05))


def watch(ask: Callable[[], Sequence[Any]], timing: Timing = FAST) -> SharedPoll:
    return SharedPoll(ask, lambda thing: thing["done"], timing)


def test_many_wait_with_few_questions() -> None:
    rounds = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal rounds
        rounds += 1
        return [{"id": f"/VMS/N{n}", "done": rounds > 5} for n in range(40)]

    watched = watch(ask)
    found = fan_out(
        list(range(40)), lambda n: watched.wait(f"/vms/n{n}", within=20.0), name=str, workers=40
    )
    assert [thing["id"] for thing in found if thing] == [f"/VMS/N{n}" for n in range(40)]
    assert rounds < 20


def test_a_list_that_was_asked_for_before_says_nothing_of_what_came_after() -> None:
    """Else a thing that is being changed would pass for ready, as it was before."""
    begun, go_on = threading.Event(), threading.Event()
    rounds = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            begun.set()
            go_on.wait(60)
        return [{"id": "a", "done": True, "round": rounds}, {"id": "b", "done": rounds > 2}]

    watched = watch(ask)
    found: dict[str, Any] = {}

    def wait(name: str) -> None:
        found[name] = watched.wait(name, within=20.0)

    first = threading.Thread(target=wait, args=("b",))
    first.start()
    begun.wait(60)
    second = threading.Thread(target=wait, args=("a",))
    second.start()
    while len(watched._waiting) < 2:
        pass
    go_on.set()
    first.join()
    second.join()
    assert found["a"]["round"] >= 2
    assert rounds == 3


def test_what_is_not_listed_is_not_waited_for() -> None:
    rounds = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal rounds
        rounds += 1
        return []

    assert watch(ask).wait("a", within=20.0) is None
    assert rounds == 3


def test_what_takes_too_long_is_given_up() -> None:
    clock = Clock()
    timing = replace(clock.timing(), polls=replace(POLLS, pause=0.2, longest=5.0))
    begun = clock.time
    with pytest.raises(TransientError, match="a: not ready after 60 s"):
        watch(lambda: [{"id": "/vms/a", "done": False}], timing).wait("/vms/a", within=60.0)
    assert 60 <= clock.time - begun <= 66


def test_lists_are_as_seldom_as_azure_asks() -> None:
    clock, asked = Clock(), list[float]()

    def ask() -> list[dict[str, Any]]:
        asked.append(clock.time)
        return [{"id": "a", "done": len(asked) == 3}]

    watch(ask, clock.timing()).wait("a", within=60.0, pause=10.0)
    assert [after - before for before, after in pairwise(asked)] == [10.0, 10.0]


def test_a_list_that_fails_is_told_to_all_who_wait() -> None:
    rounds = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal rounds
        rounds += 1
        raise TransientError("not well")

    watched = watch(ask)

    def wait(number: int) -> None:
        with pytest.raises(TransientError):
            watched.wait(str(number), within=20.0)

    fan_out(list(range(40)), wait, name=str, workers=40)
    assert rounds < 20


def test_the_one_who_asks_may_be_interrupted_and_another_goes_on() -> None:
    rounds = 0

    def ask() -> list[dict[str, Any]]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise KeyboardInterrupt
        return [{"id": "a", "done": rounds > 3}, {"id": "b", "done": rounds > 3}]

    watched = watch(ask)
    ended: list[Any] = []

    def wait(name: str) -> None:
        try:
            ended.append(watched.wait(name, within=20.0))
        except KeyboardInterrupt:
            ended.append("interrupted")

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.remove("interrupted")
    (thing,) = ended
    assert thing["done"]


def test_the_end_of_something_is_seen_a_tenth_late_at_most() -> None:
    timing = Timing()
    assert interval(timing, 0.0) == 0.1
    assert interval(timing, 10.0) == 1.0
    assert interval(timing, 600.0) == 5.0


def test_the_pause_after_a_list_of_many_pages_is_as_long_as_the_list() -> None:
    clock = Clock()
    timing = clock.timing()
    lists: list[tuple[float, float]] = []

    def ask() -> list[dict[str, Any]]:
        begun = clock.now()
        clock.sleep(1.5)
        lists.append((begun, clock.now()))
        return [{"id": "a", "done": len(lists) == 3}]

    watch(ask, timing).wait("a", within=60.0)
    pauses = [after - before for (_, before), (after, _) in pairwise(lists)]
    assert len(lists) == 3
    assert all(pause >= 1.5 for pause in pauses)
