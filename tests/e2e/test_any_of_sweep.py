"""`up` over three clouds, killed, or with calls that go wrong: nothing is left, or there twice.

A few of the points here; all of them with `--sweep`, each with every ending by
`python bench/any_of.py` (bench/any_of.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.candidate_sweep import ENDINGS, ORDER, Sweep, swept
from tests.support.lanes import Cases


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with swept(tmp_path_factory.mktemp("sweep")) as sweep:
        yield sweep


def test_a_killed_up_leaves_nothing_that_down_up_or_gc_do_not_find(
    sweep: Sweep, cases: Cases
) -> None:
    """The sample: one point of each cloud."""
    every = sweep.points()
    by_cloud = [[point for point in every if point.cloud == name] for name in sweep.clouds]
    tried = [point for points in by_cloud for point in cases.of(points, 1)]
    assert len(tried) >= len(sweep.clouds)
    first, killed = cases.random.randrange(len(ENDINGS)), 0
    for number, point in enumerate(tried, start=first):
        ending = ENDINGS[number % len(ENDINGS)]
        sweep.begin_anew()
        try:
            if sweep.killed(point):
                killed += 1
                sweep.end(ending)
        except AssertionError as error:
            raise AssertionError(f"{point}, then {ending}") from error
    assert killed


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fault", ["503", "reset after the work"])
def test_calls_that_go_wrong_once_change_nothing(sweep: Sweep, fault: str) -> None:
    sweep.begin_anew()
    assert sweep.faulty(fault) > 80


@pytest.mark.parametrize("cloud", ORDER)
def test_a_killed_deep_check_leaves_nothing_that_down_or_gc_do_not_find(
    sweep: Sweep, cases: Cases, cloud: str
) -> None:
    """By the name on record here, or by what the account says elsewhere, once its end has come."""
    killed = 0
    for point in cases.of(sweep.deep_points(cloud), 2):
        sweep.begin_anew(cloud)
        if not sweep.killed(point, "check", str(sweep.file), "--deep"):
            continue
        killed += 1
        trials = sweep.trials()
        assert len(trials) <= 1, (point, trials)
        for name in trials:  # none if nothing has been created yet
            if killed % 2:
                sweep.do("down", name, "--discard", "--yes")
            elif sweep.holding():
                sweep.do("gc", name, "--yes", home="another")
        assert sweep.holding() == {}, point
    assert killed
