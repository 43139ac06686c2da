"""`cloudtrain rehearse`: a cloud's file on local nodes, and faults under the user's script."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.support.project import Project, until

GPU = {"machine": "n1-standard-8", "accelerator": "T4:1"}


def gcp(project: Project, **train: Any) -> Path:
    command = "python3 rank.py --output {output} --steps 60 --pause 0.1"
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
    assert outcome["change"] == []
    assert "nothing is written to gs://nobodys-bucket/x" in done.stderr
    assert project.processes() == {}
    landed = project.home / "rehearsals" / report["name"]
    assert (landed / outcome["run"] / "chief0/output/chief0.txt").read_text() == "done at 60\n"


def test_a_script_that_does_not_come_through_is_told_what_to_change(project: Project) -> None:
    done = project.cloudtrain("rehearse", gcp(project), "--faults", "kill", "--role", "worker")
    assert done.returncode == 1, done.stderr
    table = done.stdout[done.stdout.index("undisturbed:") :]
    assert "kill   worker0" in table
    assert "worker0 on" in table
    assert "killed by SIGKILL" in table
    assert "change: set train.max_restarts above 0" in table
    assert project.processes() == {}


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
