"""List at the end of a run what passed only when it was run a second time (pytest --reruns 1)."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    passed = {report.nodeid for report in stats.get("passed", ())}
    again = [report for report in stats.get("rerun", ()) if report.nodeid in passed]
    if not again:
        return
    terminalreporter.section("passed only when run a second time: a fault to mend")
    for report in again:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else str(report.longrepr)).splitlines()
        terminalreporter.line(f"SECOND RUN {report.nodeid} - {lines[0] if lines else ''}")
