"""On real nodes: a worker of a parameter server job is restarted alone; the others run on."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import yaml

from cloudtrain.core.model import Host
from tests.support.lent import hosts_config, lent_home
from tests.support.processes import environment
from tests.support.project import Project, until
from tests.support.sshd import SshdNode, sshd_nodes

TASK = """
import json, os, pathlib, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
ends, name = pathlib.Path(sys.argv[1]), me["type"] + str(me["index"])
if me["type"] != "chief":
    host, port = config["cluster"][me["type"]][me["index"]].split(":")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", int(port)))
    server.listen()
print(name, "serves", json.dumps(config), flush=True)
pathlib.Path("output", "at-%d" % time.time_ns()).touch()
while not (ends / name).exists():
    time.sleep(0.05)
sys.exit(int((ends / name).read_text()))
"""
JOB: dict[str, Any] = {
    "strategy": "parameter_server",
    "nodes": {"chief": {}, "worker": {"count": 2}, "ps": {}},
}


class Job:
    """A parameter server job in plain Python, which ends when the test says so."""

    def __init__(self, project: Project, **train: object) -> None:
        self.project, self.ends = project, project.folder / "ends"
        self.ends.mkdir()
        project.limits = {
            "FROZEN_AFTER": 2.0,
            "LOST_AFTER": 5.0,
            "NODE_AWAY": 5.0,
            "runs.state_machine.ALONE": 0.2,
        }
        project.environment["CLOUDTRAIN_LOCAL_SHARED"] = str(self.ends)
        (project.code / "task.py").write_text(TASK)
        command = f"exec python3 task.py {quote(str(self.ends))}"
        train = {"command": command, "grace": "1s", "max_restarts": 1, **train}
        self.config = project.config(**JOB, train=train)

    def start(self, verb: str = "run") -> Any:
        process = self.project.start(verb, self.config)
        words = "cluster formed"
        until(lambda: words in self.project.stderr or process.poll() is not None, 60, words)
        assert words in self.project.stderr, self.project.stderr
        return process

    def pid(self, task: str) -> int:
        mine = {f"CLOUDTRAIN_ROLE={task[:-1]}".encode(), f"CLOUDTRAIN_INDEX={task[-1]}".encode()}
        for pid, words in self.project.processes().items():
            if re.match(r"\S*python\S* task.py ", words) and mine <= set(environment(pid)):
                return pid
        raise ValueError(f"{task} does not run")

    def server(self, task: str) -> int:
        """The process of the node's SSH server."""
        tag = re.compile(rb"CLOUDTRAIN_NODE=.*/%b" % f"{self.project.name}-{task}".encode())
        for pid, words in self.project.processes().items():
            if "fork_server" in words and any(map(tag.fullmatch, environment(pid))):
                return pid
        raise ValueError(f"no server of {task}")

    def end(self, task: str, code: int = 0) -> None:
        whole = self.ends.with_name("written")
        whole.write_text(str(code))
        whole.replace(self.ends / task)

    def record(self) -> dict[str, Any]:
        (record,) = self.project.runs()
        return record

    def log(self, task: str, attempt: int) -> dict[str, Any]:
        """TF_CONFIG of the attempt, from its landed log."""
        (path,) = self.project.store.glob(f"*/logs/{task}.attempt-{attempt}.log")
        line = next(line for line in path.read_text().splitlines() if " serves " in line)
        found: dict[str, Any] = json.loads(line.partition(" serves ")[2])
        return found


@pytest.mark.sweep(2, of="restarts")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_worker_comes_back_while_the_others_run_on(
    project: Project, how: signal.Signals
) -> None:
    job = Job(project)
    run = job.start()
    before = {task: job.pid(task) for task in ("chief0", "worker0", "worker1", "ps0")}
    os.kill(before["worker1"], how)
    until(lambda: "worker1 serves again" in project.stderr, 60, "worker1 serves again")
    after = {task: job.pid(task) for task in before}
    assert after.pop("worker1") != before.pop("worker1")
    assert after == before
    shown = project.cloudtrain("status").stdout
    assert "worker1 restarted (attempt 2 of its own)" in shown
    job.end("chief0")
    assert run.wait(60) == 0, project.stderr
    assert "worker1 restarted (attempt 2 of its own)" in project.stderr
    record = job.record()
    assert [task["attempt"] for task in record["tasks"]] == [1, 1, 2, 1]
    (attempt,) = record["attempts"]
    assert [cause["task"] for cause in attempt["restarted"]] == ["worker1"]
    assert attempt["tolerated"] == []
    assert job.log("worker1", 2) == job.log("worker1", 1)
    assert project.processes() == {}


