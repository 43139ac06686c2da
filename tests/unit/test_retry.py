"""Tries and polls end when they should, and long waits are reported once, to who shows them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core import retry
from cloudtrain.core.errors import RateError, TransientError
from cloudtrain.core.retry import Clock, Retry, poll_until, report_wait, waits_reported_to
from tests.support import fake_account


@dataclass
class Time:
    """Passes only where somebody sleeps or works."""

    passed: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.passed += seconds

    def clock(self, chance: float = 0.5) -> Clock:
        return Clock(monotonic=lambda: self.passed, sleep=self.sleep, chance=lambda: chance)


class Refused(Exception):
    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("refused")
        self.retry_after = retry_after


@dataclass
class Failing:
    """Takes `takes` seconds a time, and never succeeds."""

    time: Time
    takes: float = 0.0
    asks: float | None = None
    begun: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.begun.append(self.time.passed)
        self.time.passed += self.takes
        raise Refused(self.asks)


seconds = st.floats(min_value=0.01, max_value=1000.0)
policies = st.builds(
    Retry,
    pause=seconds,
    backoff=st.floats(min_value=1.0, max_value=10.0),
    longest=seconds,
    jitter=st.floats(min_value=0.0, max_value=1.0),
    tries=st.integers(min_value=2, max_value=30),
    within=seconds,
)
ROUNDED = 1 + 1e-9


def test_each_field_of_a_policy_is_tried() -> None:
    tried = {"pause", "backoff", "longest", "jitter", "tries", "within"}
    rest = {item.name for item in fields(Retry)} - tried
    assert rest == {"answers", "at_least"}, "add it to `policies`"


def given_up(policy: Retry, takes: float = 0.0, *, asks: float | None = None) -> Failing:
    work = Failing(Time(), takes, asks)
    with pytest.raises(Refused):
        policy.call(work, on=Refused, clock=work.time.clock())
    return work


@given(policies, seconds)
def test_no_pause_goes_beyond_the_deadline(policy: Retry, takes: float) -> None:
    work = given_up(policy, takes)
    for begun, pause in zip(work.begun, work.time.slept, strict=False):
        assert pause == 0 or begun + takes + pause <= policy.within * ROUNDED


@given(policies, seconds)
def test_work_is_tried_twice_at_least_and_never_more_often_than_allowed(
    policy: Retry, takes: float
) -> None:
    work = given_up(policy, takes)
    assert 2 <= len(work.begun) <= policy.tries
    assert len(work.time.slept) == len(work.begun) - 1


@given(policies)
def test_the_backoff_grows_up_to_its_longest_and_jitter_only_shortens_it(policy: Retry) -> None:
    pauses = [policy.pause_after(number) for number in range(1, 2000, 7)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= policy.longest
    slept = given_up(policy).time.slept
    for number, pause in enumerate(slept[:-1], 1):
        assert pause <= policy.pause_after(number)
        assert pause * ROUNDED >= min(
            policy.pause_after(number) * (1 - policy.jitter),
            policy.within - sum(slept[: number - 1]),
        )


@given(policies, seconds)
def test_nobody_is_asked_again_sooner_than_he_wished(policy: Retry, asks: float) -> None:
    assert min(given_up(policy, asks=asks).time.slept) >= asks


@given(policies, st.integers(min_value=0, max_value=40))
def test_a_poll_ends_with_the_first_answer_or_at_its_deadline(policy: Retry, after: int) -> None:
    time, answers = Time(), itertools.chain([None] * after, itertools.repeat("here"))
    answer = poll_until(lambda: next(answers), policy, clock=time.clock())
    asked = len(time.slept) + 1
    assert time.passed <= policy.within * ROUNDED
    if answer is not None:
        assert asked == after + 1
    else:
        assert asked <= after
        assert asked == policy.tries or time.passed * ROUNDED >= policy.within


def test_a_poll_asks_once_where_there_is_no_time_at_all() -> None:
    asked: list[int] = []
    assert poll_until(lambda: asked.append(1), Retry(pause=1.0, within=0.0)) is None
    assert asked == [1]


def test_what_ends_a_sleep_for_good_ends_the_tries_with_the_last_error() -> None:
    work = Failing(Time())
    clock = replace(work.time.clock(), sleep=lambda seconds: True)
    with pytest.raises(Refused):
        Retry(pause=1.0).call(work, on=Refused, clock=clock)
    assert len(work.begun) == 1
    assert poll_until(lambda: None, Retry(pause=1.0), clock=clock) is None


def test_an_error_that_no_further_try_mends_is_raised_at_once() -> None:
    work = Failing(Time())
    with pytest.raises(Refused):
        Retry(pause=1.0).call(work, on=Refused, unless=lambda error: True, clock=work.time.clock())
    with pytest.raises(ZeroDivisionError):
        Retry(pause=1.0).call(lambda: 1 // 0, on=Refused, clock=work.time.clock())
    assert len(work.begun) == 1


def test_an_error_that_is_an_answer_counts_for_tries_and_not_for_the_deadline() -> None:
    policy = Retry(pause=60.0, tries=5, within=90.0, answers=(Refused,))
    assert given_up(policy).begun == [0.0, 60.0, 120.0, 180.0, 240.0]


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_reported", {})


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
    with waits_reported_to(heard.append):
        assert fake_account.Clock().timing().call(call) == "done"  # type: ignore[arg-type]
    assert heard == ["retrying in 45 s: instances: too many calls"]


def test_a_call_that_is_made_again_is_told_once_it_takes_long() -> None:
    heard: list[str] = []
    clock = fake_account.Clock()
    call = failing(TransientError("no answer"), times=7)
    with waits_reported_to(heard.append):
        assert clock.timing().call(call) == "done"  # type: ignore[arg-type]
    assert heard
    assert all(line.endswith("s: no answer") for line in heard)
    heard.clear()
    with waits_reported_to(heard.append):
        clock.timing().call(failing(TransientError("brief"), times=2))  # type: ignore[arg-type]
    assert heard == []


def test_what_takes_minutes_to_fail_is_not_asked_for_many_minutes() -> None:
    clock = fake_account.Clock()

    def swallowed() -> None:
        clock.sleep(60.0)
        raise TransientError("timed out")

    with pytest.raises(TransientError):
        clock.timing().call(swallowed)
    assert clock.time - fake_account.Clock().time < 130.0


def test_a_wait_for_a_state_is_told_where_it_has_a_name() -> None:
    heard: list[str] = []
    timing = fake_account.Clock().timing()
    with waits_reported_to(heard.append):
        assert timing.until(lambda: None, within=60.0, what="worker0 is not listed yet") is None
        assert timing.until(lambda: None, within=60.0) is None
    assert heard == ["waiting, 60 s at most: worker0 is not listed yet"]


def test_the_same_words_are_told_once_and_to_the_innermost() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with waits_reported_to(outer.append):
        with waits_reported_to(inner.append):
            report_wait("x", taken=10.0)
            report_wait("x", taken=10.0)
        report_wait("x", taken=10.0)
        report_wait("y", taken=10.0)
    report_wait("z", taken=10.0)
    assert (inner, outer) == (["x"], ["y"])


def test_a_call_whose_first_try_took_all_the_time_is_made_once_more() -> None:
    clock = fake_account.Clock()
    tries = itertools.count(1)

    def slow(times: int) -> str:
        clock.sleep(100.0)
        if next(tries) <= times:
            raise TransientError("no answer")
        return "done"

    assert clock.timing().call(lambda: slow(1)) == "done"
    tries = itertools.count(1)
    with pytest.raises(TransientError):
        clock.timing().call(lambda: slow(9))
    assert next(tries) == 3
