"""The table of `make bench-quick`: the last ten rows, and what counts as slower."""

from __future__ import annotations

import pytest

from tests.support.project import ROOT


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import quick

    return quick


def test_a_ratio_is_slower_above_a_tenth_and_a_half_of_the_usual_one(quick: object) -> None:
    rows = [{"commit": f"c{n}", "a": f"{n:.2f}", "b": "1.00"} for n in (1, 2, 9)]
    assert quick._slower({"a": 2.3, "b": 1.15, "new": 99.0}, rows) == {}  # type: ignore[attr-defined]
    said = quick._slower({"a": 2.31, "b": 1.16}, rows)  # type: ignore[attr-defined]
    assert list(said) == ["a", "b"]
    assert "2.00 is usual" in said["a"]


def test_the_table_is_read_as_it_was_written(quick: object) -> None:
    rows = [{"commit": "c1", "a": "1.00", "b": ""}, {"commit": "c2", "a": "2.00", "b": "3.00"}]
    assert quick._rows(quick._table(rows)) == rows  # type: ignore[attr-defined]
