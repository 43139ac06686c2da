"""Archives of environments in a store: killed clients, changed objects, a store that refuses."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.setup import stored
from cloudtrain.setup.programs import EnvironmentArchive, OnNode, StorePlace
from cloudtrain.stores import open_store
from tests.standins.faults import EVER, Fault, Faults
from tests.standins.stores import KINDS, Store, faulty
from tests.support import environment_parts as parts
from tests.support.environment_parts import Cluster, SameHomes
from tests.support.hurried import hurry_nodes
from tests.support.lanes import Cases
from tests.support.nodes_here import node
from tests.support.package_index import PackageIndex, package_index
from tests.support.wheels import digest

BUILDER = node("built")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.integration.test_environment_store", "boto3"])


@dataclass(frozen=True)
class First:
    transport: SameHomes
    state: Path
    uri: str

    @property
    def digest(self) -> str:
        return digest(self.transport.environments(node("chief0"))[0])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    if reason := parts.unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("index")
    parts.wheels(folder / "wheels")
    with package_index(folder / "wheels", folder / "log") as index:
        yield index


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Store, Faults]]:
    with KINDS["s3"]() as store, faulty(store) as door:
        yield door


@pytest.fixture(scope="module")
def built(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> SameHomes:
    folder = tmp_path_factory.mktemp("nodes")
    made = SameHomes(folder / "all", folder / "home", index)
    Cluster(made, None, BUILDER.name).up(cache="off")
    return made


@pytest.fixture(scope="module")
def first(
    index: PackageIndex,
    built: SameHomes,
    door: tuple[Store, Faults],
    tmp_path_factory: pytest.TempPathFactory,
) -> First:
    """A cluster that created the environment and has stored it; only read by the tests."""
    folder = tmp_path_factory.mktemp("first")
    transport = SameHomes(folder / "nodes", built.place, index)
    uri = f"{door[0].uri}/{folder.name}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in door[0].environment.items():
            patch.setenv(name, value)
        patch.setenv("CLOUDTRAIN_HOME", str(folder / "state"))
        Cluster(transport, open_store(uri), "chief0", "worker0").up()
    return First(transport=transport, state=folder / "state", uri=uri)


@pytest.fixture
def known(first: First) -> ArtifactStore:
    """Its store, and what its machine knows of it."""
    shutil.copytree(first.state, os.environ["CLOUDTRAIN_HOME"])
    return open_store(first.uri)


@pytest.fixture(autouse=True)
def _environment(
    door: tuple[Store, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    for name, value in door[0].environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    hurry_nodes(monkeypatch)
    yield
    door[1].disarm()


@pytest.fixture
def uri(door: tuple[Store, Faults], tmp_path: Path) -> str:
    return f"{door[0].uri}/{tmp_path.name}"


def store_it(transport: SameHomes, packed: OnNode, uri: str) -> EnvironmentArchive:
    return stored.store_archive(packed, StorePlace(uri=uri), open_store(uri), transport, Stop())


def client(
    transport: tuple[Path, Path, PackageIndex],
    packed: OnNode,
    uri: str,
    environment: dict[str, str],
    gate: Connection,
) -> None:
    os.environ.update(environment)
    gate.send("ready")
    gate.recv()
    store_it(SameHomes(*transport), packed, uri)


@pytest.mark.sweep(1, of="stores")
def test_a_client_that_is_killed_while_it_stores_leaves_nothing_that_is_used_or_unknown(
    built: SameHomes, index: PackageIndex, door: tuple[Store, Faults], uri: str, cases: Cases
) -> None:
    place, faults = door
    packed = parts.pack(built, BUILDER)
    environment = {**place.environment, "CLOUDTRAIN_HOME": os.environ["CLOUDTRAIN_HOME"]}
    step = 1 if cases.every else 4
    for number in itertools.count(1, step):
        faults.forget()
        here, gate = PROCESSES.Pipe()
        process = PROCESSES.Process(
            target=client,
            args=((built.folder, built.place, index), packed, uri, environment, gate),
        )
        process.start()
        assert process.pid is not None
        after = number // step % 2 == 0
        faults.arm(Fault(kind="kill", number=number, after=after, pid=process.pid))
        here.recv()
        here.send("go")
        process.join(60)
        faults.disarm()
        everything_is_known(uri)
        if process.exitcode == 0:
            break
        known = stored.archive_for(parts.KEY, StorePlace(uri=uri))
        assert known is None or not known.parts[0].object or number > step
    assert number > step
    store_it(built, packed, uri)
    everything_is_known(uri)
    store = open_store(uri)
    for staging in stored.stagings():
        stored.delete(staging, store)
    for archive in stored.archives():
        stored.delete(archive, store)
    assert [found.path for found in store.list()] == []


def everything_is_known(uri: str) -> None:
    """`gc` can name it: it lies in a folder that this machine has recorded."""
    folders = {each.folder for each in (*stored.archives(), *stored.stagings())}
    for found in open_store(uri).list():
        assert found.path.rpartition("/")[0] in folders


FAULTS = {
    "refused": Fault(kind="answer", action="GET *part-*", status=403, times=EVER),
    "overloaded": Fault(kind="answer", action="GET *part-*", status=503, times=EVER),
    "not reached": Fault(kind="reset", action="GET *part-*", times=EVER),
}


@pytest.mark.sweep(1, of="stores")
@pytest.mark.parametrize("what", FAULTS)
def test_a_node_that_cannot_get_it_from_the_store_creates_its_own(
    built: SameHomes,
    index: PackageIndex,
    door: tuple[Store, Faults],
    first: First,
    known: ArtifactStore,
    tmp_path: Path,
    what: str,
) -> None:
    (archive,) = stored.archives()
    assert all(part.object for part in archive.parts)
    door[1].arm(FAULTS[what])
    index.forget()
    later = SameHomes(tmp_path / "later", built.place, index)
    cluster = Cluster(later, known, "chief0")
    cluster.up()
    assert [
        text for text in cluster.console.warned if "cannot get tf2.21-cpu from the store" in text
    ]
    assert {asked.package for asked in index.requests()} == parts.PACKAGES
    (environment,) = later.environments(cluster.nodes[0])
    assert digest(environment) == first.digest
    assert later.halves(cluster.nodes[0]) == []


@pytest.mark.sweep(1, of="stores")
def test_an_object_that_was_changed_in_the_store_is_refused(
    built: SameHomes, index: PackageIndex, first: First, known: ArtifactStore, tmp_path: Path
) -> None:
    (archive,) = stored.archives()
    whole = {
        path: b"".join(known.download(path))
        for path in (f"{archive.folder}/{part.name}" for part in archive.parts)
    }
    for path, data in whole.items():
        known.upload(path, [b"x" * len(data)])
    index.forget()
    later = SameHomes(tmp_path / "later", built.place, index)
    cluster = Cluster(later, known, "chief0")
    cluster.up()
    for path, data in whole.items():
        known.upload(path, [data])
    assert [
        text for text in cluster.console.warned if "cannot get tf2.21-cpu from the store" in text
    ]
    assert {asked.package for asked in index.requests()} == parts.PACKAGES
    (environment,) = later.environments(cluster.nodes[0])
    assert digest(environment) == first.digest
    assert later.halves(cluster.nodes[0]) == []


@pytest.mark.sweep(1, of="stores")
def test_two_clusters_that_store_their_archives_at_once_leave_one_in_use_and_both_known(
    built: SameHomes, index: PackageIndex, uri: str, tmp_path: Path
) -> None:
    packed = []
    for name in ("one", "other"):
        transport = SameHomes(tmp_path / name, built.place, index)
        shutil.copytree(
            built.home(BUILDER), transport.home(BUILDER), symlinks=True, dirs_exist_ok=True
        )
        (environment,) = transport.environments(BUILDER)
        (environment / "created").write_text(name)  # two archives of one key are never the same
        packed.append((transport, parts.pack(transport, BUILDER)))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: store_it(*each, uri), packed))
    everything_is_known(uri)
    known = stored.archive_for(parts.KEY, StorePlace(uri=uri))
    assert known is not None
    assert all(part.object for part in known.parts)
    assert known.sha256 in {each.archive.sha256 for _, each in packed}


@pytest.mark.sweep(1, of="stores")
def test_a_later_cluster_asks_the_package_index_nothing(
    built: SameHomes, index: PackageIndex, first: First, known: ArtifactStore, tmp_path: Path
) -> None:
    index.forget()
    later = SameHomes(tmp_path / "later", built.place, index)
    cluster = Cluster(later, known, "chief0", "worker0", "worker1")
    cluster.up()
    assert index.requests() == []
    assert cluster.console.warned == []
    found = {digest(later.environments(each)[0]) for each in cluster.nodes}
    assert found == {first.digest}
