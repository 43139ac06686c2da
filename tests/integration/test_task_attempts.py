"""On real nodes: one task is started alone again, and all that follows goes by its number."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from cloudtrain.artifacts.land import Closing
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.cluster.session import Handle, Session, open_session, recorded_config
from cloudtrain.cluster.task_launch import task_launch
from cloudtrain.commands.train import new_run
from cloudtrain.core.errors import RunFailed
from cloudtrain.core.run_record import Run
from cloudtrain.runs import state_machine
from cloudtrain.runs.start import (
    create_work_folders,
    launch_inputs,
    next_attempts,
    start_attempt,
    start_tasks,
)
from cloudtrain.runs.supervise import supervise_run
from cloudtrain.runs.tail import Follower
from cloudtrain.runs.task_commands import AttemptEnd
from cloudtrain.runs.tasks import save_run, task_statuses
from cloudtrain.state import Records
from tests.support.landing_parts import Heard, write_manifest
from tests.support.project import Project, until

TASK = """
me=$CLOUDTRAIN_ROLE$CLOUDTRAIN_INDEX
echo "$me started, pid $$"
if [ $me = worker0 ] && ! [ -e again ]; then touch again; exit 7; fi
echo "$me goes on"
until [ -e "$1/$me" ]; do sleep 0.1; done
exit "$(cat "$1/$me")"
"""


class Rig:
    """A cluster of three tasks: worker0's first attempt exits 7, all others run until they are told
    their exit code.
    """

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, **train: object) -> None:
        self.project = project
        self.ends = project.folder / "ends"
        self.ends.mkdir()
        project.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(self.ends)
        (project.code / "task.sh").write_text(TASK)
        project.limits = {"runs.state_machine.RESTART": 0.1}
        monkeypatch.setattr(state_machine, "RESTART", replace(state_machine.RESTART, pause=0.1))
        config = project.config(
            strategy="custom",
            nodes={"chief": {}, "worker": {"count": 2}},
            train={"command": f"sh task.sh {quote(str(self.ends))}", "grace": "1s", **train},
        )
        done = project.cloudtrain("up", config)
        assert done.returncode == 0, done.stderr
        monkeypatch.setenv("CLOUDTRAIN_HOME", str(project.home))
        self.records = Records(project.name)

    @contextmanager
    def session(self) -> Iterator[Session]:
        console = Heard()
        console.task_output = lambda task, data: None  # type: ignore[method-assign]
        with (
            self.records.lock("train"),
            open_session(Handle(recorded_config(self.records)), console) as session,
        ):
            yield session

    def restarted_alone(self, session: Session) -> tuple[Run, dict[str, int | None]]:
        """A run whose worker0 is in its second attempt, and the processes before that."""
        session, run = start_attempt(session, new_run(session, ()))
        follower = Follower(
            run,
            session.transport,
            lambda task: session.records.log_path(run.id, task.name, task.attempt),
            session.console,
        )
        for task in run.tasks:
            node = session.node(task.node)
            assert node is not None
            follower.follow(task, node)
        while not isinstance((event := follower.events.get(timeout=30)).news, AttemptEnd):
            pass
        follower.close()
        assert (event.task.name, event.news.exit_code) == ("worker0", 7)
        before = task_statuses(session, run)
        run = save_run(session, next_attempts(run, {"worker0"}))
        again = next(task for task in run.tasks if task.name == "worker0")
        launch = task_launch(
            session.plan, run, again, launch_inputs(session, run, create_work_folders(session, run))
        )
        start_tasks(session, run, (launch,))
        return run, {name: state.pid for name, state in before.items()}

    def await_words(self, task: str, attempt: int) -> None:
        """Wait until the task has said on its node that it goes on."""
        name, home = f"{task}/attempt-{attempt}/log", self.project.home / "local"
        until(lambda: any("goes on" in log.read_text() for log in home.rglob(name)), 30, name)

    def log(self, run: str, task: str, attempt: int) -> list[str]:
        """What the task said in the log as it landed, without its pid."""
        path = self.project.store / run / "logs" / f"{task}.attempt-{attempt}.log"
        lines = path.read_text().splitlines()
        return [line.partition(", pid")[0] for line in lines if line.startswith(task)]

    def record(self) -> dict[str, Any]:
        (record,) = self.project.runs()
        return record

    def logs(self) -> set[str]:
        """Without metrics, of which a task that ends soon has none."""
        return {path.name for path in self.project.store.glob("*/logs/*.log")}


def test_it_is_followed_and_then_the_whole_run_restarts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(project, monkeypatch, max_restarts=1, retry_exit_codes=[3])
    with rig.session() as session:
        run, pids = rig.restarted_alone(session)
        statuses = task_statuses(session, run)
        assert {name: status.state for name, status in statuses.items()} == {
            "chief0": "running",
            "worker0": "running",
            "worker1": "running",
        }
        assert (statuses["chief0"].pid, statuses["worker1"].pid) == (
            pids["chief0"],
            pids["worker1"],
        )
        assert statuses["worker0"].pid not in (None, pids["worker0"])
        rig.await_words("worker0", 2)
        (rig.ends / "worker0").write_text("3")
        with pytest.raises(RunFailed, match="worker0") as raised:
            supervise_run(session, run)
        assert raised.value.task_exit_code == 3
        ended = session.records.run(run.id)
    assert [attempt.number for attempt in ended.attempts] == [1, 2]
    assert [attempt.exits["worker0"] for attempt in ended.attempts] == [3, 3]
    assert [task.attempt for task in ended.tasks] == [2, 3, 2]
    assert rig.logs() == {
        *(f"chief0.attempt-{number}.log" for number in (1, 2)),
        *(f"worker0.attempt-{number}.log" for number in (1, 2, 3)),
        *(f"worker1.attempt-{number}.log" for number in (1, 2)),
    }
    assert rig.log(run.id, "worker0", 1) == ["worker0 started"]
    for number in (2, 3):
        assert rig.log(run.id, "worker0", number) == ["worker0 started", "worker0 goes on"]
    assert rig.log(run.id, "chief0", 1) == ["chief0 started", "chief0 goes on"]


def test_stop_run_ends_all_and_lands_the_logs_of_both_attempts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(project, monkeypatch)
    with rig.session() as session:
        run, _ = rig.restarted_alone(session)
    rig.await_words("worker0", 2)
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert not [words for words in project.processes().values() if "task.sh" in words]
    assert rig.record()["state"] == "stopped"
    assert [task["attempt"] for task in rig.record()["tasks"]] == [1, 2, 1]
    exits = rig.record()["attempts"][0]["exits"]
    assert {name: code < 0 for name, code in exits.items()} == {
        "chief0": True,
        "worker0": True,
        "worker1": True,
    }
    assert rig.log(run.id, "worker0", 1) == ["worker0 started"]
    assert rig.log(run.id, "worker0", 2) == ["worker0 started", "worker0 goes on"]
    assert rig.log(run.id, "worker1", 1) == ["worker1 started", "worker1 goes on"]
    shown = project.cloudtrain("logs").stdout
    assert shown.count("worker0 started") == 2
    assert shown.count("worker1 started") == 1


def test_a_run_that_an_earlier_version_started_is_followed_stopped_and_landed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(project, monkeypatch, max_restarts=1, retry_exit_codes=[7])
    started = project.cloudtrain("train", "--detach")
    assert started.returncode == 0, started.stderr
    (path,) = project.home.glob("clusters/*/runs/*/run.json")
    until(lambda: len(json.loads(path.read_text())["attempts"]) == 2, 60, "the whole run restarts")
    until(lambda: json.loads(path.read_text())["state"] == "running", 60)
    for pid, words in project.processes().items():
        if f"cloudtrain attend {project.name}" in words:
            os.kill(pid, signal.SIGKILL)
    forget_task_attempts(path)
    rig.await_words("worker0", 2)
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert not [words for words in project.processes().values() if "task.sh" in words]
    assert rig.record()["state"] == "stopped"
    assert [task["attempt"] for task in rig.record()["tasks"]] == [2, 2, 2]
    run = rig.record()["id"]
    assert rig.log(run, "worker0", 1) == ["worker0 started"]
    assert rig.log(run, "worker0", 2) == ["worker0 started", "worker0 goes on"]


def forget_task_attempts(path: Path) -> None:
    record = json.loads(path.read_text())
    for task in record["tasks"]:
        del task["attempt"]
    path.write_text(json.dumps(record))


class Killed(BaseException):
    """The process ends at this line."""


@pytest.mark.parametrize("restarts", [1, 0])
@pytest.mark.parametrize("killed", [False, True], ids=["", "then the client is killed"])
def test_a_run_whose_chief_is_lost_before_its_files_have_landed(
    project: Project, monkeypatch: pytest.MonkeyPatch, restarts: int, killed: bool
) -> None:
    """All tasks have succeeded, and the chief's node is taken as its files are about to land."""
    rig = Rig(project, monkeypatch, max_restarts=restarts, command="echo x >{output}/made")
    lost: list[str] = []
    with rig.session() as session:

        def bring(closing: Closing) -> Manifest:
            if not lost:
                lost.append(f"{project.name}-chief0")
                session.provider.remove(project.name, lost, session.records.journal)
                try:
                    if killed:
                        raise Killed
                    return whole(closing)
                finally:
                    ends = {task.name: task.attempt for task in session.records.run(run.id).tasks}
                    forged = Manifest(run=run.id, landed_attempts=ends)
                    write_manifest(session.store, forged)
            return whole(closing)

        whole = Closing.bring
        monkeypatch.setattr(Closing, "bring", bring)
        run = new_run(session, ())
        if killed:
            with pytest.raises(Killed):
                supervise_run(session, run)
            session, run = session.refreshed(), session.records.run(run.id)
            assert run.state == "landing"
        if restarts:
            assert supervise_run(session, run).state == "succeeded"
        else:
            with pytest.raises(RunFailed, match="lost before its files had landed"):
                supervise_run(session, run)
        ended = session.records.run(run.id)
    first = ended.attempts[0]
    assert first.cause is not None
    assert (first.cause.kind, first.cause.task) == ("lost", "chief0")
    assert len(ended.attempts) == 1 + restarts
    landed = {path.parent.parent.name for path in (project.store / run.id).rglob("made")}
    assert landed == {"worker0", "worker1"} | ({"chief0"} if restarts else set())


def test_a_run_has_succeeded_whose_chief_is_lost_once_its_files_have_landed(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(project, monkeypatch, max_restarts=0, command="echo x >{output}/made")
    with rig.session() as session:

        def bring(closing: Closing) -> Manifest:
            whole(closing)
            raise Killed

        whole = Closing.bring
        run = new_run(session, ())
        with monkeypatch.context() as patch:
            patch.setattr(Closing, "bring", bring)
            with pytest.raises(Killed):
                supervise_run(session, run)
        lost = [f"{project.name}-chief0"]
        session.provider.remove(project.name, lost, session.records.journal)
        run = supervise_run(session.refreshed(), session.records.run(run.id))
    assert run.state == "succeeded"
    landed = {path.parent.parent.name for path in (project.store / run.id).rglob("made")}
    assert landed == {"chief0", "worker0", "worker1"}
    assert "no longer exists" not in capsys.readouterr().err
