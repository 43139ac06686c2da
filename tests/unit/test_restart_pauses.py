"""Pauses between the attempts of a run grow while it fails by itself, not while it loses nodes."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.core.run_record import Cause, Run, RunAttempt
from cloudtrain.runs.state_machine import pause_before_attempt


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
