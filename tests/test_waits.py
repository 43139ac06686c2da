"""What is waited for is told after a while, once, to who shows it."""

from __future__ import annotations

import itertools

import pytest

from cloudtrain import waits
from cloudtrain.errors import RateError, TransientError
from cloudtrain.waits import told_to
from tests.fake_account import Clock


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_told", {})


def failing(error: Exception, times: int) -> object:
    counter = itertools.count()

    def call() -> str:
        if next(counter) < times:
            raise error
        return "done"

    return call


def test_a_long_retry_after_is_told_before_it_is_waited_for() -> None:
    heard: list[str] = []
    call = failing(RateError("instances: too many calls", retry_after=45.0), times=1)
    with told_to(heard.append):
        assert Clock().pace().patiently(call) == "done"  # type: ignore[arg-type]
    assert heard == ["asked again in 45 s: instances: too many calls"]


def test_a_call_that_is_made_again_is_told_once_it_takes_long() -> None:
    heard: list[str] = []
    clock = Clock()
    call = failing(TransientError("no answer"), times=7)
    with told_to(heard.append):
        assert clock.pace().patiently(call) == "done"  # type: ignore[arg-type]
    assert heard
    assert all(line.endswith("s: no answer") for line in heard)
    heard.clear()
    with told_to(heard.append):
        clock.pace().patiently(failing(TransientError("brief"), times=2))  # type: ignore[arg-type]
    assert heard == []


def test_what_takes_minutes_to_fail_is_not_asked_for_many_minutes() -> None:
    clock = Clock()

    def swallowed() -> None:
        clock.sleep(60.0)
        raise TransientError("timed out")

    with pytest.raises(TransientError):
        clock.pace().patiently(swallowed)
    assert clock.time - Clock().time < 130.0


def test_a_wait_for_a_state_is_told_where_it_has_a_name() -> None:
    heard: list[str] = []
    pace = Clock().pace()
    with told_to(heard.append):
        assert pace.until(lambda: None, within=60.0, what="worker0 is not listed yet") is None
        assert pace.until(lambda: None, within=60.0) is None
    assert heard == ["waiting, 60 s at most: worker0 is not listed yet"]


def test_the_same_words_are_told_once_and_to_the_innermost() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with told_to(outer.append):
        with told_to(inner.append):
            waits.tell("x")
            waits.tell("x")
        waits.tell("x")
        waits.tell("y")
    waits.tell("z")
    assert (inner, outer) == (["x"], ["y"])


def test_a_call_whose_first_try_took_all_the_time_is_made_once_more() -> None:
    clock = Clock()
    tries = itertools.count(1)

    def slow(times: int) -> str:
        clock.sleep(100.0)
        if next(tries) <= times:
            raise TransientError("no answer")
        return "done"

    assert clock.pace().patiently(lambda: slow(1)) == "done"
    tries = itertools.count(1)
    with pytest.raises(TransientError):
        clock.pace().patiently(lambda: slow(9))
    assert next(tries) == 3
