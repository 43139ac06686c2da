"""docs/internals/json.md has every key of the documents that are assembled by hand."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cloudtrain.cli import live_view, status
from cloudtrain.cli.plan import as_document
from cloudtrain.cli.status import report_json
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.commands.status import ClusterStatus, StatusReport
from cloudtrain.config import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "json.md").read_text("utf-8")
STATUS = report_json(StatusReport(clusters=(ClusterStatus(name="mnist"),)), 0.0)["clusters"][0]

SHOWN_AS = {
    "holder": "at_work",
    "faults": "unreadable",
    "as_of": "runs",
    "prices": "nodes",
    "ceilings": "cost_at_most",
}
NOT_SHOWN = {"made", "is_away"}
"""`missing` and `away` say what users need of them."""


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
    assert sorted(keys(document) - set(re.findall(r"`(\w+)`", section))) == []


def test_each_field_of_a_clusters_status_is_a_key_or_left_out_on_purpose() -> None:
    names = {SHOWN_AS.get(field.name, field.name) for field in fields(ClusterStatus)}
    assert sorted(names - set(STATUS) - NOT_SHOWN) == []


IN_COST = {"ceilings"}
"""Shown as part of `cluster.cost`."""
NOT_WATCHED = {
    "as_of",
    "foreign",
    "holder",
    "lease",
    "open",
    "planned",
    "since",
    "still_billed",
    "store",
}
"""In no line of the watch's own: `cluster_state`, which both have, says what is needed."""


@pytest.mark.parametrize("view", [status, live_view])
def test_text_and_watch_show_each_field_or_leave_it_out_on_purpose(view: ModuleType) -> None:
    shown = set(re.findall(r"cluster\.(\w+)", inspect.getsource(view)))
    names = {field.name for field in fields(ClusterStatus)}
    left_out = NOT_SHOWN | IN_COST | (set() if view is status else NOT_WATCHED)
    assert sorted(names - shown - left_out) == []
