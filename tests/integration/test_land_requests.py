"""The end of a run sends its store few requests: few listings, every file uploaded once."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from cloudtrain.artifacts.land import Closing, land_so_far
from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.spool_archive import spool_name
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Artifact
from cloudtrain.core.protocols import ArtifactStore, StoreBackend
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS
from tests.support.landing_parts import RUN, Cluster, FaultyStore, land_logs


class Counting(FaultyStore):
    """Has no node store anything itself, so that every upload is seen."""

    def __init__(self, store: StoreBackend) -> None:
        super().__init__(store)
        self.presigner = None
        self.listed: list[str] = []

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        self.listed.append(prefix)
        return super().list(prefix, known)

    def files(self) -> list[str]:
        """Uploaded, without the manifest."""
        places = (path.removeprefix(f"{RUN}/") for path in self.uploaded)
        return sorted(place for place in places if place != "manifest.json")

    def manifests(self) -> int:
        return self.uploaded.count(f"{RUN}/manifest.json")


@pytest.fixture(params=["file", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counting]:
    if request.param == "file":
        yield Counting(open_store((tmp_path / "store").as_uri()))
        return
    with KINDS[request.param]() as place:
        for name, value in place.environment.items():
            monkeypatch.setenv(name, value)
        yield Counting(open_store(place.uri))


@pytest.fixture
def cluster(tmp_path: Path, store: Counting) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.store = store
    cluster.write("chief0", "output/model", "m")
    cluster.write("worker0", "output/part", "p")
    return cluster


def ended(cluster: Cluster, logs: dict[str, Path]) -> Manifest:
    """As finish.py does it."""
    closing = Closing(cluster.landing(), cluster.run, cluster.nodes)
    closing.bring()
    closing.record(cluster.run, logs)
    return closing.complete()


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for task in ("chief0", "worker0"):
        found[f"{task}.attempt-1.log"] = tmp_path / f"{task}.log"
        (tmp_path / f"{task}.log").write_text(f"{task} trains\n")
    return found


ALL = [
    f".runs/mnist/{RUN}",
    "chief0/output/model",
    "logs/chief0.attempt-1.log",
    "logs/worker0.attempt-1.log",
    "run.json",
    "worker0/output/part",
]


def test_every_file_is_stored_once_and_the_run_is_listed_twice(
    cluster: Cluster, store: Counting, logs: dict[str, Path]
) -> None:
    manifest = ended(cluster, logs)
    assert store.listed == [f"{RUN}/"] * 2
    assert store.files() == ALL
    assert store.manifests() == 2
    assert manifest.complete
    assert read_manifest(store, RUN) == manifest
    assert set(manifest.files) == set(ALL) - {f".runs/mnist/{RUN}"}


def test_what_landed_meanwhile_is_brought_to_its_place_in_no_more_listings(
    cluster: Cluster, store: Counting, logs: dict[str, Path]
) -> None:
    for text in ("first", "second"):
        cluster.write("chief0", "output/model", text)
        land_so_far(cluster.landing(), cluster.run, cluster.nodes, logs)
    store.listed.clear()
    manifest = ended(cluster, logs)
    assert len(store.listed) == 2
    assert all(each.at == path for path, each in manifest.files.items())
    assert {path.path for path in store.list(f"{RUN}/again/")} == set()
    assert b"".join(store.download(f"{RUN}/chief0/output/model")) == b"second"


def test_archives_cost_one_listing_more(
    cluster: Cluster, store: Counting, logs: dict[str, Path]
) -> None:
    name = spool_name(RUN, "chief0", 1, 1_700_000_000, 0)
    store.upload(name, [b"not an archive"])
    assert ended(cluster, logs).complete
    assert len(store.listed) == 3
    assert any("not a valid archive" in text for text in cluster.console.warned)


def test_a_file_that_lands_after_the_listing_is_not_taken_for_lost(
    cluster: Cluster, store: Counting
) -> None:
    """A manifest may be newer than the listing before it."""
    cluster.land()
    stale = list(store.list(f"{RUN}/manifest.json"))
    real, store.listed = store.list, []

    def behind(prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        first = not store.listed
        found = real(prefix, known)
        return iter(stale) if first else found

    store.list = behind  # type: ignore[method-assign]
    closing = Closing(cluster.landing(), cluster.run, cluster.nodes)
    assert set(closing.bring().files) == {"chief0/output/model", "worker0/output/part"}
    assert cluster.console.warned == []


def test_the_record_of_a_run_whose_nodes_are_gone_lands_too(
    store: Counting, cluster: Cluster, logs: dict[str, Path]
) -> None:
    wanted = {"run.json", *(f"logs/{name}" for name in logs)}
    assert set(land_logs(cluster.run, logs, store).files) == wanted
    assert len(store.listed) == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("versions", [("first",), ("first", "second")])
def test_wherever_it_breaks_off_what_is_listed_is_there_and_the_next_end_leaves_nothing_over(
    tmp_path: Path, logs: dict[str, Path], versions: tuple[str, ...]
) -> None:
    """Each upload refused in turn, with older versions in the store, at their place or beside."""
    for uploads in range(50):
        cluster = Cluster(tmp_path / str(uploads))
        store = cluster.store
        for text in versions:
            cluster.write("chief0", "output/model", text)
            land_so_far(cluster.landing(), cluster.run, cluster.nodes, logs)
        cluster.write("chief0", "output/model", "third")
        store.uploads_left = uploads
        broke = False
        try:
            ended(cluster, logs)
        except CloudtrainError:
            broke = True
        store.uploads_left = None
        is_as_listed(store)
        manifest = ended(cluster, logs)
        assert manifest.complete
        named = {f"{RUN}/{path}" for path in (*manifest.files, "manifest.json")}
        assert {found.path for found in store.list(f"{RUN}/")} == named
        assert b"".join(store.download(f"{RUN}/chief0/output/model")) == b"third"
        if not broke:
            assert uploads >= 5
            return
    raise AssertionError("it never came to its end")


def is_as_listed(store: ArtifactStore) -> None:
    manifest = read_manifest(store, RUN)
    assert manifest is not None
    for each in manifest.files.values():
        content = b"".join(store.download(f"{RUN}/{each.at}"))
        assert hashlib.sha256(content).hexdigest() == each.sha256
