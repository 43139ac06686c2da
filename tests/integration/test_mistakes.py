"""What people are told about mistakes, refusals and Ctrl-C; bench/errors.md has the answers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def loaded() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "bench" / "errors.py"
    spec = importlib.util.spec_from_file_location("bench_errors", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bench_errors"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ERRORS = loaded()


@pytest.mark.parametrize("case", ERRORS.CASES, ids=lambda case: case.what)
def test_a_mistake_is_answered_with_its_place_and_a_next_step(case: object) -> None:
    told = ERRORS.run(case)
    assert told.faults == [], told.text


def test_there_are_eighty() -> None:
    assert len(ERRORS.CASES) >= 80
