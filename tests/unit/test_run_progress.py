"""How far a run is, by what its first task has printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.core.metrics import LogLine
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.runs.run_progress import LATEST_BYTES, RunProgress, latest_lines, progress_in
from cloudtrain.state import Records
from cloudtrain.state.line_times import index_of


def lines(*texts: tuple[float, str]) -> list[LogLine]:
    return [LogLine(task="chief0", seen=seen, text=text) for seen, text in texts]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ([(0.0, "importing"), (1.0, "10 steps per epoch")], None),
        ([(1.0, "step 40 loss 0.5")], RunProgress(unit="step", at=40, loss=0.5)),
        (
            [(100.0, "Epoch 1/5"), (105.0, "9/9 - loss: 2.1"), (110.0, "Epoch 2/5")],
            RunProgress(unit="epoch", at=2, of=5, loss=2.1, left=36.0),
        ),
        # The first epoch has no pace yet.
        ([(100.0, "Epoch 1/5")], RunProgress(unit="epoch", at=1, of=5)),
        # A run that resumed, and is late in its last epoch.
        (
            [(50.0, "Epoch 8/9"), (60.0, "Epoch 9/9")],
            RunProgress(unit="epoch", at=9, of=9, left=0.0),
        ),
        # Times that are not known.
        ([(0.0, "Epoch 1/5"), (0.0, "Epoch 2/5")], RunProgress(unit="epoch", at=2, of=5)),
    ],
)
def test_progress_is_what_the_log_counts(
    printed: list[tuple[float, str]], expected: RunProgress | None
) -> None:
    assert progress_in(lines(*printed), now=114.0) == expected


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("TimeHistory: 10.9 seconds, 900.3 examples/second between steps", "900.3 examples/s"),
        ("step 100, 31.2 images/sec", "31.2 images/s"),
        ("10/10 ━━━━━━━━━━ 1s 12ms/step - accuracy: 0.5 - loss: 0.1", "83.3 steps/s"),
        ("9/9 - 2s - loss: 0.5 - 2s/epoch - 250us/step", "4e+03 steps/s"),
        ("1,234.5 Tokens per second", "1,234.5 tokens/s"),
        ("read 12 examples", None),
        ("0ms/step", None),
    ],
)
def test_the_speed_is_in_the_units_of_the_log(text: str, rate: str | None) -> None:
    found = progress_in(lines((1.0, "Epoch 1/2"), (2.0, text)), now=3.0)
    assert found is not None
    assert found.rate == rate


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "chief0.1.log"
    assert latest_lines(log) == []
    log.write_bytes(b"x" * LATEST_BYTES + b"\nEpoch 4/9\n\x1b[31mloss: 0.25\x1b[0m")
    index_of(log).write_text(f"0 100\n{LATEST_BYTES + 1} 200\n")
    assert [(line.seen, line.text) for line in latest_lines(log)] == [
        (200.0, "Epoch 4/9"),
        (200.0, "loss: 0.25"),
    ]


def test_status_shows_how_far_an_active_run_is(own_home: Path) -> None:
    records = Records("mnist")
    records.create()
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    run = Run(
        id="r1",
        cluster="mnist",
        command="python train.py",
        tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1),),
        state="running",
        created=1.0,
        attempts=(RunAttempt(number=1, started=1.0),),
    )
    records.save_run(run)
    log = records.log_path("r1", "chief0", 1)
    log.write_text("Epoch 1/4\nloss: 0.5\nEpoch 2/4\n")

    def shown(*flags: str) -> str:
        return CliRunner().invoke(cli, ["status", "mnist", "--offline", *flags]).stdout

    assert "    epoch 2 of 4, loss 0.5\n" in shown()
    assert '"progress": {\n' in shown("--json")
    records.save_run(replace(run, state="succeeded", ended=9.0))
    assert "epoch" not in shown()
    assert '"progress": null' in shown("--json")
