"""A client that goes away and a node that ends, as a user types it, on real SSH servers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.standins.stores import KINDS, Store
from tests.support.project import Project, until

SHORT = """
import sys
from cloudtrain.runs import node_agents
node_agents.TIMES.update(tick=0.05, rest=0.1, patience=0.2)
from cloudtrain.cli.app import run
sys.exit(run(sys.argv[1:]))
"""
"""The command with agents that are soon at their wits' end."""

TRAIN = """
echo started
mkdir -p output ckpt
echo model >"$CLOUDTRAIN_OUTPUT/model"
until [ -e ../over ]; do sleep 0.05; done
echo weights >ckpt/ckpt-1; echo ckpt-1 >ckpt/checkpoint
echo late >"$CLOUDTRAIN_OUTPUT/late"
echo trained
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with KINDS["s3"]() as place:
        yield place


@pytest.fixture
def away(project: Project, store: Store) -> Project:
    """A run whose client was killed, and that has ended since; its archives are in the store."""
    project.environment.update(store.environment)
    (project.code / "train.sh").write_text(TRAIN)
    config = project.config(
        strategy="one_device",
        nodes={"chief": {}},
        train={"command": "sh train.sh", "checkpoints": "ckpt"},
        artifacts={"store": f"{store.uri}/{project.name}"},
    )
    assert project.cloudtrain("up", config).returncode == 0
    client = subprocess.Popen(
        [sys.executable, "-c", SHORT, "train", str(config)],
        env=project.environment,
        cwd=project.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (task,) = until(lambda: [p.parent for p in node(project).glob("**/chief0/keeping")], 60)
    until(lambda: list(project.home.glob("clusters/*/runs/*/chief0.1.log")), 60)
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    (task / "over").touch()
    until(lambda: "unchanged while read" in (task / "keeper.log").read_text(), 60)
    until(lambda: "cloudtrain.node.agent" not in str(project.processes()), 60)
    return project


def node(project: Project) -> Path:
    (found,) = project.home.glob("local/*/*-chief0")
    return found


def end_the_node(project: Project) -> None:
    """As a cloud ends a machine: with all that runs and lies there."""
    folder = node(project)
    while left := project.processes():
        for pid in left:
            with suppress(ProcessLookupError):  # it ends with another one
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


def fetched(project: Project) -> dict[str, str]:
    folder = project.folder / "fetched"
    done = project.cloudtrain("fetch", project.name, folder)
    assert done.returncode == 0, done.stderr
    files = (path for path in folder.rglob("[!.]*") if path.is_file())  # not its mark
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


EVERYTHING = {
    "chief0/output/model": "model\n",
    "chief0/output/late": "late\n",
    "chief0/ckpt/ckpt-1": "weights\n",
    "chief0/ckpt/checkpoint": "ckpt-1\n",
    "logs/chief0.attempt-1.log": "started\ntrained\n",
}


def test_what_was_only_on_a_node_that_ended_is_fetched(away: Project) -> None:
    end_the_node(away)
    assert fetched(away) == EVERYTHING
    logs = away.cloudtrain("logs", away.name).stdout
    assert re.findall("started|trained", logs) == ["started", "trained"]


def test_down_after_the_node_ended_takes_all_that_it_stored(away: Project) -> None:
    end_the_node(away)
    done = away.cloudtrain("down", away.name, "--yes")
    assert done.returncode == 5, "its run was active: nobody knows what came after the archive"
    assert "its nodes are gone" in done.stderr
    assert "1 archive" in done.stderr + done.stdout
    assert fetched(away) == EVERYTHING


def test_a_node_that_is_there_lands_by_itself_and_no_archive_stays(away: Project) -> None:
    done = away.cloudtrain("down", away.name, "--yes")
    assert done.returncode == 0, done.stderr
    assert "archive" not in done.stderr + done.stdout
    found = fetched(away)
    assert EVERYTHING.items() <= found.items()
    assert away.processes() == {}
