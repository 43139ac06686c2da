"""What `down` and the deletion of some nodes refuse, and what they leave on record."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.core.model import Owner
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs.landing_steps import record_seen
from cloudtrain.state import Records
from tests.support.drift_parts import User, cloudtrain, user, worker

__all__ = ["user"]

RUN = Run(
    id="20261127-140211-k3f9",
    cluster="deep",
    command="echo",
    state="running",
    created=1.0,
    tasks=(Task(role="worker", index=0, node="deep-worker0", port=8900, attempt=1),),
)


def test_a_cluster_that_is_down_is_closed_on_record(user: User) -> None:
    assert Records("deep").is_open()
    assert cloudtrain("down", "deep", "--yes", "--discard").exit_code == 0
    assert not Records("deep").is_open()
    assert not Records("deep").has_keys()


def test_discard_deletes_no_node_of_another_owner(user: User) -> None:
    ann = Owner(id="0123456789ab", name="ann", machine="hers")
    for name, node in user.cloud.cloud["deep"].items():
        user.cloud.cloud["deep"][name] = replace(node, owner=ann)
    done = cloudtrain("down", "deep", "--yes", "--discard")
    assert done.exit_code == 2, done.stderr
    assert "deep is not yours" in done.stderr
    assert user.names() == ["deep-worker0", "deep-worker1"]
    assert cloudtrain("down", "deep", "--yes", "--discard", "--owner", "ann").exit_code == 0
    assert user.names() == []


def test_no_node_is_deleted_from_under_a_run(user: User) -> None:
    Records("deep").save_run(RUN)
    user.write(**worker(count=1))
    done = user.up("--shrink")
    assert done.exit_code == 2, done.stderr
    assert f"{RUN.id} of deep is still active" in done.stderr
    assert user.names() == ["deep-worker0", "deep-worker1"]


def test_a_record_of_which_a_run_cannot_be_read_is_not_whole(user: User) -> None:
    records = Records("deep")
    records.save_run(RUN)
    assert record_seen(records) == "there"
    (path,) = records.folder.glob(f"runs/{RUN.id}/*.json")
    path.write_text("{")
    assert record_seen(records) == "lost"
