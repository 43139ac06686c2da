"""`cloudtrain rehearse`: a cloud's file on local nodes, and faults under the user's script."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, until

GPU = {"machine": "n1-standard-8", "accelerator": "T4:1"}


def gcp(project: Project, pause: float = 0.05, **train: Any) -> Path:
    """`pause` after each of its 60 steps."""
    command = f"python3 rank.py --output {{output}} --steps 60 --pause {pause}"
    return project.config(
        provider="gcp",
        project="nobodys",
        placement=["us-central1-a"],
        nodes={"chief": GPU, "worker": {"count": 1, **GPU, "spot": True}},
        train={"command": command, **train},
        artifacts={"store": "gs://nobodys-bucket/x"},
    )


def test_a_clouds_file_comes_through_a_killed_task_and_leaves_nothing(project: Project) -> None:
    config = gcp(project, max_restarts=1)
    done = project.cloudtrain("rehearse", config, "--faults", "kill", "--at", "50%", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (outcome,) = report["outcomes"]
    assert (outcome["verdict"], outcome["attempts"], outcome["unit"]) == ("came through", 2, "step")
    assert outcome["repeated"] <= 1
    assert [outcome[name] for name in ("change", "missing", "smaller")] == [[], [], []]
    assert report["doubts"] == []
    assert "nothing is written to gs://nobodys-bucket/x" in done.stderr
    assert project.processes() == {}
    landed = project.home / "rehearsals" / report["name"]
    assert (landed / outcome["run"] / "chief0/output/chief0.txt").read_text() == "done at 60\n"


@pytest.mark.sweep(1, of="rehearsals")
def test_a_script_that_does_not_come_through_is_told_what_to_change(project: Project) -> None:
    done = project.cloudtrain("rehearse", gcp(project), "--faults", "kill", "--role", "worker")
    assert done.returncode == 1, done.stderr
    table = done.stdout[done.stdout.index("undisturbed:") :]
    assert "kill   worker0" in table
    assert "worker0 on" in table
    assert "killed by SIGKILL" in table
    assert "change: set train.max_restarts above 0" in table
    assert project.processes() == {}


@pytest.mark.sweep(1, of="rehearsals")
def test_what_a_killed_rehearsal_has_left_is_deleted_by_the_next(project: Project) -> None:
    config = gcp(project)
    first = project.start("rehearse", config)
    until(lambda: "step 3" in project.stdout, within=60)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert project.processes()
    done = project.cloudtrain("rehearse", config)
    assert done.returncode == 0, done.stderr
    assert project.processes() == {}


@pytest.mark.sweep(1, of="rehearsals")
def test_a_full_disk_ends_the_attempt_and_is_told_as_one(project: Project) -> None:
    config = gcp(project, max_restarts=1)
    done = project.cloudtrain(
        *("rehearse", config, "--faults", "disk", "--role", "chief", "--at", "40%", "--json")
    )
    assert done.returncode == 1, done.stderr
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert (outcome["verdict"], outcome["attempts"]) == ("failed", 1)
    assert "No space left on device" in outcome["cause"]
    assert any("disk_gb" in text for text in outcome["change"])
    assert not any("max_restarts" in text for text in outcome["change"])
    assert project.processes() == {}


@pytest.mark.sweep(1, of="rehearsals")
def test_a_script_whose_exit_code_is_retried_comes_through_a_full_disk(project: Project) -> None:
    config = gcp(project, max_restarts=1, retry_exit_codes=[1])
    done = project.cloudtrain(
        *("rehearse", config, "--faults", "disk", "--role", "chief", "--at", "40%", "--json")
    )
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert (outcome["verdict"], outcome["attempts"]) == ("came through", 2)
    assert outcome["repeated"] <= 1
    assert project.processes() == {}


@pytest.mark.sweep(1, of="rehearsals")
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_node_that_comes_back_after_it_was_given_up_loses_nothing(
    project: Project, restarts: int
) -> None:
    project.limits = {
        **{"LOST_AFTER": 3.0, "ALONE_LOST_AFTER": 12.0, "NODE_AWAY": 6.0},
        "LOG_SILENT": 7.0,  # a node's heartbeats come every 5 s
    }
    config = gcp(project, 0.1, max_restarts=restarts, grace="1s")
    done = project.cloudtrain(
        *("rehearse", config, "--faults", "away", "--role", "worker", "--at", "30%", "--json"),
        timeout=300.0,
    )
    assert done.returncode == 1 - restarts, done.stderr
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert outcome["attempts"] == 1 + restarts
    if restarts:
        assert (outcome["verdict"], outcome["change"]) == ("came through", [])
    else:
        assert "not answered" in outcome["cause"]
        assert outcome["change"] == ["set train.max_restarts above 0"]
    assert project.processes() == {}


@pytest.mark.sweep(1, of="rehearsals")
def test_a_run_comes_through_a_lid_that_closes_and_a_clock_that_jumps(project: Project) -> None:
    project.limits = {
        **{"LOST_AFTER": 3.0, "ALONE_LOST_AFTER": 3.0, "NODE_SILENT": 3.0},
        **{"cluster.lease.LASTS": 3.0, "rehearsal.faults.BEYOND": 2.0},
        **{"core.moments.TICK": 0.2, "core.moments.LATE": 1.0, "core.moments.READS": 1.0},
        "rehearsal.faults.BETWEEN": 0.5,
    }
    config = gcp(project, 0.1, stall_timeout="4s")
    done = project.cloudtrain("rehearse", config, "--faults", "lid,clock", "--at", "30%", "--json")
    assert done.returncode == 0, done.stderr
    lid, clock = json.loads(done.stdout)["outcomes"]
    for outcome in (lid, clock):
        assert (outcome["verdict"], outcome["attempts"]) == ("came through", 1)
        assert (outcome["task"], outcome["change"]) == ("client", [])
    assert project.processes() == {}
