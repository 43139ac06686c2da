"""`up` over three clouds, killed, or with calls that go wrong: nothing is left, or there twice.

A few of the points here; all of them with `python bench/any_of.py` (bench/any_of.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.candidate_sweep import ENDINGS, Point, Sweep, swept

POINTS = 10
"""Tried here: more than that take minutes."""


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    with swept(tmp_path) as sweep:
        yield sweep


def test_a_killed_up_leaves_nothing_that_down_up_or_gc_do_not_find(sweep: Sweep) -> None:
    every = sweep.points()
    by_cloud = {name: [p for p in every if p.cloud == name] for name in sweep.clouds}
    tried = [point for points in by_cloud.values() for point in _spread(points, POINTS // 3 + 1)]
    for number, point in enumerate(tried[:POINTS]):
        ending = ENDINGS[number % len(ENDINGS)]
        sweep.begin_anew()
        try:
            if sweep.killed(point):
                sweep.end(ending)
        except AssertionError as error:
            raise AssertionError(f"{point}, then {ending}") from error


@pytest.mark.parametrize("fault", ["503", "reset after the work"])
def test_calls_that_go_wrong_once_change_nothing(sweep: Sweep, fault: str) -> None:
    sweep.begin_anew()
    assert sweep.faulty(fault) > 100


def _spread(points: list[Point], count: int) -> list[Point]:
    """So many of them, evenly, without the first ones, which only ask."""
    step = len(points) / (count + 0.5)
    return [points[int(step * (number + 0.75))] for number in range(count)]
