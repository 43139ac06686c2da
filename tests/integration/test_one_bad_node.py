"""One of three machines answers with rubbish, without end, or as somebody else: every command ends,
names it, and does its part on the two others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.fakes import key_pair
from tests.support.lent import lent_home
from tests.support.project import Project
from tests.support.sshd import SshdNode, sshd_nodes

pytestmark = pytest.mark.openssh

TOOLS = ("find", "tar", "sha256sum", "python3", "df", "stat", "ps")


@dataclass
class Cluster:
    machines: list[SshdNode]
    project: Project
    path: Path

    def says(self, *words: str | Path, code: int) -> str:
        """What the command says on both streams."""
        done = self.project.cloudtrain(*words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "internal" not in done.stderr
        return done.stdout + done.stderr

    def leaves_a_late_file(self) -> None:
        """Every task's folder gets a file after its run has ended."""
        run = self.project.runs()[-1]["id"]
        for machine, task in zip(self.machines, ("chief0", "worker0", "worker1"), strict=True):
            below = f".cloudtrain/{self.project.name}/runs/{run}/{task}/work/output"
            (machine.home / below).mkdir(parents=True, exist_ok=True)
            (machine.home / below / "late").write_text(task)

    def landed(self) -> set[str]:
        store = self.project.folder / "store"
        return {path.read_text() for path in store.glob("*/*/output/late")}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with ExitStack() as stack:
        machines = stack.enter_context(sshd_nodes(tmp_path / "machines", ["a", "b", "c"]))
        monkeypatch.setenv("HOME", str(lent_home(tmp_path / "home", machines)))
        project = Project(tmp_path / "project")
        project.environment["HOME"] = os.environ["HOME"]
        project.limits = {"NODE_AWAY": 3.0, "NODE_KNOWN": 3.0}
        hosts = [
            {"address": node.address, "port": node.ssh_port, "user": node.user, "role": role}
            for node, role in zip(
                [machine.node for machine in machines], ["chief", "worker", "worker"], strict=True
            )
        ]
        train = {"command": "python3 rank.py --steps 3 --pause 0.1"}
        path = project.config(provider="hosts", hosts=hosts, train=train)
        values = yaml.safe_load(path.read_text())
        del values["nodes"]
        path.write_text(yaml.safe_dump(values))
        cluster = Cluster(machines, project, path)
        cluster.says("up", path, "--yes", code=0)
        cluster.says("train", code=0)
        yield cluster


def with_other_tools(machine: SshdNode, text: str) -> Callable[[], None]:
    """The tools that this program uses there do something else."""
    folder = machine.home.parent / "tools"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    def start(*places: str) -> None:
        machine.stop()
        path = ":".join((*places, os.environ["PATH"]))
        machine.start("-o", f"SetEnv HOME={machine.home} PATH={path}")
        machine.await_start()

    start(str(folder))
    return start


def with_another_host_key(machine: SshdNode) -> Callable[[], None]:
    known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
    before = known.read_text()
    place = "[{}]:{}".format(*machine.place)
    lines = [line for line in before.splitlines() if not line.startswith(place)]
    known.write_text("\n".join([*lines, f"{place} {key_pair()[1]}\n"]))
    return lambda: known.write_text(before) and None


def with_refused_login(machine: SshdNode) -> Callable[[], None]:
    """Somebody has removed the user's key."""
    files = [path for path in machine.home.parent.rglob("authorized_keys*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}

    def restore() -> None:
        for path, content in before.items():
            path.write_bytes(content)

    for path in files:
        path.write_bytes(b"")
    return restore


BAD: dict[str, Callable[[SshdNode], Callable[[], None]]] = {
    "another host key": with_another_host_key,
    "a refused login": with_refused_login,
    "rubbish": lambda machine: with_other_tools(machine, r"printf 'x\0y\nz \377 rubbish\n'"),
    "no end": lambda machine: with_other_tools(machine, "exec yes rubbish-rubbish-rubbish"),
    "a killed session": lambda machine: with_other_tools(machine, "kill -9 $PPID; sleep 1"),
}


SAID = {
    "another host key": "does not match your known_hosts",
    "a refused login": "accepts none of your keys: Authentication failed.",
    "rubbish": "uname, python3 and df answer 'Linux x86_64, xy z",
    "no end": "its answer exceeds 1 MB",
    "a killed session": "ended the session unanswered",
}
"""What `check` says of the bad machine."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", BAD)
def test_one_bad_node_ends_no_command_for_the_others(cluster: Cluster, kind: str) -> None:
    name = cluster.project.name
    bad = f"{name}-worker0"
    cluster.leaves_a_late_file()
    mend = BAD[kind](cluster.machines[1])
    status = cluster.says("status", code=0)
    assert "chief0   running" in status
    assert "worker1  running" in status
    done = cluster.project.cloudtrain("exec", name, "--", "echo", "here")
    assert "chief0 │ here" in done.stdout
    assert "worker1 │ here" in done.stdout
    is_stranger, is_refused = kind == "another host key", kind == "a refused login"
    closed = is_stranger or is_refused
    assert done.returncode == int(closed), "of the bad one the shell itself still works"
    assert ("skipped: worker0 (untrusted" in done.stderr) == is_stranger
    assert ("skipped: worker0 (unknown" in done.stderr) == is_refused
    checked = cluster.says("check", cluster.path, code=4 if is_refused else 1)
    assert SAID[kind] in checked
    assert "hint: " in checked
    assert "Traceback" not in checked
    assert checked.count("\nok    host") + checked.startswith("ok    host") == 2
    logs, config = cluster.says("logs", code=0), cluster.says("ssh-config", code=0)
    for task in ("chief0", "worker0", "worker1"):
        assert f"{task} │ {task} step 3" in logs
        assert f"Host {name}-{task}" in config or is_stranger
    down = cluster.says("down", name, "--yes", code=5)
    assert bad in down
    assert SAID[kind] in down or not is_refused, "the reason is named, not a guess"
    assert f"{name}-chief0:" not in down
    assert cluster.landed() == {"chief0", "worker1"}, "what the others hold has landed"
    mend()
    cluster.says("down", name, "--yes", code=0)
    assert cluster.landed() == {"chief0", "worker0", "worker1"}
