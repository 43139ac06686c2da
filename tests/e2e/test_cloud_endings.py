"""Nodes that their cloud takes or that are shut down while no client lives, on each stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.standins.stores import KINDS
from tests.support import processes
from tests.support.agent_parts import metadata
from tests.support.cloud_user import READY, Account
from tests.support.project import Project, until

TRAIN = """
import hashlib, os, signal, sys, time

def write(path, size):
    data = os.urandom(size)
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)
    print("wrote", hashlib.sha256(data).hexdigest(), path, flush=True)

def save(*_):
    time.sleep(0.5)
    write("ckpt/state", 4000000)
    sys.exit(42)

os.makedirs("output", exist_ok=True)
os.makedirs("ckpt", exist_ok=True)
signal.signal(signal.SIGTERM, save)
for number in range(20):
    write("output/%d" % number, 1000000)
write("ckpt/state", 4000000)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture(params=READY)
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    store = KINDS["gs" if request.param == "aws" else "s3"]
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud, store() as place:
        project = Project(tmp_path / "project")
        project.environment.update({**cloud.environment, **place.environment})
        project.environment["STORE"] = place.uri
        project.limits = {"NODE_LISTED": 3.0}  # `down` waits as long for a node that is gone
        yield Account(project, cloud, nodes)


def train_alone(account: Account) -> Path:
    """Start a run and kill its client; return the folder of its task on the node's disk."""
    project = account.project
    (project.code / "train.py").write_text(TRAIN)
    config = account.config(
        roles={"chief": 1},
        strategy="one_device",
        train={"command": "python3 train.py"},
        artifacts={"store": f"{project.environment['STORE']}/{project.name}"},
    )
    values = yaml.safe_load(config.read_text())
    values["nodes"]["chief"]["spot"] = True
    config.write_text(yaml.safe_dump(values))
    account.do("up", config, "--yes")
    client = project.start("train")
    until(lambda: "ready" in project.stdout, 120)
    place = until(lambda: list(account.nodes.disks().glob("*/upper/**/chief0/keeping")), 60)
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    folder: Path = place[0].parent
    return folder


def everything_landed(account: Account) -> int:
    """Compare what is fetched with what the task wrote, by its log; return the bytes."""
    folder = account.project.folder / "fetched"
    account.do("fetch", account.project.name, folder)
    log = next(folder.glob("logs/chief0.*.log")).read_text()
    wrote = {path: digest for digest, path in re.findall(r"wrote (\w{64}) (\S+)", log)}
    assert len(wrote) == 21
    assert log.count("ckpt/state") == 2  # before the end and after SIGTERM
    found = {path: (folder / "chief0" / path).read_bytes() for path in wrote}
    assert {path: hashlib.sha256(data).hexdigest() for path, data in found.items()} == wrote
    return sum(map(len, found.values()))


def seconds_until(done: Callable[[], object], within: float) -> float:
    began = time.monotonic()
    until(done, within)
    return time.monotonic() - began


def is_stored(account: Account, folder: Path) -> bool:
    """The agent has stored the log's last line, and has ended."""
    there = account.nodes.pids(f"{account.project.name}-chief0")
    agents = [pid for pid in there if "cloudtrain.node.agent" in " ".join(processes.words(pid))]
    return not agents and "files" in (folder / "keeper.log").read_text()


@pytest.mark.sweep(1, of="endings")
def test_all_that_a_spot_node_has_at_its_notice_lands_though_no_client_lives(
    account: Account,
) -> None:
    names: list[str] = []
    with metadata(account.cloud.name, names) as (address, _):
        account.project.environment["CLOUDTRAIN_METADATA"] = address
        folder = train_alone(account)
        names.append(f"{account.project.name}-chief0")
        took = seconds_until(lambda: is_stored(account, folder), 60)
    account.cloud.tell("interrupt", name=names[0])
    size = everything_landed(account)
    print(f"{account.cloud.name}: {size} bytes {took:.1f} s after the notice")
    done = account.project.cloudtrain("down", account.project.name, "--yes")
    assert done.returncode == 5, "its run was active, and its node is gone"
    assert account.cloud.holdings() == []


@pytest.mark.sweep(1, of="endings")
def test_all_that_a_node_has_when_it_is_shut_down_lands_though_no_client_lives(
    account: Account,
) -> None:
    with metadata(account.cloud.name, []) as (address, _):
        account.project.environment["CLOUDTRAIN_METADATA"] = address
        train_alone(account)
        name = f"{account.project.name}-chief0"
        account.openssh(name, "(sleep 0.3; sudo shutdown -P now) >/dev/null 2>&1 </dev/null &")
        took = seconds_until(lambda: account.nodes.running() == [], 60)
    size = everything_landed(account)
    print(f"{account.cloud.name}: {size} bytes {took:.1f} s after the shutdown")
    done = account.project.cloudtrain("down", account.project.name, "--yes")
    # AWS deletes an instance that shuts itself down; elsewhere `down` starts it to land the rest.
    assert done.returncode == (5 if account.cloud.name == "aws" else 0), done.stderr
    assert account.cloud.holdings() == []


# ── Nodes that end themselves ────────────────────────────────────────────────


