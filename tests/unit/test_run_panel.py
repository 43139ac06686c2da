"""Lines below the log of a run that a command follows on a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cli.live_view import EVERY, run_panel
from cloudtrain.core.events import NodeCreated, NodeRequested, NodesPlaced
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.state import Records

RUN = Run(
    id="r1",
    cluster="mnist",
    command="python train.py",
    tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1),),
    state="running",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0),),
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    records = Records("mnist")
    records.create()
    return records


def test_an_active_run_has_its_age_and_progress(records: Records) -> None:
    records.save_run(RUN)
    records.log_path("r1", "chief0", 1).write_text("Epoch 1/4\nloss: 0.5\nEpoch 2/4\n")
    assert run_panel("mnist", lambda: 1720.0)() == [
        "── run r1  attempt 1  12m",
        "   epoch 2 of 4, loss 0.5",
    ]


def test_without_an_active_run_there_are_no_lines(records: Records) -> None:
    assert run_panel("mnist")() == []
    records.save_run(replace(RUN, state="succeeded", ended=1100.0))
    assert run_panel("mnist")() == []
    assert run_panel("no-such-cluster")() == []


def test_the_runs_cost_is_that_of_all_nodes_since_its_start(records: Records) -> None:
    for event in (
        NodeRequested(node="mnist-chief0"),
        NodeCreated(node="mnist-chief0", id="1", placement="z"),
        NodesPlaced(places={"mnist-chief0": "z"}, prices={"mnist-chief0": 2.0}),
    ):
        records.journal(event)
    created = max(line["time"] for line in records.events())
    records.save_run(replace(RUN, created=created))
    (line,) = run_panel("mnist", lambda: created + 3600.0)()
    assert line == "── run r1  attempt 1  1h 00m  2.00 $"


def test_lines_hold_for_a_while_and_are_then_read_anew(records: Records) -> None:
    records.save_run(RUN)
    now = [1010.0]
    panel = run_panel("mnist", lambda: now[0])
    first = panel()
    now[0] += EVERY / 2
    assert panel() is first
    now[0] += EVERY
    assert panel() == ["── run r1  attempt 1  13s"]
