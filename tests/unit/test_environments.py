"""Who creates an environment, who gets it from where, and what this machine remembers of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtrain.commands.cache import Environments
from cloudtrain.core import store_kinds
from cloudtrain.core.errors import NodeError, StepFailed, StoreError
from cloudtrain.core.model import ClusterConfig, Node, NodeGroup
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Step, command
from cloudtrain.setup import programs, stored
from cloudtrain.setup.prepare import SharedEnvironments
from cloudtrain.setup.programs import (
    PROBE,
    ArchivePart,
    EnvironmentArchive,
    OnNode,
    StorePlace,
    key_of,
)

FACTS = ("ubuntu", "24.04", "x86_64", "glibc 2.39", "zstd", "/home/cloudtrain")
FOLDER = ".cache/cloudtrain/venvs/tf2.21-cpu-0123456789ab"
STEP = Step(name="tf2.21-cpu", run=command("true"), shared=FOLDER)
PLACE = StorePlace(uri="gs://bucket/prefix")
PARTS = (ArchivePart(name="part-000.tar.zst", size=10, sha256="a" * 64, object="k", version="1"),)


def node(number: int, host: str = "") -> Node:
    name = f"mnist-worker{number}"
    return Node(
        name=name, role="worker", index=number, state="running", address="", internal="", host=host
    )


def archive(**changes: Any) -> EnvironmentArchive:
    made = EnvironmentArchive(
        key=key_of(FACTS, FOLDER),
        label="tf2.21-cpu",
        parts=PARTS,
        python="3.12",
        store=PLACE,
        folder=".environments/k/s",
        created=1000.0,
    )
    return replace(made, **changes)


@dataclass
class Cluster:
    """Nodes without machines: `create` and the programs on nodes only say that they were run."""

    store: str = "gs://bucket/prefix"
    count: int = 4
    facts: tuple[str, ...] = FACTS
    created: list[str] = field(default_factory=list)
    fetched: list[tuple[str, str]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Nodes that cannot create, and sources that nobody can get it from."""
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sharing(self) -> SharedEnvironments:
        session = SimpleNamespace(
            config=ClusterConfig(
                name="mnist", provider="gcp", strategy="custom", nodes={"worker": NodeGroup()}
            ),
            nodes=tuple(map(node, range(self.count))),
            transport=SimpleNamespace(ask=self.ask),
            store=SimpleNamespace(uri=self.store, presigner=object()),
            console=SimpleNamespace(warn=self.warned.append, say=lambda text: None),
        )
        return SharedEnvironments(cast("Any", session))

    def ask(self, node: Node, script: str) -> Completed:
        assert script == PROBE
        return Completed(exit_code=0, stdout="\n".join(self.facts).encode() + b"\n", stderr=b"")

    def create(self, node: Node) -> Callable[[Node], None]:
        def work(on: Node) -> None:
            assert on is node
            with self.lock:
                self.created.append(node.name)
            if node.name in self.broken:
                raise StepFailed(node.name, "exit 1")

        return work

    def up(self, sharing: SharedEnvironments) -> list[bool | str]:
        """Bring all nodes theirs, side by side; returns what each was told."""

        def one(node: Node) -> bool | str:
            try:
                return sharing.provide(node, STEP, self.create(node), lambda text: None)
            except StepFailed as error:
                return str(error)

        with ThreadPoolExecutor(self.count) as pool:
            told = list(pool.map(one, map(node, range(self.count))))
        sharing.close()
        return told


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    made = Cluster()

    def pack(node: Node, folder: str, key: str, label: str, *_: object) -> OnNode:
        mine = archive(key=key, label=label, store=None, folder="")
        return OnNode(node=node, folder=programs.folder_on(node, key), archive=mine)

    def fetch(
        node: Node, folder: str, archive: EnvironmentArchive, signer: object, *_: object
    ) -> None:
        source = "store" if isinstance(signer, stored.StoreSigner) else "node"
        if source in made.broken:
            raise StoreError("403 Forbidden")
        with made.lock:
            made.fetched.append((node.name, source))

    monkeypatch.setattr(programs, "pack", pack)
    monkeypatch.setattr(programs, "fetch", fetch)
    monkeypatch.setattr(programs.ArchiveServer, "start", lambda self: None)
    monkeypatch.setattr(
        programs, "remove", lambda packed, transport: made.removed.append(packed.node.name)
    )
    monkeypatch.setattr(
        stored, "store_archive", lambda packed, *_: made.kept.append(packed.node.name)
    )
    monkeypatch.setattr(stored, "archive_data", lambda *_: None)
    return made


