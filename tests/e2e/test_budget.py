"""`limits.budget` at 100 %: the run is ended, landed, and everything taken down, whoever lives.

Hours pass by moving the journal's times into the past.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project, until

TRAIN = """
import os, signal, sys, time

def save(*_):
    open("output/last", "w").write("saved when told to end")
    sys.exit(1)

os.makedirs("output", exist_ok=True)
signal.signal(signal.SIGTERM, save)
open("output/first", "w").write("early")
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
HOUR = 3600.0
BUDGET = 1.0
"""$: about five hours of one m6i.xlarge with its disk and address."""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running("aws", nodes=nodes) as cloud:
        project = Project(tmp_path / "project")
        project.environment.update(cloud.environment)
        project.limits = {"runs.observers.LIMITS_EVERY": 0.5}
        yield Account(project, cloud, nodes)


def config(account: Account) -> Path:
    (account.project.code / "train.py").write_text(TRAIN)
    return account.config(
        roles={"chief": 1},
        strategy="one_device",
        train={"command": "python3 train.py"},
        limits={"budget": BUDGET, "max_lifetime": "20d"},
    )


def pass_hours(account: Account, hours: float) -> None:
    """All that was recorded was so many hours earlier."""
    path = account.folder / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = ""
    for line in lines:
        line["time"] -= hours * HOUR
        text += f"{json.dumps(line)}\n"
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(path)


def fetched(account: Account) -> dict[str, str]:
    folder = account.project.folder / "fetched"
    account.do("fetch", account.project.name, folder)
    found = (folder / "chief0" / "output").iterdir()
    return {path.name: path.read_text() for path in found}


WHOLE = {"first": "early", "last": "saved when told to end"}


@pytest.mark.sweep(1, of="budgets")
def test_a_followed_run_is_warned_of_ended_landed_and_taken_down(account: Account) -> None:
    project = account.project
    said = account.do("up", config(account), "--yes").stderr
    assert "of 1 $" in said
    assert "its rest lasts until" in said
    (cluster,) = json.loads(account.do("status", "--json").stdout)["clusters"]
    assert cluster["budget"]["limit"] == BUDGET
    (node,) = cluster["nodes"]
    assert node["expires"] == pytest.approx(cluster["budget"]["end"], abs=120)
    train = project.start("train")
    until(lambda: "ready" in project.stdout, 120)
    hours = (node["expires"] - node["created"]) / HOUR
    pass_hours(account, 0.85 * hours)
    until(lambda: "are spent" in project.stderr, 60)
    assert "limits.budget: 0.8" in project.stderr
    assert train.poll() is None, "a warning alone"
    pass_hours(account, 0.15 * hours)
    assert train.wait(180) == 1
    assert "limits.budget of 1 $ is spent" in project.stderr
    assert f"taking {project.name} down" in project.stderr
    assert account.cloud.holdings() == []
    assert fetched(account) == WHOLE
    run = json.loads(account.do("status", project.name, "--json").stdout)["clusters"][0]["runs"][-1]
    assert run["state"] == "failed"
    assert run["attempts"][-1]["cause"]["kind"] == "budget"


def placed(account: Account) -> dict[str, Any]:
    lines = (account.folder / "events.jsonl").read_text().splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if '"placed"' in line]
    return found[-1]


@pytest.mark.sweep(1, of="budgets")
def test_a_run_whose_client_was_killed_is_ended_by_the_process_in_the_background(
    account: Account,
) -> None:
    project = account.project
    run = project.start("run", config(account))
    until(lambda: "ready" in project.stdout, 180)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    node = placed(account)  # `status` would start that process
    (expires,) = node["expires"].values()
    pass_hours(account, (expires - node["time"]) / HOUR)
    until(lambda: account.cloud.holdings() == [], 180)
    log = account.folder / "idle.log"
    until(lambda: "lists nothing of it any more" in log.read_text(), 60)
    assert "limits.budget of 1 $ is spent" in log.read_text()
    assert fetched(account) == WHOLE
