"""A checkpoint of another run, put on the nodes of a new one, whatever became of the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts import checkpoints
from cloudtrain.artifacts.checkpoints import put_checkpoints, step_of, stored_checkpoint
from cloudtrain.artifacts.land import take_checkpoint
from cloudtrain.artifacts.spool_archive import spool_name
from cloudtrain.artifacts.uploads import revealed
from cloudtrain.core.errors import NodesError, StoreError
from cloudtrain.core.model import ClusterConfig, NodeGroup
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.core.run_record import ResumedFrom, Run
from cloudtrain.runs.resume_source import at_uri, source_of
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS, Store
from tests.support.landing_parts import RUN, Cluster, FaultyStore, Heard

NEW = "20261122-062404-k3f9"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, workers=1)


def saved(cluster: Cluster, state: str) -> None:
    cluster.write("chief0", "ckpt/ckpt-7.index", "index")
    cluster.write("chief0", "ckpt/ckpt-7.data-00000-of-00001", b"\0weights" * 1000)
    cluster.write("chief0", "ckpt/checkpoint", state)
    take_checkpoint(cluster.landing("ckpt"), cluster.run, cluster.nodes)


def put(cluster: Cluster, folder: str) -> str | None:
    source = stored_checkpoint(RUN, cluster.store)
    run = replace(cluster.run, id=NEW)
    for node in cluster.nodes.values():
        for task in cluster.nodes:
            work = f".cloudtrain/{run.cluster}/runs/{NEW}/{task}/work"
            (cluster.transport.home(node) / work).mkdir(parents=True, exist_ok=True)
    return put_checkpoints(
        run, cluster.nodes, folder, cluster.transport, cluster.store, source=source
    )


def test_absolute_paths_of_the_old_work_folder_become_relative(cluster: Cluster) -> None:
    old = cluster.work("chief0") / "ckpt" / "ckpt-7"
    saved(cluster, f'model_checkpoint_path: "{old}"\nall_model_checkpoint_paths: "{old}"\n')
    assert put(cluster, "elsewhere") == "elsewhere/ckpt-7"
    for task in cluster.nodes:
        work = Path(str(cluster.work(task)).replace(RUN, NEW)) / "elsewhere"
        assert (work / "checkpoint").read_text() == (
            'model_checkpoint_path: "ckpt-7"\nall_model_checkpoint_paths: "ckpt-7"\n'
        )
        assert (work / "ckpt-7.data-00000-of-00001").read_bytes() == b"\0weights" * 1000


def test_paths_of_several_folders_stay_as_they_are(cluster: Cluster) -> None:
    state = 'model_checkpoint_path: "/a/ckpt-7"\nall_model_checkpoint_paths: "/b/ckpt-7"\n'
    saved(cluster, state)
    put(cluster, "ckpt")
    work = Path(str(cluster.work("chief0")).replace(RUN, NEW))
    assert (work / "ckpt" / "checkpoint").read_text() == state


def test_a_file_that_was_changed_in_the_store_is_used_nowhere(cluster: Cluster) -> None:
    saved(cluster, 'model_checkpoint_path: "ckpt-7"\n')
    landed = stored_checkpoint(RUN, cluster.store)
    assert landed is not None
    assert step_of(landed) == "ckpt/ckpt-7"
    cluster.store.upload(f"{RUN}/chief0/ckpt/ckpt-7.index", [b"inded"])
    with pytest.raises((StoreError, NodesError), match="differs from what landed"):
        put(cluster, "ckpt")
    assert not [line for line in cluster.transport.commands if "tar --extract" in line]


def test_a_source_that_is_gone_is_an_error_and_no_new_beginning(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = ClusterConfig(
        name="mnist", provider="local", strategy="one_device", nodes={"chief": NodeGroup()}
    )
    assert source_of(cluster.run, config) is None
    source = ResumedFrom(run=RUN, store=(tmp_path / "gone").as_uri(), step="ckpt/ckpt-7")
    run: Run = replace(cluster.run, id=NEW, resumed_from=source)
    with pytest.raises(StoreError, match=f"from which run {NEW} resumes is gone"):
        source_of(run, config)


# ── downloads by the nodes ───────────────────────────────────────────────────


class Passed(FaultyStore):
    """Counts the bytes that pass through this machine."""

    def __init__(self, store: StoreBackend) -> None:
        super().__init__(store)
        self.passed = 0

    def download(self, path: str) -> Iterator[bytes]:
        for piece in self.store.download(path):
            self.passed += len(piece)
            yield piece


STATE = 'model_checkpoint_path: "/old/work/ckpt/ckpt-7"\n'
LARGE = b"\0weights" * 1000
GONE = "http://127.0.0.1:9/"
"""Nothing listens there."""


@pytest.fixture(scope="module", params=["s3", "gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Store]:
    with KINDS[request.param]() as store:
        yield store


@pytest.fixture
def in_cloud(cluster: Cluster, cloud: Store, monkeypatch: pytest.MonkeyPatch) -> Passed:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    cluster.transport.environment.update(cloud.environment)
    passed = Passed(open_store(f"{cloud.uri}/{os.urandom(4).hex()}"))
    cluster.store = passed
    for task in cluster.nodes:
        new_work(cluster, task).mkdir(parents=True)
    saved(cluster, STATE)
    passed.passed = 0
    return passed


def new_work(cluster: Cluster, task: str) -> Path:
    return Path(str(cluster.work(task)).replace(RUN, NEW))


def test_nodes_download_the_files_themselves(cluster: Cluster, in_cloud: Passed) -> None:
    assert put(cluster, "elsewhere") == "elsewhere/ckpt-7"
    for task in cluster.nodes:
        folder = new_work(cluster, task) / "elsewhere"
        assert (folder / "ckpt-7.data-00000-of-00001").read_bytes() == LARGE
        assert (folder / "checkpoint").read_text() == 'model_checkpoint_path: "ckpt-7"\n'
        assert sorted(path.name for path in new_work(cluster, task).iterdir()) == ["elsewhere"]
    assert in_cloud.passed < len(LARGE)
    assert not [line for line in cluster.transport.commands if "tar --extract" in line]


@pytest.mark.sweep(1)
def test_what_a_node_cannot_download_goes_through_this_machine(
    cluster: Cluster, in_cloud: Passed
) -> None:
    said: list[str] = []
    source = stored_checkpoint(RUN, cluster.store)
    assert source is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "revealed", lambda request: {**revealed(request), "url": GONE})
        step = put_checkpoints(
            replace(cluster.run, id=NEW),
            cluster.nodes,
            "ckpt",
            cluster.transport,
            cluster.store,
            source=source,
            say=said.append,
        )
    assert step == "ckpt/ckpt-7"
    (line,) = said
    assert line.startswith("the checkpoint goes through this machine: mnist-")
    for task in cluster.nodes:
        data = new_work(cluster, task) / "ckpt/ckpt-7.data-00000-of-00001"
        assert data.read_bytes() == LARGE


def test_archives_that_only_another_machine_may_ingest_are_named(
    cluster: Cluster, in_cloud: Passed
) -> None:
    heard = Heard()
    config = ClusterConfig(
        name="mnist", provider="local", strategy="one_device", nodes={"chief": NodeGroup()}
    )
    landed = at_uri(f"{in_cloud.uri}/{RUN}", config, heard)
    assert (landed.run, heard.warned) == (RUN, [])
    in_cloud.upload(spool_name(RUN, "chief0", 1, 1, 1), [b"an archive"])
    at_uri(f"{in_cloud.uri}/{RUN}", config, heard)
    (warning,) = heard.warned
    assert "1 archive stored by unattended nodes not landed yet" in warning