def test_one_node_creates_it_and_the_others_get_it_from_there(cluster: Cluster) -> None:
    assert cluster.up(cluster.sharing()) == [True] * 4
    (builder,) = cluster.created
    assert sorted(name for name, _ in cluster.fetched) == sorted(
        node(number).name for number in range(4) if node(number).name != builder
    )
    assert {source for _, source in cluster.fetched} == {"node"}
    assert cluster.kept == cluster.removed == [builder]


def test_a_known_archive_is_got_by_every_node_from_the_store(cluster: Cluster) -> None:
    stored.save(archive())
    assert cluster.up(cluster.sharing()) == [True] * 4
    assert cluster.created == []
    assert [source for _, source in cluster.fetched] == ["store"] * 4
    assert stored.archives()[0].used > 1000.0


def test_an_archive_that_the_store_refuses_is_created_once_again(cluster: Cluster) -> None:
    stored.save(archive())
    cluster.broken = {"store"}
    assert cluster.up(cluster.sharing()) == [True] * 4
    assert len(cluster.created) == 1
    assert [source for _, source in cluster.fetched] == ["node"] * 3
    assert "403 Forbidden" in cluster.warned[0]


def test_an_archive_without_versions_was_not_stored_whole_and_is_not_used(
    cluster: Cluster,
) -> None:
    stored.save(archive(parts=(replace(PARTS[0], object="", version=""),)))
    cluster.up(cluster.sharing())
    assert len(cluster.created) == 1


def test_an_archive_whose_copying_was_interrupted_hides_no_older_one(cluster: Cluster) -> None:
    half = replace(PARTS[0], sha256="f" * 64, object="", version="")
    stored.save(archive())
    stored.save(archive(parts=(half,), created=2000.0))
    assert len(stored.archives()) == 2
    assert stored.archive_for(archive().key, PLACE) == archive()


