"""A task that outlives its run, as its node was away while that was given up, and comes back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.support.project import Project, until

TASK = """
import hashlib, json, os, pathlib, time
folder = pathlib.Path(os.environ["CLOUDTRAIN_OUTPUT"])
ledger = pathlib.Path(os.environ["LEDGER"]) / f"{os.environ['CLOUDTRAIN_ROLE']}-{os.getpid()}"
print("pid", os.getpid(), flush=True)
for number in range(100000):
    data = os.urandom(1000)
    (folder / f"part-{number}").write_bytes(data)
    with ledger.open("a") as file:
        file.write(json.dumps([f"part-{number}", hashlib.sha256(data).hexdigest()]) + "\\n")
    print("step", number, flush=True)
    time.sleep(0.05)
"""


class Rig:
    """A cluster whose tasks write files for ever, and note each in a ledger outside the nodes."""

    def __init__(self, project: Project, **sections: object) -> None:
        self.project = project
        self.ledger = project.folder / "ledger"
        self.ledger.mkdir()
        project.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(self.ledger)
        (project.code / "task.py").write_text(TASK)
        self.config = project.config(
            strategy="custom",
            train={
                "command": "python3 task.py",
                "grace": "1s",
                "env": {"LEDGER": str(self.ledger)},
            },
            **sections,
        )
        assert project.cloudtrain("up", self.config).returncode == 0

    def give_up(self, state: str) -> str:
        """A run goes on that is over by its record, as where its nodes were silent at its end."""
        done = self.project.cloudtrain("train", "--detach")
        assert done.returncode == 0, done.stderr
        until(lambda: len(self.entries()) > 5, 60)
        for pid, words in self.project.processes().items():
            if f"cloudtrain attend {self.project.name}" in words:
                os.kill(pid, signal.SIGKILL)
        (path,) = self.project.home.glob("clusters/*/runs/*/run.json")
        record = json.loads(path.read_text())
        ended = time.time() if state != "landing" else None
        exits = 1 if state != "landing" else None
        path.write_text(json.dumps({**record, "state": state, "ended": ended, "exit_code": exits}))
        return str(record["id"])

    def entries(self) -> dict[str, str]:
        rows = [
            [path.name.partition("-")[0], *json.loads(line)]
            for path in self.ledger.iterdir()
            for line in path.read_text().splitlines()
        ]
        return {f"{role}0/output/{name}": digest for role, name, digest in rows}

    def stored(self, run: str) -> dict[str, str]:
        top = self.project.store / run
        return {
            path.relative_to(top).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in top.rglob("part-*")
        }

    def trains(self) -> bool:
        return any("task.py" in words for words in self.project.processes().values())


@pytest.mark.sweep(2, of="orphans")
@pytest.mark.parametrize("state", ["landing", "failed", "stopped"])
def test_down_ends_it_lands_what_it_made_and_says_so(project: Project, state: str) -> None:
    rig = Rig(project)
    run = rig.give_up(state)
    down = project.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert f"stopped worker0 of run {run}" in down.stderr
    assert project.processes() == {}
    assert rig.entries().items() <= rig.stored(run).items()


@pytest.mark.sweep(2, of="orphans")
def test_stop_run_ends_it_though_no_run_goes_on_by_the_record(project: Project) -> None:
    rig = Rig(project)
    run = rig.give_up("failed")
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert f"stopped chief0 of run {run}" in stopped.stderr
    assert not rig.trains()
    assert rig.entries().items() <= rig.stored(run).items()
    again = project.cloudtrain("stop-run")
    assert again.returncode == 2
    assert "has no active run" in again.stderr


@pytest.mark.sweep(2, of="orphans")
def test_the_next_train_ends_it_first_and_its_ports_are_free(project: Project) -> None:
    rig = Rig(project)
    run = rig.give_up("failed")
    (project.code / "task.py").write_text("print('the next run')\n")
    trained = project.cloudtrain("train")
    assert trained.returncode == 0, trained.stderr
    assert f"stopped worker0 of run {run}" in trained.stderr
    assert not rig.trains()
    assert project.cloudtrain("down").returncode == 0
    assert rig.entries().items() <= rig.stored(run).items()


@pytest.mark.sweep(2, of="orphans")
def test_an_idle_cluster_with_one_goes_down_all_the_same(project: Project) -> None:
    rig = Rig(project, limits={"idle": "5s"})
    run = rig.give_up("failed")
    until(lambda: not list(project.home.glob("local/*/*")), 60)
    log: Path = project.home / "clusters" / project.name / "idle.log"
    until(lambda: "lists nothing of it any more" in log.read_text(), 60)
    until(lambda: not project.processes(), 60)
    assert f"stopped worker0 of run {run}" in log.read_text()
    assert rig.entries().items() <= rig.stored(run).items()


@pytest.mark.sweep(2, of="orphans")
def test_what_a_task_left_behind_is_ended_before_its_files_land(project: Project) -> None:
    (project.code / "leave.sh").write_text(
        "(while :; do date +%N >>output/clock; done) >/dev/null 2>&1 &\nsleep 0.5\n"
    )
    done = project.cloudtrain(
        "run", project.config(strategy="custom", train={"command": "sh leave.sh"})
    )
    assert done.returncode == 0, done.stderr
    for task in ("chief0", "worker0"):
        assert re.search(rf"ended \d+ process(?:es)? that {task} left behind: ", done.stdout), done
    assert project.processes() == {}


@pytest.mark.sweep(2, of="orphans")
def test_down_lands_what_a_run_made_whose_record_is_unreadable(project: Project) -> None:
    rig = Rig(project)
    run = rig.give_up("failed")
    (path,) = project.home.glob("clusters/*/runs/*/run.json")
    path.write_text("{")
    down = project.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert project.processes() == {}
    assert rig.entries().items() <= rig.stored(run).items()


@pytest.mark.sweep(2, of="orphans")
def test_stop_run_ends_a_run_whose_record_is_unreadable(project: Project) -> None:
    rig = Rig(project)
    run = rig.give_up("failed")
    (path,) = project.home.glob("clusters/*/runs/*/run.json")
    path.unlink()
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert not rig.trains()
    assert rig.entries().items() <= rig.stored(run).items()
