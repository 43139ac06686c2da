"""No result and no failure is lost, and an interrupt waits for what is in flight."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cloudtrain.core.errors import NodesError, NodeUnreachable, QuotaError
from cloudtrain.core.parallel import fan_out


def test_results_come_in_the_order_of_the_items() -> None:
    assert fan_out(range(200), lambda number: number * 2, name=str) == list(range(0, 400, 2))


def test_no_items_give_no_results() -> None:
    assert fan_out([], lambda item: item, name=str) == []


def test_one_item_is_worked_on_in_the_callers_thread() -> None:
    assert fan_out([1], lambda _: threading.current_thread(), name=str) == [
        threading.current_thread()
    ]


def test_items_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(64)
    fan_out(range(64), lambda _: together.wait(60), name=str)


def test_there_are_at_most_as_many_at_once_as_workers() -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(60)
        with lock:
            running -= 1

    together = threading.Barrier(3)
    fan_out(range(9), work, name=str, workers=3)
    assert most == 3


def test_one_failure_is_raised_as_it_is_after_all_others_are_done() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            raise NodeUnreachable("a0", "no answer", hint="look")
        done.append(number)

    with pytest.raises(NodeUnreachable, match="a0: no answer"):
        fan_out(range(20), work, name=str)
    assert sorted(done) == list(range(1, 20))


def test_several_failures_are_all_in_one_error() -> None:
    def work(number: int) -> None:
        if number == 1:
            raise QuotaError("no more CPUs", hint="ask for quota")
        if number == 3:
            raise ValueError("odd")
        if number == 5:
            raise SystemExit(7)

    with pytest.raises(NodesError) as caught:
        fan_out(range(6), work, name=lambda number: f"n{number}")
    assert str(caught.value) == "n1: no more CPUs\nn3: odd\nn5: 7"
    assert caught.value.exit_code == 3
    assert caught.value.hint == "ask for quota"


def test_two_failures_of_one_name_are_both_kept() -> None:
    def work(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(NodesError) as caught:
        fan_out([7, 8], work, name=lambda _: "same")
    assert str(caught.value) == "same: 7\nsame (1): 8"


def interrupt_main() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_work_in_flight_and_starts_nothing_more() -> None:
    finished: list[int] = []
    ended = threading.Event()

    def work(number: int) -> None:
        if number == 3:
            interrupt_main()
        assert ended.wait(60)
        finished.append(number)

    impatient = iter([True, True])

    def on_interrupt() -> None:
        if next(impatient, False):
            interrupt_main()
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        fan_out(range(100), work, name=str, workers=4, on_interrupt=on_interrupt)
    assert sorted(finished) == [0, 1, 2, 3]


def test_failures_before_an_interrupt_are_its_cause() -> None:
    interrupted = threading.Event()

    def work(number: int) -> None:
        if number == 1:
            interrupt_main()
        assert interrupted.wait(60)
        raise ValueError(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        fan_out(range(9), work, name=str, workers=2, on_interrupt=interrupted.set)
    assert isinstance(caught.value.__cause__, NodesError)
    assert set(caught.value.__cause__.failures) == {"0", "1"}
