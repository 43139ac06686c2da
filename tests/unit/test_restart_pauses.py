"""Pauses between the attempts of a run grow while it fails by itself, not while it loses nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.run_record import Cause, Run, RunAttempt
from cloudtrain.runs.state_machine import RESTART, pause_before_attempt

FAILURES = Path(__file__).parents[2] / "docs" / "failures.md"


def run(*kinds: Any) -> Run:
    """A run whose attempts ended for these reasons."""
    attempts = tuple(
        RunAttempt(
            number=number,
            started=0.0,
            ended=1.0,
            cause=Cause(task="worker0", node="m-worker0", kind=kind, text="…"),
        )
        for number, kind in enumerate(kinds, 1)
    )
    return Run(
        id="20261121-062404-k3f9",
        cluster="m",
        command="python train.py",
        tasks=(),
        state="running",
        created=0.0,
        attempts=attempts,
    )


@pytest.mark.parametrize(
    ("kinds", "pause"),
    [
        (["signal"], 2.0),
        (["signal"] * 3, 8.0),
        (["signal"] * 9, 60.0),
        (["lost"] * 9, 2.0),
        (["signal", "signal", "lost"], 2.0),
        (["lost", "lost", "exit", "exit"], 4.0),
    ],
)
def test_only_failures_one_after_the_other_make_them_longer(kinds: list[str], pause: float) -> None:
    assert pause_before_attempt(run(*kinds)) == pause


def test_the_page_names_these_pauses() -> None:
    first, *more, longest = (f"{RESTART.pause_after(number):g} s" for number in (1, 2, 3, 99))
    words = f"after {first}, after several failures in a row after {', '.join(more)}, … {longest}"
    assert words in " ".join(FAILURES.read_text("utf-8").split())