def test_an_archive_is_served_until_it_is_stored(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server deletes what it has served as it ends."""
    ended, lost = threading.Event(), []
    monkeypatch.setattr(programs.ArchiveServer, "close", lambda self: ended.set())
    monkeypatch.setattr(stored, "store_archive", lambda *_: lost.append(ended.wait(0.05)))
    cluster.up(cluster.sharing())
    assert lost == [False]
    assert ended.is_set()


def test_a_node_that_does_not_reach_the_builder_creates_its_own(cluster: Cluster) -> None:
    cluster.broken = {"node"}
    assert cluster.up(cluster.sharing()) == [True] * 4
    assert len(cluster.created) == 4


def test_after_two_nodes_have_failed_no_other_tries(cluster: Cluster) -> None:
    cluster.broken = {node(number).name for number in range(4)}
    told = cluster.up(cluster.sharing())
    assert len(cluster.created) == 2
    assert sorted(map(str, told)).count("False") == 2


def test_one_failure_is_taken_up_by_the_next_node(cluster: Cluster) -> None:
    cluster.count = 3
    sharing = cluster.sharing()
    first = node(0)
    cluster.broken = {first.name}
    with pytest.raises(StepFailed):
        sharing.provide(first, STEP, cluster.create(first), lambda text: None)
    for number in (1, 2):
        each = node(number)
        assert sharing.provide(each, STEP, cluster.create(each), lambda text: None)
    assert cluster.created == [first.name, node(1).name]


def test_a_store_of_this_machine_keeps_nothing_for_later_clusters(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.store = tmp_path.as_uri()
    cluster.up(cluster.sharing())
    assert len(cluster.created) == 1
    assert cluster.kept == []


def test_a_single_node_with_such_a_store_packs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.store, cluster.count = tmp_path.as_uri(), 1
    cluster.up(cluster.sharing())
    assert cluster.removed == []


def test_a_node_that_does_not_answer_the_probe_creates_its_own(cluster: Cluster) -> None:
    cluster.facts = ("dash: not found",)
    cluster.up(cluster.sharing())
    assert len(cluster.created) == 4


def test_waiting_nodes_end_when_the_command_is_interrupted(cluster: Cluster) -> None:
    sharing, started = cluster.sharing(), threading.Event()

    def create(on: Node) -> None:
        started.set()
        sharing.interrupt()
        raise NodeError("mnist-worker0", "the connection was closed")

    with pytest.raises(NodeError):
        sharing.provide(node(0), STEP, create, lambda text: None)
    assert started.is_set()


@pytest.mark.parametrize("number", range(len(FACTS)))
def test_another_system_or_home_is_another_key(number: int) -> None:
    other = (*FACTS[:number], "another", *FACTS[number + 1 :])
    assert key_of(other, FOLDER) != key_of(FACTS, FOLDER)


def test_a_relative_and_an_absolute_folder_are_the_same_place() -> None:
    assert key_of(FACTS, FOLDER) == key_of(FACTS, f"/home/cloudtrain/{FOLDER}")


def test_records_survive_a_round_and_damaged_ones_are_skipped(cluster: Cluster) -> None:
    stored.save(archive())
    staging = stored.Staging(id="x", store=PLACE, folder=".environments/staging-x", begun=5.0)
    stored.save(staging)
    path = stored._path(archive())
    path.with_name("archive-damaged.json").write_text("{")
    path.with_name("archive-other.json").write_text(json.dumps({"key": 1}))
    assert stored.archives() == (archive(),)
    assert stored.stagings() == (staging,)
    stored.forget(archive())
    stored.forget(staging)
    assert stored.archives() == stored.stagings() == ()


def test_gc_deletes_what_was_unused_for_long_and_what_killed_uploads_left() -> None:
    new, old = archive(used=80 * 86400.0), archive(key="b", used=10 * 86400.0)
    begun = stored.Staging(id="1", store=PLACE, folder=".environments/staging-1", begun=1.0)
    running = replace(begun, id="2", begun=89.9 * 86400.0)
    kept = Environments(archives=(new, old), stagings=(begun, running), now=90 * 86400.0)
    assert kept.unused(30) == (old, begun)
    lines = "\n".join(kept.lines(30))
    assert lines.count("will be deleted") == 2
    assert "used 10 days ago" in lines
    assert "may be in progress" in lines
    assert [each["bytes"] for each in kept.document()] == [10, 10]


def test_a_store_whose_price_is_not_known_is_not_said_to_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = replace(PARTS[0], size=10**10)
    kept = Environments(archives=(archive(parts=(large,)),), stagings=(), now=0.0)
    assert [each["monthly"] for each in kept.document()] == [0.2]
    unknown = tuple(replace(kind, monthly=None) for kind in store_kinds.KINDS)
    monkeypatch.setattr(store_kinds, "KINDS", unknown)
    assert "price not known" in "\n".join(kept.lines(30))
    assert [each["monthly"] for each in kept.document()] == [None]


def test_only_folders_of_environments_are_ever_deleted(cluster: Cluster) -> None:
    with pytest.raises(StoreError, match="is not the folder of an environment"):
        stored.delete(archive(folder="runs"), cast("Any", None))
