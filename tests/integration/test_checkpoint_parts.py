"""The parts that ps tasks write on their own disks land with the chief's checkpoint, or not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.artifacts.checkpoints import put_checkpoints, stored_checkpoint
from cloudtrain.artifacts.land import take_checkpoint
from cloudtrain.artifacts.manifest import Manifest
from tests.support.landing_parts import RUN, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, workers=1, ps=2)


def save(cluster: Cluster, number: int, *, on: str = "ps0") -> None:
    """As TensorFlow 1's Saver does with one ps: its files there, what names them on the chief."""
    cluster.write(on, f"ckpt/model-{number}.data-00000-of-00001", os.urandom(100_000))
    cluster.write(on, f"ckpt/model-{number}.index", f"index {number}")
    name(cluster, number)


def save_v1(cluster: Cluster, number: int) -> None:
    """As its old format does: one part on each ps."""
    for index in (0, 1):
        part = f"ckpt/model-{number}-0000{index}-of-00002"
        cluster.write(f"ps{index}", part, os.urandom(1000))
    name(cluster, number)


def name(cluster: Cluster, number: int) -> None:
    cluster.write("chief0", f"ckpt/model-{number}.meta", f"graph {number}")
    state = f'model_checkpoint_path: "model-{number}"\nall_model_checkpoint_paths: "model-{number}"'
    cluster.write("chief0", "ckpt/checkpoint", state)
    (cluster.work("chief0") / f"ckpt/model-{number - 1}.meta").unlink(missing_ok=True)


def take(cluster: Cluster) -> Manifest:
    return take_checkpoint(cluster.landing("ckpt"), cluster.run, cluster.nodes)


def put(cluster: Cluster) -> str | None:
    return put_checkpoints(cluster.run, cluster.nodes, "ckpt", cluster.transport, cluster.store)


def content(cluster: Cluster, task: str) -> dict[str, bytes]:
    top = cluster.work(task) / "ckpt"
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_parts_land_as_the_chief_s_and_come_back_on_every_task(cluster: Cluster) -> None:
    save(cluster, 7)
    wanted = content(cluster, "chief0") | content(cluster, "ps0")
    manifest = take(cluster)
    assert manifest.checkpoint is not None
    assert {path.partition("ckpt/")[2] for path in manifest.checkpoint.paths} == wanted.keys()
    assert put(cluster) == "ckpt/model-7"
    assert [content(cluster, task) for task in cluster.nodes] == [wanted] * 4


def test_each_ps_may_hold_one_part(cluster: Cluster) -> None:
    save_v1(cluster, 7)
    wanted = {k: v for task in ("chief0", "ps0", "ps1") for k, v in content(cluster, task).items()}
    take(cluster)
    assert put(cluster) == "ckpt/model-7"
    assert [content(cluster, task) for task in cluster.nodes] == [wanted] * 4


def test_parts_of_rotated_checkpoints_stay_on_their_ps(cluster: Cluster) -> None:
    save(cluster, 6)
    take(cluster)
    save(cluster, 7)
    cluster.write("ps0", "ckpt/model-8.index", "being written")
    manifest = cluster.land(checkpoints="ckpt")
    assert {path.rpartition("/")[2] for path in manifest.files} == {
        "checkpoint",
        "model-7.data-00000-of-00001",
        "model-7.index",
        "model-7.meta",
    }
    assert cluster.unlanded("ckpt") == ()


def test_a_checkpoint_whose_ps_is_lost_is_not_offered_and_the_last_complete_one_is(
    cluster: Cluster,
) -> None:
    save(cluster, 6)
    take(cluster)
    put(cluster)
    whole = content(cluster, "ps0")
    save(cluster, 7)
    (cluster.work("ps0") / "ckpt/model-7.index").unlink()
    cluster.write("chief0", "ckpt/events.1", "loss")
    manifest = take(cluster)
    assert cluster.console.warned == [
        "chief0/ckpt/model-7 is not complete on the disks of the chief and the ps: "
        "not landed as a checkpoint"
    ]
    assert "chief0/ckpt/events.1" in manifest.files
    assert put(cluster) == "ckpt/model-6"
    assert [content(cluster, task) for task in cluster.nodes] == [whole] * 4


def test_a_torn_checkpoint_keeps_no_node_from_being_deleted(cluster: Cluster) -> None:
    name(cluster, 7)
    manifest = cluster.land(checkpoints="ckpt")
    assert (manifest.checkpoint, manifest.complete) == (None, True)
    assert stored_checkpoint(RUN, cluster.store) is None
    assert {"chief0/ckpt/checkpoint", "chief0/ckpt/model-7.meta"} <= manifest.files.keys()
    assert cluster.unlanded("ckpt") == ()
    assert put(cluster) is None


def test_a_torn_checkpoint_after_a_complete_one_keeps_none_either(cluster: Cluster) -> None:
    save(cluster, 6)
    take(cluster)
    save(cluster, 7)
    (cluster.work("ps0") / "ckpt/model-7.index").unlink()
    manifest = cluster.land(checkpoints="ckpt")
    assert manifest.complete
    assert manifest.checkpoint is not None
    assert cluster.unlanded("ckpt") == ()
    assert put(cluster) == "ckpt/model-6"


def test_parts_that_have_not_landed_are_named(cluster: Cluster) -> None:
    save(cluster, 6)
    cluster.land(checkpoints="ckpt")
    cluster.write("ps0", "ckpt/model-6.index", "INDEX 6")
    assert cluster.unlanded("ckpt") == (f"{RUN}/chief0/ckpt/model-6.index",)


def test_a_landed_set_that_lacks_parts_is_not_offered(cluster: Cluster) -> None:
    """As a node's agent may have landed it, or an earlier version."""
    name(cluster, 7)
    ps = {task: node for task, node in cluster.nodes.items() if node.role == "ps"}
    others = {task: node for task, node in cluster.nodes.items() if task not in ps}
    take_checkpoint(cluster.landing("ckpt"), cluster.run, others)
    assert stored_checkpoint(RUN, cluster.store) is not None
    assert put(cluster) is None
