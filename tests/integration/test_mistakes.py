"""What people are told about mistakes, refusals and Ctrl-C; bench/errors.md has the answers."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest

from tests.support import commands


def loaded() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "bench" / "errors.py"
    spec = importlib.util.spec_from_file_location("bench_errors", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bench_errors"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ERRORS = loaded()


def start(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, output: IO[bytes]
) -> commands.Command:
    own = {k: v for k, v in os.environ.items() if k.startswith(commands.STARTS)}
    env = {**own, **environment}
    return commands.start(
        arguments,
        env=env,
        cwd=folder,
        stdout=output,
        stderr=output,
        limits={"console.plain.SILENCE": 0.2},
    )


@pytest.mark.sweep(30)
@pytest.mark.parametrize("case", ERRORS.CASES, ids=lambda case: case.what)
def test_a_mistake_is_answered_with_its_place_and_a_next_step(case: object) -> None:
    told = ERRORS.run(case, start)
    assert told.faults == [], told.text


def test_there_are_eighty() -> None:
    assert len(ERRORS.CASES) >= 80
