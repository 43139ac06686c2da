"""How many bytes a node uploads before its end, and when it begins."""

import pytest

from cloudtrain.node.archiver import EARLIEST, FIRST, LEAST, LIMIT, Ending

MIB = 1 << 20


def test_an_archive_takes_a_quarter_of_the_seconds_left_at_the_measured_rate() -> None:
    end = Ending(1000.0, 880.0, 940.0)
    assert end.room(0.0) == LIMIT
    assert end.room(880.0) == FIRST
    end.measure(100 * MIB, 10.0)
    assert end.room(880.0) == 10 * MIB * 120 / 4
    assert end.room(999.0) == LEAST
    assert end.room(2000.0) == LEAST


def test_a_small_upload_measures_nothing() -> None:
    end = Ending(1000.0, 880.0, 940.0)
    end.measure(1000, 10.0)
    assert end.rate == 0.0


def test_a_notice_shortens_the_life_and_the_first_word_stays() -> None:
    end = Ending(float("inf"), float("inf"), float("inf"))
    assert not end.is_near(1e9)
    assert end.announce("preempted", 100.0, 150.0)
    assert (end.at, end.save_until) == (250.0, 130.0)
    assert not end.announce("shutdown", 200.0, 30.0)
    assert (end.at, end.word) == (230.0, "preempted")


def test_the_shorter_the_notice_the_shorter_the_wait_for_the_task() -> None:
    end = Ending(float("inf"), float("inf"), float("inf"))
    end.announce("preempted", 100.0, 30.0)
    assert end.save_until == 110.0


@pytest.mark.parametrize(
    ("rate", "size", "last", "stop"),
    [
        (100 * MIB, 1000 * MIB, 9880.0, 9940.0),  # 50 s: in time as it is
        (1 * MIB, 600 * MIB, 10000 - 1230.0, 9940.0),
        (0.01 * MIB, 10_000 * MIB, 10000 - EARLIEST, 9940.0),
    ],
)
def test_slow_uploads_begin_earlier(rate: float, size: int, last: float, stop: float) -> None:
    end = Ending(10000.0, 9880.0, 9940.0)
    end.measure(int(rate * 100), 100.0)
    end.plan(size, 0)
    assert (end.last, end.stop) == (last, stop)


def test_a_large_checkpoint_has_its_task_ended_earlier() -> None:
    end = Ending(10000.0, 9880.0, 9940.0)
    end.measure(100 * MIB, 100.0)
    end.plan(400 * MIB, 400 * MIB)
    assert (end.last, end.stop) == (10000.0 - 830.0, 10000.0 - 415.0)
    end.plan(0, 0)
    assert (end.last, end.stop) == (9880.0, 9940.0)


def test_without_a_known_end_nothing_is_planned() -> None:
    end = Ending(float("inf"), float("inf"), float("inf"))
    end.measure(10 * MIB, 1.0)
    assert not end.is_in_reach(1e12)
    assert end.room(1e12) == LIMIT
