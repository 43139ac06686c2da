"""Silence counts only while this process listens."""

from __future__ import annotations

from cloudtrain.core.moments import LATE, READS, Awake, awake, gaps


class Passed:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_seconds_in_which_the_process_stood_still_do_not_count() -> None:
    passed = Passed()
    clock = Awake(passed)
    begin = clock.now()
    passed.seconds += 3.0
    assert clock.now() - begin == 3.0
    passed.seconds += 8 * 3600.0
    assert clock.now() - begin == 3.0
    assert clock.gaps == 1


def test_what_arrived_meanwhile_is_read_before_silence_counts_again() -> None:
    passed = Passed()
    clock = Awake(passed)
    begin = clock.now()
    passed.seconds += 3600.0
    clock.now()
    for _ in range(int(READS)):
        assert clock.now() == begin
        passed.seconds += 1.0
    clock.now()
    passed.seconds += 1.0
    assert clock.now() == begin + 2.0, "from the last tick of that time on"


def test_a_busy_machine_is_no_gap() -> None:
    passed = Passed()
    clock = Awake(passed)
    begin = clock.now()
    for _ in range(5):
        passed.seconds += LATE
        clock.now()
    assert clock.now() - begin == 5 * LATE
    assert clock.gaps == 0


def test_the_clock_of_this_process_ticks_by_itself() -> None:
    first = awake()
    assert awake() >= first
    assert gaps() == gaps()
