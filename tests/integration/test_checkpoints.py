"""The chief's checkpoint lands as it was at one moment, and comes back identical everywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.artifacts.checkpoints import keras_step, put_checkpoints, tensorflow_checkpoint
from cloudtrain.artifacts.land import take_checkpoint
from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.core.errors import CloudtrainError, NodeError, StoreError
from tests.support.landing_parts import RUN, Cluster

STATE = 'model_checkpoint_path: "ckpt-{0}"\nall_model_checkpoint_paths: "ckpt-{0}"\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, workers=2)


def save(cluster: Cluster, number: int, task: str = "chief0", folder: str = "ckpt") -> None:
    """As TensorFlow does: the data, then the file that names it, then the old one goes."""
    cluster.write(task, f"{folder}/ckpt-{number}.data-00000-of-00001", os.urandom(200_000))
    cluster.write(task, f"{folder}/ckpt-{number}.index", f"index {number}")
    cluster.write(task, f"{folder}/checkpoint", STATE.format(number))
    for old in (cluster.work(task) / folder).glob(f"ckpt-{number - 1}.*"):
        old.unlink()


def take(cluster: Cluster) -> Manifest:
    return take_checkpoint(cluster.landing("ckpt"), cluster.run, cluster.nodes)


def put(cluster: Cluster, folder: str = "ckpt") -> str | None:
    return put_checkpoints(cluster.run, cluster.nodes, folder, cluster.transport, cluster.store)


def content(cluster: Cluster, task: str, folder: str = "ckpt") -> dict[str, bytes]:
    top = cluster.work(task) / folder
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_the_chief_s_folder_is_put_on_every_node_and_the_step_is_told(cluster: Cluster) -> None:
    save(cluster, 120)
    cluster.write("worker0", "ckpt/stale", "of this rank alone")
    take(cluster)
    wanted = content(cluster, "chief0")
    assert put(cluster) == "ckpt/ckpt-120"
    assert [content(cluster, task) for task in cluster.nodes] == [wanted] * 3
    assert {p.name for p in cluster.work("worker0").iterdir()} == {"ckpt"}


def test_a_node_that_holds_it_already_is_sent_nothing(cluster: Cluster) -> None:
    save(cluster, 1)
    take(cluster)
    put(cluster)
    cluster.transport.commands.clear()
    put(cluster)
    assert not [line for line in cluster.transport.commands if "tar --extract" in line]


@pytest.mark.parametrize("folder", ["ckpt", "output/ckpt"])
def test_what_was_put_on_another_node_lands_from_it_only_once_changed(
    cluster: Cluster, folder: str
) -> None:
    """Whenever it is put there: before an attempt, at a restart, or on the evaluator meanwhile."""
    for task in cluster.nodes:
        cluster.begin(task)
    save(cluster, 1, folder=folder)
    cluster.land(checkpoints=folder, final=False)
    put(cluster, folder)
    assert cluster.unlanded(folder) == ()
    put(cluster, folder)  # it holds it already
    manifest = cluster.land(checkpoints=folder)
    assert {path.partition("/")[0] for path in manifest.files} == {"chief0"}
    cluster.write("worker0", f"{folder}/ckpt-1.index", "of its own")
    assert cluster.unlanded(folder) == (f"{RUN}/worker0/{folder}/ckpt-1.index",)


def test_a_replaced_chief_gets_the_last_checkpoint_that_landed(cluster: Cluster) -> None:
    save(cluster, 1)
    save(cluster, 2)
    take(cluster)
    wanted = content(cluster, "chief0")
    for path in (cluster.work("chief0") / "ckpt").iterdir():
        path.unlink()
    (cluster.work("chief0") / "ckpt").rmdir()
    take(cluster)  # an empty disk is no checkpoint
    assert put(cluster) == "ckpt/ckpt-2"
    assert content(cluster, "chief0") == wanted


def test_without_a_landed_checkpoint_every_rank_starts_without_a_folder(cluster: Cluster) -> None:
    cluster.write("worker1", "ckpt/checkpoint", "left by one rank")
    assert put(cluster) is None
    assert not (cluster.work("worker1") / "ckpt").exists()


def test_rotated_files_are_not_put_back(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        save(cluster, number)
        manifest = take(cluster)
    assert {Path(path).name for path in manifest.files} == {
        "checkpoint",
        "ckpt-3.index",
        "ckpt-3.data-00000-of-00001",
    }
    assert put(cluster) == "ckpt/ckpt-3"
    assert set(content(cluster, "worker0")) == set(content(cluster, "chief0"))


def test_a_checkpoint_that_is_being_written_does_not_replace_the_last_whole_one(
    cluster: Cluster,
) -> None:
    save(cluster, 1)
    take(cluster)
    whole = content(cluster, "chief0")
    number = [1]

    def write_on(line: str) -> None:
        if "tar --create" in line or "node.checksums" in line:
            number[0] += 1
            save(cluster, number[0])

    save(cluster, 2)
    number[0] = 2
    cluster.transport.during = write_on
    manifest = cluster.land(final=False, checkpoints="ckpt")
    assert number[0] > 2
    assert manifest.checkpoint is not None
    cluster.transport.during = lambda line: None
    assert put(cluster) == "ckpt/ckpt-1"
    assert [content(cluster, task) for task in cluster.nodes] == [whole] * 3


def test_the_folder_may_lie_deep_and_inside_the_output(cluster: Cluster) -> None:
    save(cluster, 7, folder="output/[my] ckpt/chief")
    take_checkpoint(cluster.landing("./output/[my] ckpt/"), cluster.run, cluster.nodes)
    assert put(cluster, "output/[my] ckpt/") == "output/[my] ckpt/chief/ckpt-7"
    assert content(cluster, "worker1", "output/[my] ckpt/chief") == content(
        cluster, "chief0", "output/[my] ckpt/chief"
    )


def test_odd_names_arrive_as_they_are(cluster: Cluster) -> None:
    for name in ("new\nline", "back\\slash", os.fsdecode(b"\xff"), "x" * 255, "-rf"):
        cluster.write("chief0", f"ckpt/{name}", name.encode("utf-8", "surrogateescape"))
    take(cluster)
    assert put(cluster) == "the checkpoint in ckpt (5 files)"
    assert content(cluster, "worker0") == content(cluster, "chief0")


def test_a_connection_that_breaks_leaves_the_old_folder(cluster: Cluster) -> None:
    save(cluster, 1)
    take(cluster)
    cluster.write("worker0", "ckpt/old", "old")

    def refuse(line: str) -> None:
        if "tar --extract" in line and "/worker0/" in line:
            raise NodeError("mnist-worker0", "the connection broke")

    cluster.transport.before = refuse
    with pytest.raises(NodeError, match="the connection broke"):
        put(cluster)
    assert content(cluster, "worker0") == {"old": b"old"}
    assert content(cluster, "worker1") == content(cluster, "chief0")
    cluster.transport.before = lambda line: None
    put(cluster)
    assert content(cluster, "worker0") == content(cluster, "chief0")
    assert {p.name for p in cluster.work("worker0").iterdir()} == {"ckpt"}


def test_what_does_not_arrive_as_it_was_sent_is_not_put_in_place(cluster: Cluster) -> None:
    save(cluster, 1)
    take(cluster)

    def damage(line: str) -> None:
        if "node.checksums" in line:
            for index in (cluster.work("worker0") / ".ckpt.new").glob("*.index"):
                index.write_text("inDex 1")

    cluster.transport.before = damage
    with pytest.raises(NodeError, match=r"mnist-worker0: .*was damaged"):
        put(cluster)
    assert not (cluster.work("worker0") / "ckpt").exists()


def test_a_damaged_checkpoint_in_the_store_is_put_nowhere(cluster: Cluster) -> None:
    save(cluster, 1)
    take(cluster)
    (cluster.folder / RUN / "chief0/ckpt/ckpt-1.index").write_text("inDex 1")
    with pytest.raises(StoreError, match=r"/chief0/ckpt/ckpt-1\.index differs from what"):
        put(cluster)
    assert not (cluster.work("worker0") / "ckpt").exists()


def test_no_work_folder_is_an_error_with_the_node_s_name(cluster: Cluster) -> None:
    save(cluster, 1)
    take(cluster)
    cluster.work("worker0").rmdir()
    with pytest.raises(CloudtrainError, match="mnist-worker0: cannot unpack the checkpoint ckpt"):
        put(cluster)


def test_no_room_for_the_copy_here_is_an_error_with_a_way_out(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(cluster, 1)
    take(cluster)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    with pytest.raises(CloudtrainError, match="not there: No such file") as raised:
        put(cluster)
    assert "TMPDIR" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (STATE.format(120), "ckpt-120"),
        ('model_checkpoint_path: "/abs/ckpt-3"\n', "ckpt-3"),
        ("", None),
        ("model_checkpoint_path: 3", None),
    ],
)
def test_tensorflow_s_state_file_names_the_checkpoint(text: str, name: str | None) -> None:
    assert tensorflow_checkpoint(text.encode()) == name


def test_keras_tells_epoch_and_batch(cluster: Cluster) -> None:
    cluster.write("chief0", "ckpt/latest.weights.h5", "w")
    cluster.write("chief0", "ckpt/training_metadata.json", json.dumps({"epoch": 3, "batch": 0}))
    take(cluster)
    assert put(cluster) == "epoch 3, batch 0 in ckpt"
    assert keras_step(b'{"epoch": null}') is None
    assert keras_step(b"\xff") is None


def test_the_final_landing_puts_the_checkpoint_at_its_own_place(cluster: Cluster) -> None:
    for number in (1, 2):
        save(cluster, number)
        take(cluster)
    cluster.land(checkpoints="ckpt")
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    assert manifest.complete
    assert all(each.at == path for path, each in manifest.files.items())
    assert cluster.landed()["chief0/ckpt/checkpoint"].startswith(b'model_checkpoint_path: "ckpt-2"')
