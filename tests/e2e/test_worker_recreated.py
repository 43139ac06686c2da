"""A worker whose node a cloud deletes or stops comes back alone, on each stand-in with real nodes.

The job has the shape of TensorFlow's parameter servers: workers and ps serve, and the chief hands
steps to whichever worker answers at its address in TF_CONFIG.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import READY, Account
from tests.support.commands import Command
from tests.support.project import Project, until

TASK = """
import json, os, pathlib, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, me = config["cluster"], config["task"]
addresses = [address.split(":") for address in cluster["worker"]]
if me["type"] != "chief":
    host, port = cluster[me["type"]][me["index"]].split(":")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, int(port)))
    server.listen(16)
    print("serves", json.dumps(config), flush=True)
    while True:
        peer = server.accept()[0]
        try:
            peer.sendall(b"done")
        except OSError:
            pass
        peer.close()
print("chief begins", flush=True)
end, step = pathlib.Path(sys.argv[1]) / "chief0", 0
while not end.exists():
    for index, (host, port) in enumerate(addresses):
        try:
            peer = socket.create_connection((host, int(port)), 2)
            if peer.recv(4) == b"done":
                print("step", step, "by worker%d" % index, flush=True)
            peer.close()
        except OSError:
            pass
    step += 1
    time.sleep(0.2)
