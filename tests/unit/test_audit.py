"""`make audit` fails with a known vulnerability, and takes no silence for health."""

from typing import Any

import pytest

from tools import audit


def package(name: str, *ids: str) -> dict[str, Any]:
    vulnerabilities = [{"id": each, "fix_versions": ["1.1"]} for each in ids]
    return {"name": name, "version": "1.0", "vulns": vulnerabilities}


def test_a_vulnerability_fails_and_what_was_not_asked_is_named() -> None:
    skipped = {"name": "mine", "skip_reason": "Dependency not found on PyPI"}
    found = {"dependencies": [package("good"), package("bad", "PYSEC-1", "PYSEC-2"), skipped]}
    assert audit.verdict(found) == (
        [
            "bad 1.0: PYSEC-1, fixed in 1.1",
            "bad 1.0: PYSEC-2, fixed in 1.1",
            "2 of 3 packages audited, 2 vulnerabilities",
            "not audited, as the service does not know them: mine",
        ],
        1,
    )
    assert audit.verdict({"dependencies": [package("good")]})[1] == 0


def test_without_an_answer_nothing_is_said_to_be_audited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no such program")

    monkeypatch.setattr(audit.subprocess, "run", fails)
    assert audit.main(["pip-audit"]) == 0
    assert capsys.readouterr().out == "not audited: pip-audit gave no answer (no such program)\n"
    lines, code = audit.verdict({"dependencies": [{"name": "mine", "skip_reason": "x"}]})
    assert (lines, code) == (["not audited: the service knows none of 1 packages"], 0)
