"""`train --resume`, typed as a user types it, on real SSH servers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.standins.stores import KINDS, Store
from tests.support.project import Project

STEPS = ("--", "--steps")


def started(project: Project, *arguments: str) -> dict[str, object]:
    """The record of a run that ended well."""
    done = project.cloudtrain("train", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    record: dict[str, object] = json.loads(done.stdout)
    return record


def output(project: Project, run: object) -> str:
    done = project.cloudtrain("logs", project.name, "--run", str(run))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_run_begins_with_the_last_landed_checkpoint_on_every_task(project: Project) -> None:
    config = project.config()
    assert project.cloudtrain("up", config).returncode == 0
    first = started(project, *STEPS, "3")
    second = started(project, "--resume", "last", *STEPS, "5")
    assert second["resumed_from"] == {
        "run": first["id"],
        "store": project.store.as_uri(),
        "step": "ckpt/ckpt-3",
    }
    begun = output(project, second["id"])
    assert "chief0 begins at step 3" in begun
    assert "worker0 begins at step 3" in begun
    shown = project.cloudtrain("status", project.name).stdout
    assert f"resumed from ckpt/ckpt-3 of run {first['id']}" in shown
    third = started(project, "--resume", str(first["id"]), *STEPS, "4")
    assert "chief0 begins at step 3" in output(project, third["id"])
    shutil.rmtree(project.store / str(first["id"]))
    again = started(project, "--resume", "last", *STEPS, "6")
    assert "chief0 begins at step 4" in output(project, again["id"])


def test_it_resumes_on_another_cluster_from_the_store_alone(project: Project) -> None:
    done = project.cloudtrain("run", project.config(train={"command": "python3 rank.py --steps 3"}))
    assert done.returncode == 0, done.stderr
    (first,) = project.runs()
    shutil.rmtree(project.home)  # as on another machine
    rank = (project.code / "rank.py").read_text().replace('Path("ckpt")', 'Path("saved")')
    (project.code / "rank.py").write_text(rank)
    config = project.config(
        name=f"{project.name}b",
        nodes={"chief": {}, "worker": {"count": 2}},
        train={"command": "python3 rank.py --steps 5", "checkpoints": "saved"},
        artifacts={"store": (project.folder / "other store").as_uri()},
    )
    done = project.cloudtrain("run", config, "--resume", f"{project.store.as_uri()}/{first['id']}")
    assert done.returncode == 0, done.stderr
    assert f"the run begins with ckpt/ckpt-3 of run {first['id']}" in done.stderr
    assert "resumes from saved/ckpt-3" in done.stderr
    for task in ("chief0", "worker0", "worker1"):
        assert f"{task} begins at step 3" in done.stdout
    (record,) = (project.folder / "other store").glob("*/run.json")
    assert json.loads(record.read_text())["resumed_from"]["run"] == first["id"]


DIES = """
if [ {role} = chief ] && [ ! -e ../died ]; then
    touch ../died; cat ckpt/checkpoint; rm -r ckpt; sleep 1; kill -9 $$
fi
exec python3 rank.py --steps 5
"""


def test_a_restart_before_its_first_checkpoint_begins_with_the_source_again(
    project: Project,
) -> None:
    done = project.cloudtrain("run", project.config(train={"command": "python3 rank.py --steps 3"}))
    assert done.returncode == 0, done.stderr
    config = project.config(train={"command": DIES, "max_restarts": 1})
    done = project.cloudtrain("run", config, "--resume", "last")
    assert done.returncode == 0, done.stderr
    assert 'model_checkpoint_path: "ckpt-3"' in done.stdout
    assert done.stderr.count("resumes from ckpt/ckpt-3") == 2
    assert "chief0 begins at step 3" in done.stdout
    source, resumed = project.runs()
    manifest = json.loads((project.store / resumed["id"] / "manifest.json").read_text())
    assert manifest["checkpoint"]["paths"] == ["chief0/ckpt/checkpoint"]
    assert source["resumed_from"] is None


KILLED = """
import os, signal, sys
from cloudtrain.cli.app import run
from cloudtrain.runs import start

when, name = sys.argv.pop(1).split()
whole = getattr(start, name)

def wrapped(*given, **named):
    result = whole(*given, **named) if when == "after" else None
    os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(start, name, wrapped)
sys.exit(run(sys.argv[1:]))
"""


def test_a_start_that_was_killed_is_finished_from_the_same_checkpoint(project: Project) -> None:
    config = project.config()
    assert project.cloudtrain("up", config).returncode == 0
    first = started(project, *STEPS, "3")["id"]
    for moment in ("before put_checkpoints", "after put_checkpoints", "after start_tasks"):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, moment, "train", "--resume", str(first)],
            env=project.environment,
            cwd=project.folder,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        done = project.cloudtrain("logs", "-f", project.name)
        assert done.returncode == 0, done.stderr
        for task in ("chief0", "worker0"):
            assert f"{task} begins at step 3" in done.stdout
    records = [record for record in project.runs() if record["id"] != first]
    assert [record["state"] for record in records] == ["succeeded"] * 3
    assert {record["resumed_from"]["run"] for record in records} == {first}


def test_what_cannot_be_resumed_is_refused_before_anything_is_created(project: Project) -> None:
    config = project.config(train={"checkpoints": None, "command": "true"}, nodes={"chief": {}})
    done = project.cloudtrain("run", config, "--resume", "last")
    assert (done.returncode, "--resume needs train.checkpoints" in done.stderr) == (2, True)
    assert "add `train: {checkpoints: ckpt}`" in done.stderr
    config = project.config()
    for wanted, words in (
        ("last", f"{project.name} has no runs"),
        ("20261121-062404-k3f9", "no run 20261121-062404-k3f9 with a checkpoint on record here"),
        ((project.folder / "empty").as_uri(), "no landed checkpoint of a run in file:///"),
        ("../up", "no run has such an id"),
    ):
        done = project.cloudtrain("run", config, "--resume", wanted)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not list(project.home.glob("local/*/*"))
    config = project.config(train={"command": "true", "tf_config": False})
    done = project.cloudtrain("run", config)
    (run,) = project.runs()
    for wanted, words in (
        ("last", f"no run of {project.name} has landed a checkpoint"),
        (run["id"], f"run {run['id']} has landed no checkpoint"),
    ):
        done = project.cloudtrain("run", config, "--resume", wanted)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


@pytest.fixture(scope="module")
def clouds() -> Iterator[tuple[Store, Store]]:
    with KINDS["s3"]() as s3, KINDS["gs"]() as gs:
        yield s3, gs


def test_it_resumes_from_the_store_of_another_cloud(
    project: Project, clouds: tuple[Store, Store]
) -> None:
    s3, gs = clouds
    project.environment.update({**s3.environment, **gs.environment})
    first = project.config(
        train={"command": "python3 rank.py --steps 3"},
        artifacts={"store": f"{s3.uri}/{project.name}"},
    )
    done = project.cloudtrain("run", first)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(project.home)
    second = project.config(
        train={"command": "python3 rank.py --steps 5"},
        artifacts={"store": f"{gs.uri}/{project.name}"},
    )
    done = project.cloudtrain("run", second, "--resume", f"{s3.uri}/{project.name}")
    assert done.returncode == 0, done.stderr
    assert "worker0 begins at step 3" in done.stdout
