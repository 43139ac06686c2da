"""`make sweeps`: its parts, what it goes on with, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import sweep_record
from tests.support.project import ROOT
from tools import sweeps
from tools.sweep_parts import PARTS, Part

FILES = sorted(ROOT.glob("tests/*/test_*.py"))


def part(name: str) -> Part:
    return next(each for each in PARTS if each.name == name)


def test_every_test_file_is_of_one_part() -> None:
    dealt = [file for each in PARTS for file in sweeps.files_of(each, FILES)]
    assert sorted(dealt) == FILES
    new = Path("tests/e2e/test_that_nobody_has_thought_of.py")
    assert sweeps.files_of(part("others"), [new]) == [new]


def test_every_pattern_and_program_of_a_part_is_there() -> None:
    for each in PARTS:
        for pattern in each.files.split():
            assert any(file.match(pattern) for file in sweeps.files_of(each, FILES)), pattern
        for words in each.programs:
            assert words.startswith("-m pytest ") or (ROOT / words.split()[0]).exists()
    assert len({each.name for each in PARTS}) == len(PARTS)
    assert len({words for each in PARTS for words in each.programs}) > 50


def test_the_words_of_a_program_are_complete() -> None:
    values = {"folder": "build/x", "share": "--parts 2 --part 1", "minutes": 30, "seed": 17}
    told = [words.format(**values) for each in PARTS for words in each.programs]
    assert (
        "bench/away.py --parts 2 --part 1 --cloud aws --minutes 30 --rows build/x/away-aws.jsonl"
        in told
    )
    assert (
        "bench/faults.py --runs 1 --where hosts --seed 174 --pairs --rows build/x/faults.jsonl"
        in told
    )


def record(what: str, outcome: str = "passed", commit: str = "b2", **more: Any) -> dict[str, Any]:
    line = {"commit": commit, "what": what, "outcome": outcome, "seconds": 1.0}
    return {**line, "date": "2026-11-26", **more}


def known(*lines: dict[str, Any], commits: tuple[str, ...] = ("b2",)) -> dict[str, dict[str, Any]]:
    return sweeps.read("".join(f"{json.dumps(line)}\n" for line in lines), commits)


def test_it_goes_on_with_what_has_not_passed_at_this_commit() -> None:
    lines = (
        record("passed"),
        record("failed", "failed"),
        record("skipped", "skipped"),
        record("mended", "failed"),
        record("mended"),
        record("earlier", commit="a1"),
    )
    names = ["passed", "failed", "skipped", "mended", "earlier", "new"]
    assert sweeps.to_do(names, known(*lines)) == ["failed", "skipped", "earlier", "new"]
    assert sweeps.to_do(names, known(*lines, commits=("b2", "a1"))) == ["failed", "skipped", "new"]


def test_the_row_of_a_part_adds_up_its_tests_and_programs() -> None:
    found = known(
        record("a", "failed"),
        record("b", commit="a1", date="2026-11-25"),
        record("c", "skipped"),
        record("program", "failed", trials=200, wrong=3, seconds=3600),
        record("of another part", "failed"),
        commits=("b2", "a1"),
    )
    row = sweeps.result("any-of", ["a", "b", "c", "program", "not run"], found)
    assert row == "| any-of | 202 | 4 | 2 | 3602 | b2, a1 | 2026-11-26 |"
    assert sweeps.result("any-of", ["a"], {}) == "| any-of | 0 | 0 | 1 | 0 | – | – |"


def test_rows_of_other_parts_stay_in_the_table() -> None:
    before = {"others": "| others | 1 |", "away": "| away | 2 |", "gone": "| gone | 3 |"}
    told = sweeps.rows(sweeps.page(before))
    assert told == {"away": "| away | 2 |", "others": "| others | 1 |"}
    after = sweeps.page(told | {"cloud-crash": "| cloud-crash | 4 |"})
    assert list(sweeps.rows(after)) == ["cloud-crash", "away", "others"]


def test_the_page_is_as_its_command_writes_it() -> None:
    page = sweeps.TABLE.read_text("utf-8")
    assert page == sweeps.page(sweeps.rows(page))


def test_programs_tell_their_trials_by_their_files(tmp_path: Path) -> None:
    rows = [{"why": why, "seconds": 10.4} for why in ("", "not reached", "left: a disk", "")]
    kills, cells = tmp_path / "kills.jsonl", tmp_path / "versions.json"
    kills.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    cells.write_text(json.dumps({"2.21": {"passed": True, "seconds": 60.0}}))
    assert sweeps.counted("any_of.py {share}", kills) == {"trials": 3, "wrong": 1, "seconds": 31}
    assert sweeps.counted("matrix.py", cells) == {"trials": 1, "wrong": 0, "seconds": 60}
    assert sweeps.counted("faults.py", kills) is None


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [
        ({"setup": "passed", "call": "passed", "teardown": "passed"}, "passed"),
        ({"setup": "passed", "call": "failed", "teardown": "passed"}, "failed"),
        ({"setup": "passed", "call": "passed", "teardown": "failed"}, "failed"),
        ({"setup": "skipped", "teardown": "passed"}, "skipped"),
        ({"setup": "failed", "teardown": "passed"}, "failed"),
        ({"???": "failed"}, "failed"),
    ],
)
def test_a_test_has_passed_if_each_of_its_phases_has(
    tmp_path: Path, phases: dict[str, Any], outcome: Any
) -> None:
    recorder = sweep_record.Recorder(tmp_path / "records", "b2")
    for when, result in phases.items():
        report = pytest.TestReport("t.py::test[x]", ("", 0, ""), {}, result, None, when, duration=1)  # type: ignore[arg-type]
        recorder.pytest_runtest_logreport(report)
    (line,) = (tmp_path / "records").read_text().splitlines()
    told = json.loads(line)
    assert (told["what"], told["outcome"]) == ("t.py::test[x]", outcome)
    assert (told["commit"], told["seconds"]) == ("b2", len(phases))
