"""docs/internals/json.md has every key of the documents that are assembled by hand."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from cloudtrain.cli.app import COMMANDS, cli
from cloudtrain.cli.plan import as_document
from cloudtrain.cli.status import report_json
from cloudtrain.cli.status_rows import ROWS
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.commands.status import ClusterStatus, StatusReport
from cloudtrain.config import load
from cloudtrain.core.run_record import Run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "json.md").read_text("utf-8")
STATUS = report_json(StatusReport(clusters=(ClusterStatus(name="mnist"),)), 0.0)["clusters"][0]

IN_OTHER_ROWS = {"as_of", "ceilings", "earlier", "made", "prices"}
IN_THE_HEADING = {"missing", "open", "planned", "provider", "since", "strategy"}
NOT_ON_THE_WATCH = {
    "deadline",
    "ended",
    "foreign",
    "holder",
    "is_away",
    "lease",
    "shared",
    "still_billed",
    "store",
}


def plan_json() -> dict[str, Any]:
    return as_document(plan_report(make_plan(load(ROOT / "configs" / "any-cloud.yaml"))))


def keys(document: dict[str, Any]) -> set[str]:
    """Its keys, and those of the first of each list."""
    firsts = [value[0] for value in document.values() if isinstance(value, list) and value]
    return set(document).union(*(one for one in firsts if isinstance(one, dict)))


@pytest.mark.parametrize("command", ["plan", "status"])
def test_the_page_has_each_key(command: str) -> None:
    section = re.split(r"(?m)^- ", PAGE.partition(f"\n- `{command}`:")[2])[0]
    document = plan_json() if command == "plan" else STATUS
    lacking = sorted(keys(document) - set(re.findall(r"`(\w+)`", section)))
    assert lacking == [], "add it to docs/internals/json.md"


RUN_WITHOUT_LINES = {
    *("cluster", "code", "command", "commands", "environments", "exit_code", "image"),
    "written",
}
"""Fields of a run that its record alone shows."""


def test_each_field_of_a_run_is_on_the_page_and_most_have_a_line() -> None:
    names = {each.name for each in fields(Run)}
    section = PAGE.partition("\n- `train`, ")[2].partition("\n    - environment:")[0]
    on_page = {*re.findall(r"`(\w+)`", section)}
    assert names - on_page == {"written"}, "docs/internals/json.md, `train`: add it"
    lines = "".join(
        (ROOT / "cloudtrain" / "cli" / f"{name}.py").read_text("utf-8")
        for name in ("run_lines", "status_rows")
    )
    shown = {name for name in names if re.search(rf"\brun\.{name}\b", lines)}
    assert names - shown == RUN_WITHOUT_LINES, "draw it in cli/run_lines.py"


def test_each_command_with_json_is_on_the_page() -> None:
    names = [name for name in COMMANDS if "--json" in flags_of(name)]
    assert [name for name in names if f"`{name}`" not in PAGE] == [], "docs/internals/json.md"


def flags_of(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    return {flag for item in command.params for flag in item.opts} if command else set()


def test_each_field_of_a_clusters_status_has_a_row_and_most_have_a_line() -> None:
    names = {field.name for field in fields(ClusterStatus)}
    source = (ROOT / "cloudtrain" / "commands" / "status.py").read_text("utf-8")
    filled = {*re.findall(r"\b(\w+)=|\"(\w+)\": ", source)}
    assert names - {name for pair in filled for name in pair} == set(), (
        "commands/status.py: fill it"
    )
    rows = {row.field for row in ROWS}
    assert names - rows == IN_OTHER_ROWS, "add a row to cli/status_rows.py"
    assert rows - {row.field for row in ROWS if row.text} == IN_THE_HEADING, "it has no text"
    watched = {row.field for row in ROWS if row.watch or row.short or row.alarm}
    lacking = rows - watched - IN_THE_HEADING
    assert lacking == NOT_ON_THE_WATCH, "`--watch` does not show it: `watch`, `short` or `alarm`"
