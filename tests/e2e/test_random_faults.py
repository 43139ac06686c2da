"""Runs with faults at random moments; of the kind that bench/faults.py makes hundreds of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fault_places import TASKS, Lent, Place, place
from tests.support.fault_plan import KINDS, planned
from tests.support.fault_trial import Trial

RUNS = [
    ("local", "kill task", 9),
    ("local", "kill client", 7),
    ("local", "full store", 7),
    pytest.param("hosts", "cut", 7, marks=pytest.mark.openssh),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("where", "kind", "seed"), RUNS)
def test_a_run_with_a_fault_ends_right_and_leaves_nothing(
    tmp_path: Path, where: str, kind: str, seed: int
) -> None:
    kinds = (Lent if where == "hosts" else Place).kinds
    if kind not in kinds:
        pytest.skip(f"{kind}: would be made with a file system of its own, which needs root")
    plan = planned(seed, [kind], TASKS, pair=False)
    with place(where, tmp_path / "place") as made:
        result = Trial(made, plan).run()
    assert result.verdict != "wrong", "\n".join([result.words, *result.wrong])


def test_a_seed_names_the_same_faults_each_time() -> None:
    for pair in (False, True):
        made = planned(7, KINDS, TASKS, pair=pair)
        assert made == planned(7, reversed(list(KINDS)), TASKS, pair=pair)
        assert len(made.faults) == (2 if pair else 1)
    assert planned(7, KINDS, TASKS, pair=True) != planned(8, KINDS, TASKS, pair=True)
