"""Keeps what became of each test in a file, a line as soon as it ends, for tools/sweeps.py.

A pytest plugin: `-p tests.support.sweep_record --record FILE COMMIT`.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", nargs=2, metavar=("FILE", "COMMIT"))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.record and not hasattr(config, "workerinput"):  # xdist tells the main process
        file, commit = config.option.record
        config.pluginmanager.register(Recorder(Path(file), commit))


class Recorder:
    """Of one process."""

    def __init__(self, file: Path, commit: str) -> None:
        self._file, self._commit = file, commit
        self._outcomes: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed if its setup, call and teardown have; a process that dies in it tells
        of it once.
        """
        known, seconds = self._outcomes.pop(report.nodeid, ("passed", 0.0))
        outcome = report.outcome if known == "passed" else known
        seconds += report.duration
        if report.when in ("setup", "call"):
            self._outcomes[report.nodeid] = outcome, seconds
            return
        line = {
            "commit": self._commit,
            "what": report.nodeid,
            "outcome": outcome,
            "seconds": round(seconds, 1),
            "date": date.today().isoformat(),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
