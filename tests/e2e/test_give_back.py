"""A run that waits for a lost node gives the others back, and goes on when there is room."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project, until
from tests.support.three_clouds import NO_ROOM, PLACES


@pytest.fixture
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud:
        project = Project(tmp_path / "project")
        project.environment.update(cloud.environment)
        project.limits = {
            "cluster.provision.TAKEN": 0.5,
            "cluster.place_choice.ROUNDS": 2.0,
            "runs.node_replacement.REQUESTS": 2.0,
        }
        yield Account(project, cloud, nodes)


CASES = [
    ("gcp", "", False),
    ("aws", "TerminateInstances *", True),
]


@pytest.mark.sweep(1, of="waits")
@pytest.mark.parametrize(("account", "killed_at", "after"), CASES, indirect=["account"])
def test_nodes_that_wait_are_landed_and_deleted_and_the_run_goes_on_with_new_ones(
    account: Account, killed_at: str, after: bool
) -> None:
    """kill -9 before or after a call of the deletion too: the next process goes on with it."""
    project, cloud = account.project, account.cloud
    file = account.config(
        placement=[PLACES[cloud.name]],
        train={
            "max_restarts": 2,
            "command": "[ ! -e ckpt/checkpoint ] || touch resumed; "
            "python3 rank.py --output {output} --steps 30 --hold 5 resumed",
        },
        limits={"wait": "10m", "give_back": "1s"},
    )
    values = yaml.safe_load(file.read_text())
    values["nodes"]["worker"]["spot"] = True
    file.write_text(yaml.safe_dump(values))
    account.do("up", file, "--yes")
    train = project.start("train")
    try:
        until(lambda: "step 3" in project.stdout, 60)
        cloud.set(capacity=NO_ROOM[cloud.name])
        lost = f"{project.name}-worker0"
        cloud.tell("interrupt", name=lost)
        if killed_at:
            cloud.fault("kill", action=killed_at, after=after, pid=train.pid)
            assert train.wait(timeout=120) == -signal.SIGKILL, project.stderr
            cloud.no_more_faults()
            train = project.start("logs", "-f", project.name)
        until(lambda: "nothing is billed meanwhile" in project.stderr, 120)
        assert account.nodes.running() == []
        cloud.set(capacity={})
        assert train.wait(timeout=200) == 0, project.stderr
    finally:
        train.kill()
        print(project.stderr)
    assert "deleting them, so that nothing is billed" in project.stderr
    (run,) = project.runs()
    assert (run["state"], len(run["attempts"])) == ("succeeded", 2)
    assert "resumes from ckpt/" in project.stderr
    assert len(json.loads(account.do("status", "--json").stdout)["clusters"][0]["nodes"]) == 2
    account.do("down", project.name, "--yes")
    assert cloud.holdings() == []


@pytest.mark.sweep(1, of="waits")
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_up_that_waits_creates_a_spot_node_again_that_is_taken_during_setup(
    account: Account,
) -> None:
    project, cloud = account.project, account.cloud
    file = account.config(
        placement=[PLACES[cloud.name]], setup={"run": ["test -e ~/go || sleep 4"]}
    )
    values = yaml.safe_load(file.read_text())
    values["nodes"]["worker"]["spot"] = True
    file.write_text(yaml.safe_dump(values))
    events = file.with_name("events")
    up = project.start("up", file, "--yes", "--wait", "10m", "--events", events)
    try:
        until(lambda: events.exists() and "setup and code" in events.read_text(), 60)
        cloud.tell("interrupt", name=f"{project.name}-worker0")
        assert up.wait(timeout=200) == 0, project.stderr
    finally:
        up.kill()
        print(project.stderr)
    assert "worker0: the cloud took it while it was set up" in project.stderr
    assert len(account.nodes.running()) == 2
    account.do("down", project.name, "--yes")
    assert cloud.holdings() == []
