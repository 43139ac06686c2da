"""What one test of a run makes for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.once import once


def test_the_first_to_ask_makes_it_and_all_get_the_same(tmp_path: Path) -> None:
    assert once(tmp_path, "losses", lambda: ["0.33"]) == ["0.33"]
    assert once(tmp_path, "losses", lambda: pytest.fail("it is there")) == ["0.33"]
    assert once(tmp_path, "others", lambda: 1) == 1


def test_what_could_not_be_made_is_made_by_the_next(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        once(tmp_path, "losses", lambda: 1 // 0)
    assert once(tmp_path, "losses", lambda: 2) == 2