BRIEF = """
import os, sys, time
os.makedirs("output", exist_ok=True)
open("output/model", "w").write("model")
print("ready", flush=True)
time.sleep(12)
open("output/late", "w").write("late")
sys.exit(%d)
"""

SOON = {"runs.own_ends.GRACE": 0.0, "runs.own_ends.LOOK": 0.5}


@pytest.fixture(params=["aws", "gcp"])
def ending(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Account]:
    """Nodes that end themselves after two seconds without use."""
    if reason := unavailable():
        pytest.skip(reason)
    store = KINDS["gs" if request.param == "aws" else "s3"]
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud, store() as place:
        project = Project(tmp_path / "project")
        project.environment.update({**cloud.environment, **place.environment})
        project.environment["STORE"] = place.uri
        project.limits = {"NODE_LISTED": 3.0, **SOON}
        yield Account(project, cloud, nodes)


def kill_idle_process(project: Project) -> None:
    for pid, words in project.processes().items():
        if " cloudtrain idle " in words:
            os.kill(pid, signal.SIGKILL)


def left_alone(account: Account, code: int) -> None:
    """A run that ends with this code after its client, and all else on this machine, was killed."""
    project = account.project
    (project.code / "train.py").write_text(BRIEF % code)
    config = account.config(
        roles={"chief": 1},
        strategy="one_device",
        train={"command": "python3 train.py"},
        artifacts={"store": f"{project.environment['STORE']}/{project.name}"},
        limits={"idle": "2s"},
    )
    client = project.start("run", config)
    until(lambda: "ready" in project.stdout or client.poll() is not None, 120)
    assert client.poll() is None, project.stderr + account.logs()
    until(lambda: list(account.nodes.disks().glob("*/upper/**/chief0/keeping")), 60)
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    kill_idle_process(project)
    time.sleep(4)  # longer than the limit: a run that goes on is never ended by it
    assert account.nodes.running() != []
    until(lambda: account.nodes.running() == [], 60)


def starts(account: Account) -> list[str]:
    """Calls that create or start a machine."""
    done = [call for call in account.cloud.calls() if call["status"] == 200]  # not a dry run
    actions = [str(call["action"]).split()[0] for call in done]
    wanted = ("RunInstances", "StartInstances", "instances.insert", "instances.start")
    return [action for action in actions if action.endswith(wanted)]


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.sweep(1, of="endings")
def test_a_node_ends_itself_after_a_run_that_nobody_attended_to(ending: Account, code: int) -> None:
    left_alone(ending, code)
    project, made = ending.project, starts(ending)
    assert len(made) == 1
    shown = project.cloudtrain("status", project.name)
    assert "chief0 ended itself: " in shown.stdout, shown.stdout + shown.stderr
    assert "nobody has used it for" in shown.stdout
    assert shown.returncode == 0, shown.stdout
    done = project.cloudtrain("down", project.name, "--yes")
    assert done.returncode == 0, done.stderr
    assert ending.cloud.holdings() == []
    assert starts(ending) == made, "nothing is started to land what has landed"
    told = json.loads(project.cloudtrain("status", project.name, "--json").stdout)
    (run,) = told["clusters"][0]["runs"]
    assert run["state"] == ("failed" if code else "succeeded")
    assert run["attempts"][0]["exits"] == {"chief0": code}
    folder = project.folder / "fetched"
    assert project.cloudtrain("fetch", project.name, folder).returncode == 0
    assert (folder / "chief0/output/model").read_text() == "model"
    assert (folder / "chief0/output/late").read_text() == "late"


@pytest.mark.sweep(1, of="endings")
def test_a_run_command_that_joins_such_a_run_creates_no_node_for_it(ending: Account) -> None:
    left_alone(ending, 0)
    project, made = ending.project, starts(ending)
    done = project.cloudtrain("run", project.folder / "cluster.yaml", timeout=300)
    assert done.returncode == 0, done.stderr
    assert "its nodes have ended themselves" in done.stderr
    assert starts(ending) == made
    assert ending.cloud.holdings() == []


@pytest.mark.sweep(1, of="endings")
def test_nodes_that_no_run_has_used_end_themselves_too(ending: Account) -> None:
    project = ending.project
    config = ending.config(limits={"idle": "20s"})
    up = ending.do("up", config, "--yes")
    assert "if this machine is off, the nodes end themselves" in up.stderr
    assert len(ending.nodes.running()) == 2
    attended, other = f"{project.name}-chief0", f"{project.name}-worker0"
    ending.openssh(attended, "true")
    options = ("-F", str(project.folder / "ssh_config"), "-o", "BatchMode=yes")
    with subprocess.Popen(["ssh", *options, attended, "sleep 300"]) as client:
        kill_idle_process(project)
        until(lambda: other not in ending.nodes.running(), 90)
        time.sleep(5)
        assert ending.nodes.running() == [attended], "somebody is connected to it"
        client.kill()
    until(lambda: ending.nodes.running() == [], 90)
    shown = project.cloudtrain("status", project.name).stdout
    assert "chief0 ended itself: not before" in shown, shown
    made = starts(ending)
    assert project.cloudtrain("down", project.name, "--yes").returncode == 0
    assert ending.cloud.holdings() == []
    assert starts(ending) == made