@pytest.mark.sweep(2, of="restarts")
def test_a_worker_whose_node_has_died_returns_on_a_new_one_with_the_same_address(
    project: Project,
) -> None:
    job = Job(project, checkpoints="ckpt")
    run = job.start()
    before = {task: job.pid(task) for task in ("chief0", "worker0", "worker1", "ps0")}
    os.kill(job.server("worker1"), signal.SIGKILL)
    del before["worker1"]  # it has ended with its server
    until(lambda: "worker1 serves again" in project.stderr, 90, "worker1 serves again")
    assert {task: job.pid(task) for task in before} == before
    assert f"{project.name}-worker1 is being started; the run continues" in project.stderr
    job.end("chief0")
    assert run.wait(60) == 0, project.stderr
    assert [task["attempt"] for task in job.record()["tasks"]] == [1, 1, 2, 1]
    assert job.log("worker1", 2) == job.log("worker1", 1)
    assert project.processes() == {}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[SshdNode]]:
    """There until the project has ended: its last `down` waits for hosts that are away."""
    with sshd_nodes(tmp_path / "sshd", ["chief0", "worker0", "worker1", "ps0"]) as machines:
        yield machines


@pytest.mark.sweep(2, of="restarts")
def test_a_worker_whose_host_reboots_comes_back_and_the_others_run_on(
    machines: list[SshdNode], project: Project, tmp_path: Path
) -> None:
    """Over OpenSSH: every process of the host is gone, and its server answers again later."""
    project.environment["HOME"] = str(lent_home(tmp_path / "home", machines))
    job = Job(project)
    roles = [re.sub(r"\d", "", machine.node.name) for machine in machines]
    hosts = hosts_config(machines, roles).hosts
    values = yaml.safe_load(job.config.read_text())
    values |= {"provider": "hosts", "hosts": [host_of(host) for host in hosts]}
    del values["nodes"]
    job.config.write_text(yaml.safe_dump(values))
    run = job.start()
    (lost,) = [machine for machine in machines if machine.node.name == "worker1"]
    lost.stop()
    lost.start()
    until(lambda: "worker1 serves again" in project.stderr, 90, "worker1 serves again")
    job.end("chief0")
    assert run.wait(60) == 0, project.stderr
    assert [task["attempt"] for task in job.record()["tasks"]] == [1, 1, 2, 1]
    assert job.log("worker1", 2) == job.log("worker1", 1)


def host_of(host: Host) -> dict[str, Any]:
    return {"address": host.address, "port": host.port, "user": host.user, "role": host.role}


@pytest.mark.sweep(2, of="restarts")
def test_without_restarts_left_or_for_a_code_that_would_fail_again_the_run_goes_on(
    project: Project,
) -> None:
    job = Job(project)
    run = job.start()
    os.kill(job.pid("worker1"), signal.SIGKILL)
    until(lambda: "worker1 serves again" in project.stderr, 60)
    os.kill(job.pid("worker1"), signal.SIGKILL)
    until(lambda: "worker1 has failed: killed by signal 9; the run continues" in project.stderr, 60)
    job.end("chief0")
    assert run.wait(60) == 0, project.stderr
    assert [task["attempt"] for task in job.record()["tasks"]] == [1, 1, 2, 1]
    assert [cause["task"] for cause in job.record()["attempts"][0]["tolerated"]] == ["worker1"]


@pytest.mark.sweep(2, of="restarts")
def test_a_client_that_is_killed_after_recording_a_restart_leaves_it_to_the_next_one(
    project: Project,
) -> None:
    job = Job(project)
    assert project.cloudtrain("up", job.config).returncode == 0
    train = job.start("train")
    train.kill()
    train.wait()
    os.kill(job.pid("worker1"), signal.SIGKILL)
    (path,) = project.home.glob("clusters/*/runs/*/run.json")
    record = json.loads(path.read_text())
    # What record_restart has written when the process dies before anything is started.
    cause = {"task": "worker1", "node": record["tasks"][2]["node"], "kind": "signal", "text": "x"}
    record["attempts"][-1]["restarted"] = [cause]
    record["tasks"][2]["attempt"] = 2
    path.write_text(json.dumps(record))
    follower = project.start("logs", "-f")
    until(lambda: job_serves(project), 60, "worker1 serves in its second attempt")
    job.end("chief0")
    assert follower.wait(60) == 0, project.stderr
    assert [task["attempt"] for task in job.record()["tasks"]] == [1, 1, 2, 1]
    assert job.log("worker1", 2)["task"] == {"type": "worker", "index": 1}
    assert project.cloudtrain("down").returncode == 0


def job_serves(project: Project) -> bool:
    logs = project.home.rglob("worker1/attempt-2/log")
    return any("serves" in log.read_text() for log in logs)
