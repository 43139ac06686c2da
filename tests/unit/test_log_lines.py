"""`logs --since --grep --timestamps --json`: lines one by one, with the time of their arrival."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli, run
from cloudtrain.console import times
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.runs.tail import LineView, LogLine
from cloudtrain.state import Records
from cloudtrain.state.line_times import Arrival, ArrivalIndex, arrivals, index_of, time_at

NOW = 1_795_000_000.0


def view(shown: list[tuple[str, str, float | None]], **wanted: object) -> LineView:
    def show(line: LogLine) -> None:
        shown.append((line.task, line.text, line.time))

    return LineView(LoggingConsole(), show, clock=lambda: NOW, **wanted)  # type: ignore[arg-type]


# ── the index ────────────────────────────────────────────────────────────────


def test_an_entry_stands_for_all_bytes_of_a_second(tmp_path: Path) -> None:
    log = tmp_path / "chief0.1.log"
    index = ArrivalIndex(log)
    for offset, now in ((0, 100.0), (10, 100.5), (20, 101.2), (30, 160.0)):
        index.arrived(offset, now)
    assert arrivals(log) == (Arrival(0, 100), Arrival(20, 101), Arrival(30, 160))
    assert [time_at(arrivals(log), offset) for offset in (0, 19, 20, 29, 500)] == [
        100, 100, 101, 101, 160,
    ]  # fmt: skip
    assert index_of(log).stat().st_mode & 0o777 == 0o600


def test_bytes_before_the_index_began_have_no_time_and_a_torn_entry_is_skipped(
    tmp_path: Path,
) -> None:
    log = tmp_path / "chief0.1.log"
    index_of(log).write_bytes(b"10 100\n20 1x\n\xff\n30 16020 170\n40 180")
    assert arrivals(log) == (Arrival(10, 100), Arrival(40, 180))
    assert time_at(arrivals(log), 9) is None
    assert arrivals(tmp_path / "none.log") == ()


def test_an_index_that_cannot_be_written_does_not_disturb_the_log(tmp_path: Path) -> None:
    ArrivalIndex(tmp_path / "no" / "such" / "folder.log").arrived(0, 1.0)


# ── the lines ────────────────────────────────────────────────────────────────


def test_lines_of_a_log_have_the_time_at_which_they_began_to_arrive() -> None:
    shown: list[tuple[str, str, float | None]] = []
    lines = view(shown)
    index = (Arrival(0, 100), Arrival(4, 200))
    lines.recorded("chief0", b"one\ntwo\nthree\nfo", index, None, whole=False)
    lines.task_output("chief0", b"ur\nfi")
    lines.flush()
    assert shown == [
        ("chief0", "one", 100),
        ("chief0", "two", 200),
        ("chief0", "three", 200),
        ("chief0", "four", NOW),
        ("chief0", "fi", NOW),
    ]


def test_the_last_line_of_a_whole_log_need_not_be_terminated() -> None:
    shown: list[tuple[str, str, float | None]] = []
    lines = view(shown)
    lines.recorded("chief0", b"one\n\ntwo", (), None, whole=True)
    lines.flush()
    assert [text for _, text, _ in shown] == ["one", "", "two"]


def test_only_lines_that_match_and_are_recent_count_for_the_tail() -> None:
    shown: list[tuple[str, str, float | None]] = []
    index = (Arrival(0, 100), Arrival(7, 200))
    lines = view(shown, since=150, pattern=re.compile("loss"))
    data = b"loss 1\nloss 2\nother\nloss 3\nloss 4\n"
    lines.recorded("chief0", data, index, 2, whole=True)
    lines.task_output("worker0", b"other\nloss 5\n")
    assert [text for _, text, _ in shown] == ["loss 3", "loss 4", "loss 5"]
    lines.recorded("chief0", data, index, 0, whole=True)
    assert len(shown) == 3


def test_a_progress_bar_is_one_line_with_its_last_state() -> None:
    shown: list[tuple[str, str, float | None]] = []
    view(shown).recorded("chief0", b"1/2\r2/2\x1b[0m\n\0\0ok\n", (), None, whole=True)
    assert [text for _, text, _ in shown] == ["2/2", "ok"]


# ── the command ──────────────────────────────────────────────────────────────

RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1),),
    state="succeeded",
    created=1.0,
    ended=2.0,
    exit_code=0,
)


@pytest.fixture
def log(own_home: Path) -> Path:
    """The log of a run that has ended: two lines of an hour ago, and one of now."""
    records = Records("mnist")
    records.create()
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    records.save_run(RUN)
    path = records.log_path(RUN.id, "chief0", 1)
    path.write_bytes(b"old loss\nold\nnew loss\n")
    index_of(path).write_text(f"0 {int(time.time()) - 3600}\n13 {int(time.time())}\n")
    return path


def logs(*words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", "mnist", *words])


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ((), ["old loss", "old", "new loss"]),
        (("--since", "10m"), ["new loss"]),
        (("--since", "2h", "--grep", "^old$"), ["old"]),
        (("--grep", "loss", "--tail", "1"), ["new loss"]),
        (("--grep", "loss", "--role", "worker"), []),
        (("--since", "2020-01-01T00:00Z"), ["old loss", "old", "new loss"]),
        (("--since", "2099-01-01"), []),
    ],
)
def test_the_command_shows_the_lines_that_are_asked_for(
    log: Path, flags: tuple[str, ...], lines: list[str]
) -> None:
    done = logs(*flags)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"chief0 │ {line}" for line in lines]


def test_when_the_cluster_formed_stands_above_the_log(log: Path) -> None:
    attempts = (
        RunAttempt(number=1, started=1.0, formed_after=14.2),
        RunAttempt(number=2, started=1.0, formed_after=9.0),
    )
    Records("mnist").save_run(replace(RUN, attempts=attempts[:1]))
    assert f"cluster formed after 14.2 s, at {times.clock(15.2)}" in logs().stderr
    Records("mnist").save_run(replace(RUN, attempts=attempts))
    assert "attempt 2: cluster formed after 9 s" in logs().stderr


def test_json_is_one_object_for_each_line_and_one_for_an_error(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [json.loads(line) for line in logs("--json", "--grep", "new").stdout.splitlines()]
    assert [(each["task"], each["line"]) for each in found] == [("chief0", "new loss")]
    assert time.time() - found[0]["time"] < 600
    assert run(["logs", "nobody", "--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out.splitlines()[0])


def test_timestamps_stand_before_each_line_and_a_dash_where_none_is_known(log: Path) -> None:
    first = logs("--timestamps").stdout.splitlines()[0]
    assert re.fullmatch(r"chief0 │ \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d old loss", first)
    index_of(log).unlink()
    assert logs("--timestamps").stdout.splitlines()[0] == f"chief0 │ {'-':25} old loss"


def test_a_time_is_refused_where_those_of_the_lines_are_not_known(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index_of(log).unlink()
    assert run(["logs", "mnist", "--since", "10m"]) == 2
    assert "the times of chief0's lines are not on record here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--since", "soon"), "'soon' is neither a duration such as 10m nor a time"),
        (("--grep", "("), "'(' is not a regular expression: "),
    ],
)
def test_a_wrong_value_is_refused(flags: tuple[str, ...], text: str) -> None:
    assert text in logs(*flags).output
