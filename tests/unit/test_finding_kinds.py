"""Kinds of findings are named as `check` names them, tried, and listed as docs/commands.md has
them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.checks import check
from cloudtrain.checks.findings import CheckedData
from cloudtrain.cluster.session import Handle
from cloudtrain.commands.init import page
from cloudtrain.config import load
from cloudtrain.core.finding_kinds import FINDINGS, IGNORABLE
from cloudtrain.core.protocols import Finding
from tests.support.sources import nodes

PACKAGE = Path(cloudtrain.__file__).parent
SOURCES = [path for name in ("checks", "providers") for path in (PACKAGE / name).rglob("*.py")]
TESTS = [*(PACKAGE.parent / "tests").rglob("*.py")]


def made_kinds() -> dict[str, str]:
    """What is written as the `what` of a finding, with its place: given to `Finding`, `Finding.of`
    or a function whose first argument it is, and which returns findings."""
    functions = {"Finding", "of"} | {
        node.name
        for path in SOURCES
        for node in nodes(path, ast.FunctionDef)
        if [each.arg for each in node.args.args[:1]] == ["what"]
        and node.returns is not None
        and "Finding" in ast.unparse(node.returns)
    }
    found = {}
    for path in SOURCES:
        for node in nodes(path, ast.Call):
            if getattr(node.func, "attr", getattr(node.func, "id", "")) not in functions:
                continue
            named = [each.value for each in node.keywords if each.arg == "what"]
            for value in [*named, *node.args[:1]]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[value.value] = f"{path.relative_to(PACKAGE)}:{value.lineno}"
    return found


def test_each_finding_is_of_a_kind_that_the_table_has() -> None:
    lacking = {what: place for what, place in made_kinds().items() if what not in FINDINGS}
    assert lacking == {}, "add a row to FINDINGS in core/finding_kinds.py"


def test_each_kind_is_the_name_of_a_finding_somewhere() -> None:
    code = "".join(path.read_text("utf-8") for path in SOURCES)
    made_no_more = [name for name in FINDINGS if f'"{name}"' not in code]
    assert made_no_more == [], "make the finding in checks/ or providers/, or delete its row"


@pytest.fixture(scope="module")
def tests() -> str:
    here = Path(__file__)
    return "".join(path.read_text("utf-8") for path in TESTS if path != here)


def test_each_kind_is_named_in_a_test(tests: str) -> None:
    lacking = [name for name in FINDINGS if f'"{name}"' not in tests]
    assert lacking == [], "write a test of the finding that names its `what`"


def test_each_that_can_be_ignored_stops_nothing_if_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: t\nprovider: local\nstrategy: one_device\ntrain: {command: 'true'}\n")
    bad = tuple(Finding(what=name, ok=False, text="it is bad") for name in FINDINGS)
    monkeypatch.setattr(check, "found_ahead", lambda _: bad)
    none = CheckedData()
    found = check.findings_of_all(Handle(load(path)), ignore=IGNORABLE, data=none)
    assert {each.what for each in found if not each.ok} == {*FINDINGS} - {*IGNORABLE}


def test_the_page_lists_what_can_be_ignored() -> None:
    listed = ", ".join(f"`{name}`" for name in IGNORABLE)
    line = f"- `--ignore WHAT,…`: {listed}"
    assert line in " ".join(page("commands").text.split()), f"docs/commands.md, `--ignore`: {line}"
