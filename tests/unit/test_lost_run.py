"""`down` of a cluster whose nodes are gone: an active run is named, with what of it had landed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.manifest import Manifest, to_bytes
from cloudtrain.core.events import AttemptBegun, DownBegun, Event, RemovalBegun
from cloudtrain.core.model import Artifact
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.state import Records
from cloudtrain.stores import open_store
from tests.support.drift_parts import User, cloudtrain, user
from tests.support.landing_parts import write_manifest

__all__ = ["user"]

ID = "20261126-140211-k3f9"


@pytest.fixture
def run(user: User, tmp_path: Path) -> Run:
    """One that trains on two nodes, by its record; they are gone."""
    store = (tmp_path / "store").as_uri()
    user.write(artifacts={"store": store})
    assert user.up().exit_code == 0
    tasks = tuple(
        Task(role="worker", index=index, node=f"deep-worker{index}", port=8900, attempt=1)
        for index in (0, 1)
    )
    made = Run(
        id=ID,
        cluster="deep",
        command="echo",
        state="running",
        created=1.0,
        store=store,
        tasks=tasks,
        attempts=(RunAttempt(number=1, started=2.0),),
    )
    records = Records("deep")
    records.save_run(made)
    records.journal(AttemptBegun(run=ID))
    user.cloud.cloud.clear()
    return made


def landed(run: Run, *, whole: bool = False, by_others: bool = False, first: int = 0) -> None:
    """`first`: attempt of the first task of which alone all has landed."""
    file = Artifact(path="worker0/output/model", size=1200, sha256="0" * 64, mtime=10**18)
    ends = {task.name: task.attempt for task in run.tasks} if whole else {}
    ends |= {run.tasks[0].name: first} if first else {}
    manifest = Manifest(run=run.id, files={file.path: file}, landed_attempts=ends)
    if not by_others:
        own_manifests(Records("deep")).about_to_write(run.id, to_bytes(manifest))
    write_manifest(open_store(run.store or ""), manifest)


def test_it_is_named_with_what_had_landed_and_recorded_as_failed(user: User, run: Run) -> None:
    landed(run)
    done = cloudtrain("down", "deep", "--yes")
    assert done.exit_code == 5, done.stderr
    for text in (
        f"run {ID} was active, and its nodes are gone (deep-worker0, deep-worker1)",
        "1 file (1.2 kB) had landed, the newest of 2001-09-09 01:46:40 UTC; what it made since",
        f"`cloudtrain fetch deep --run {ID}`",
        "lists nothing of it any more",
    ):
        assert text in done.stderr, done.stderr
    (recorded,) = Records("deep").runs()
    assert (recorded.state, recorded.exit_code) == ("failed", 1)
    assert recorded.ended is not None
    cause = recorded.attempts[-1].cause
    assert cause is not None
    assert cause.kind == "lost"
    assert cloudtrain("down", "deep", "--yes").exit_code == 0, "it was said"


def test_where_nothing_had_landed_all_is_lost(user: User, run: Run) -> None:
    done = cloudtrain("down", "deep", "--yes")
    assert done.exit_code == 5
    assert "nothing of it had landed, all that it made is lost" in done.stderr


def test_what_had_landed_whole_is_not_lost(user: User, run: Run) -> None:
    landed(run, whole=True)
    assert cloudtrain("down", "deep", "--yes").exit_code == 0


@pytest.mark.parametrize(("whole", "first"), [(False, 1), (True, 2)])
def test_what_had_landed_of_another_task_or_attempt_is_no_proof(
    user: User, run: Run, whole: bool, first: int
) -> None:
    landed(run, whole=whole, first=first)
    done = cloudtrain("down", "deep", "--yes")
    assert done.exit_code == 5, done.stderr


def test_a_list_that_somebody_else_wrote_hides_no_loss(user: User, run: Run) -> None:
    landed(run, whole=True, by_others=True)
    done = cloudtrain("down", "deep", "--yes")
    assert done.exit_code == 5, done.stderr
    assert "1 file (1.2 kB) had landed" in done.stderr
    assert "by a list that this machine did not write" in done.stderr
    assert Records("deep").runs()[0].state == "failed"


@pytest.mark.parametrize(
    "event",
    [DownBegun(nodes=()), RemovalBegun(nodes=("deep-worker0", "deep-worker1"), whole=True)],
)
def test_nodes_that_a_command_deleted_after_landing_are_not_lost(
    user: User, run: Run, event: Event
) -> None:
    Records("deep").journal(event)
    done = cloudtrain("down", "deep", "--yes")
    assert done.exit_code == 0, done.stderr


def test_with_discard_nothing_is_said_to_be_kept(user: User, run: Run) -> None:
    done = cloudtrain("down", "deep", "--discard", "--yes")
    assert done.exit_code == 0
    assert f"ending active run {ID}: what has not landed is lost" in done.stderr