"""


@dataclass
class Job:
    """A run on four nodes, which ends when the test says so."""

    account: Account
    ends: Path
    config: Path
    process: Command | None = None

    @property
    def project(self) -> Project:
        return self.account.project

    def start(self, *arguments: str | Path) -> None:
        self.process = self.project.start(*arguments)

    def until_said(self, words: str, within: float = 120.0) -> None:
        assert self.process is not None

        def said() -> bool:
            return bool(re.search(words, self.project.stderr)) or self.process.poll() is not None  # type: ignore[union-attr]

        until(said, within, words)
        assert re.search(words, self.project.stderr), self.project.stderr + self.account.logs()

    def node(self, task: str) -> str:
        return f"{self.project.name}-{task}"

    def steps_of(self, worker: str) -> int:
        return self.project.stdout.count(f"by {worker}")

    def next_step_of(self, worker: str) -> None:
        before = self.steps_of(worker)
        until(lambda: self.steps_of(worker) > before, 60, f"a step by {worker}")

    def end(self) -> dict[str, Any]:
        """End the chief; return the record of the run, which has succeeded."""
        assert self.process is not None
        (self.ends / "chief0").touch()
        assert self.process.wait(120) == 0, self.project.stderr
        (record,) = self.project.runs()
        return record

    def config_of(self, task: str, attempt: int) -> dict[str, Any]:
        """TF_CONFIG of the attempt, from its landed log."""
        (path,) = self.project.store.glob(f"*/logs/{task}.attempt-{attempt}.log")
        line = next(line for line in path.read_text().splitlines() if line.startswith("serves "))
        found: dict[str, Any] = json.loads(line.removeprefix("serves "))
        return found


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    if reason := unavailable():
        pytest.skip(reason)
    ends = tmp_path / "ends"
    ends.mkdir()
    with Nodes(binds=[ends]) as nodes, running(request.param, nodes=nodes) as cloud:
        project = Project(tmp_path / "project")
        project.environment.update(cloud.environment)
        account = Account(project, cloud, nodes)
        (project.code / "task.py").write_text(TASK)
        config = account.config(
            roles={"chief": 1, "worker": 2, "ps": 1},
            strategy="parameter_server",
            train={
                "command": f"exec python3 task.py {ends}",
                "max_restarts": 1,
                "checkpoints": "ckpt",
            },
        )
        values = yaml.safe_load(config.read_text())
        values["nodes"]["worker"]["spot"] = True
        config.write_text(yaml.safe_dump(values))
        made = Job(account, ends, config)
        yield made
        if made.process is not None and made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGKILL)
            made.process.wait()
        project.cloudtrain("down", project.name, "--discard", "--yes")


def came_back_alone(job: Job, record: dict[str, Any]) -> None:
    """Worker 1 alone was restarted, with the addresses that all had from the beginning."""
    attempts = {f"{t['role']}{t['index']}": t["attempt"] for t in record["tasks"]}
    assert attempts == {"chief0": 1, "worker0": 1, "worker1": 2, "ps0": 1}
    (attempt,) = record["attempts"]
    assert [cause["task"] for cause in attempt["restarted"]] == ["worker1"]
    assert attempt["tolerated"] == []
    assert job.config_of("worker1", 2) == job.config_of("worker1", 1)
    (chief,) = job.project.store.glob("*/logs/chief0.*.log")
    assert chief.read_text().count("chief begins") == 1


@pytest.mark.sweep(1, of="workers")
@pytest.mark.parametrize("job", READY, indirect=True)
def test_a_worker_whose_node_the_cloud_deletes_comes_back_at_its_address_and_the_chief_goes_on(
    job: Job,
) -> None:
    job.start("run", job.config, "--yes")
    job.until_said("cluster formed")
    job.next_step_of("worker1")
    job.account.cloud.tell("interrupt", name=job.node("worker1"))
    began = time.monotonic()
    job.until_said(f"{job.node('worker1')} is being recreated; the run continues")
    job.next_step_of("worker0")
    job.until_said("worker1 serves again")
    took = time.monotonic() - began
    job.next_step_of("worker1")
    print(f"{job.account.cloud.name}: worker1 served again {took:.1f} s after its node's deletion")
    came_back_alone(job, job.end())
    assert job.account.cloud.holdings() == []
    assert job.account.nodes.running() == []


@pytest.mark.sweep(1, of="workers")
@pytest.mark.parametrize("job", READY, indirect=True)
def test_a_worker_whose_node_was_stopped_comes_back_once_the_node_is_started(job: Job) -> None:
    job.start("run", job.config, "--yes")
    job.until_said("cluster formed")
    job.account.cloud.tell("stop", name=job.node("worker1"))
    began = time.monotonic()
    job.until_said(f"{job.node('worker1')} is being started; the run continues")
    job.until_said("worker1 serves again")
    took = time.monotonic() - began
    job.next_step_of("worker1")
    print(f"{job.account.cloud.name}: worker1 served again {took:.1f} s after its node's stop")
    came_back_alone(job, job.end())
    assert job.account.cloud.holdings() == []


@pytest.mark.sweep(1, of="workers")
@pytest.mark.parametrize("job", ["aws"], indirect=True)
def test_a_worker_whose_node_reboots_comes_back(job: Job) -> None:
    job.start("run", job.config, "--yes")
    job.until_said("cluster formed")
    job.account.openssh(job.node("worker1"), "sudo reboot >/dev/null 2>&1 </dev/null")
    began = time.monotonic()
    job.until_said("worker1 serves again")
    took = time.monotonic() - began
    job.next_step_of("worker1")
    print(f"{job.account.cloud.name}: worker1 served again {took:.1f} s after its node's reboot")
    came_back_alone(job, job.end())
    assert "is being" not in job.project.stderr
    assert job.account.cloud.holdings() == []


def dies_while_a_node_is_recreated(job: Job) -> None:
    """The client is killed while the new node boots, before anybody has logged in to it."""
    job.account.do("up", job.config, "--yes")
    job.start("train")
    job.until_said("cluster formed")
    job.account.cloud.tell("interrupt", name=job.node("worker1"))
    nodes = job.account.nodes
    job.until_said("is being recreated")
    until(lambda: job.node("worker1") in nodes.running(), 60)
    assert job.process is not None
    os.killpg(job.process.pid, signal.SIGKILL)
    job.process.wait()


@pytest.mark.sweep(1, of="workers")
@pytest.mark.parametrize("job", ["gcp"], indirect=True)
def test_who_takes_over_makes_a_half_made_node_ready_and_starts_the_recorded_attempt(
    job: Job,
) -> None:
    dies_while_a_node_is_recreated(job)
    job.start("logs", "-f")
    job.until_said("is being made ready")
    job.until_said(r"worker1 restarted \(attempt 2 of its own\)")
    job.next_step_of("worker1")
    came_back_alone(job, job.end())
    job.account.do("down", job.project.name, "--yes")
    assert job.account.cloud.holdings() == []


@pytest.mark.sweep(1, of="workers")
@pytest.mark.parametrize("job", ["gcp"], indirect=True)
def test_down_after_a_client_died_while_a_node_was_recreated_leaves_nothing(job: Job) -> None:
    dies_while_a_node_is_recreated(job)
    job.project.limits = {"NODE_TAKEN": 3.0}  # the node answers no login: three minutes
    job.account.do("down", job.project.name, "--yes")
    job.account.cloud.quiet()
    assert job.account.cloud.holdings() == []
    assert job.account.nodes.running() == []
