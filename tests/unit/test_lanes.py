"""The lanes of the tests: which cases `make test` draws, and which `--sweep` takes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lanes import Cases, _sampled, _swept


def item(name: str, *marks: pytest.Mark, **params: object) -> Any:
    """A test, of which only what the lanes ask for is there."""
    call = SimpleNamespace(id="-".join(map(str, params.values())), params=params)
    made = Item(nodeid=f"t.py::{name}[{call.id}]", callspec=call, fixturenames=())
    made.iter_markers = lambda wanted: iter(marks if wanted == "sweep" else ())
    made.get_closest_marker = lambda wanted: next(made.iter_markers(wanted), None)
    return made


class Item(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def kills(mark: pytest.Mark) -> list[Any]:
    return [item("test_kill", mark, cloud=c, call=n) for c in ("aws", "gcp") for n in range(10)]


def ids(items: set[Any]) -> set[str]:
    return {each.callspec.id for each in items}


def test_other_tests_are_all_taken_and_of_a_sweep_a_few_cases() -> None:
    plain = [item("test_plain", n=n) for n in range(5)]
    chosen = _sampled([*plain, *kills(pytest.mark.sweep(3).mark)], 1)
    assert set(plain) < chosen
    assert len(chosen) == 5 + 3


def test_a_sample_has_so_many_cases_for_each_value_and_those_that_it_always_has() -> None:
    mark = pytest.mark.sweep(2, per="cloud", always=("gcp-7",)).mark
    for seed in range(5):
        chosen = ids(_sampled(kills(mark), seed))
        assert len([each for each in chosen if each.startswith("aws")]) == 2
        assert len([each for each in chosen if each.startswith("gcp")]) == 3
        assert "gcp-7" in chosen


def test_of_cases_that_differ_in_one_parameter_alone_so_many_are_drawn() -> None:
    chosen = ids(_sampled(kills(pytest.mark.sweep(1, over="cloud").mark), 4711))
    assert sorted(each.partition("-")[2] for each in chosen) == [str(n) for n in range(10)]
    assert {each.partition("-")[0] for each in chosen} == {"aws", "gcp"}


def test_several_tests_of_a_file_are_drawn_from_together() -> None:
    mark = pytest.mark.sweep(2, of="faults").mark
    asked = [item(f"test_{letter}", mark, of=letter) for letter in "abcde"]
    drawn = [ids(_sampled(asked, seed)) for seed in range(20)]
    assert {len(each) for each in drawn} == {2}
    assert set.union(*drawn) == set("abcde")


def test_a_case_that_is_left_to_the_sweeps_is_never_drawn() -> None:
    drawn, left = pytest.mark.sweep(9).mark, pytest.mark.sweep(0).mark
    cases = [item("test_kill", drawn, n=1), item("test_kill", drawn, left, n=2)]
    assert ids(_sampled(cases, 1)) == {"1"}


def test_a_seed_draws_the_same_cases_again() -> None:
    mark = pytest.mark.sweep(3).mark
    assert ids(_sampled(kills(mark), 4711)) == ids(_sampled(kills(mark), 4711))
    assert len({frozenset(ids(_sampled(kills(mark), seed))) for seed in range(9)}) > 1


def test_a_sweep_takes_every_case_and_no_other_test() -> None:
    mark, asks = pytest.mark.sweep(0).mark, item("test_asks")
    asks.fixturenames = ("cases",)
    every = kills(mark)
    assert _sampled(every, 1) == set()
    assert _swept([item("test_plain"), asks, *every]) == {asks, *every}


def test_a_test_that_goes_through_its_cases_takes_some_in_their_order() -> None:
    some = Cases(every=False, random=random.Random(1)).of(range(20), 3, always=(7,))
    assert some == sorted(some)
    assert len(some) == 4
    assert 7 in some
    assert Cases(every=True, random=random.Random(1)).of(range(20), 3) == list(range(20))
