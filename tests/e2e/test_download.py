"""What is downloaded is what landed, or an error; never a file outside the folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cloudtrain.artifacts.download import download_run
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.core.errors import StoreError
from cloudtrain.core.paths import FETCHED, FETCHED_FILES
from tests.support.landing_parts import RUN, Cluster

TASKS = ("chief0", "worker0")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.write("chief0", "output/model/a b", b"m" * 2_000_000)
    cluster.write("worker0", "output/new\nline", "w")
    landing(cluster)
    return cluster


def landing(cluster: Cluster, *, final: bool = True) -> Manifest:
    return cluster.land(final=final)


def files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(FETCHED)
    found.pop(FETCHED_FILES)
    return found


def test_everything_comes_under_its_task_s_name(cluster: Cluster, tmp_path: Path) -> None:
    download_run(RUN, cluster.store, tmp_path / "my dir/ü", cluster.console, tasks=TASKS)
    assert files(tmp_path / "my dir/ü") == {
        "chief0/output/model/a b": b"m" * 2_000_000,
        "worker0/output/new\nline": b"w",
    }
    hidden = {path.name for path in (tmp_path / "my dir/ü").iterdir() if path.name[0] == "."}
    assert hidden == {FETCHED, FETCHED_FILES}
    assert cluster.console.warned == []
    assert cluster.console.said[-1].endswith("verified")


def test_what_is_there_is_left_alone_and_what_differs_is_brought(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    download_run(RUN, cluster.store, here, cluster.console, tasks=TASKS)
    inode = (here / "chief0/output/model/a b").stat().st_ino
    (here / "worker0/output/new\nline").write_text("x")
    download_run(RUN, cluster.store, here, cluster.console, tasks=TASKS)
    assert (here / "chief0/output/model/a b").stat().st_ino == inode
    assert (here / "worker0/output/new\nline").read_text() == "w"


def test_what_has_landed_so_far_is_fetched_with_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("chief0", "output/later", "1")
    cluster.write("worker0", "output/new\nline", "changed")
    landing(cluster, final=False)
    download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
    assert (tmp_path / "here/worker0/output/new\nline").read_text() == "changed"
    assert (tmp_path / "here/chief0/output/later").read_text() == "1"
    assert "not landed completely" in cluster.console.warned[0]


@pytest.mark.parametrize("damage", [b"x" * 2_000_000, b"short", b"m" * 2_000_001])
def test_a_damaged_file_is_named_and_not_kept_and_the_others_come(
    cluster: Cluster, tmp_path: Path, damage: bytes
) -> None:
    (cluster.folder / RUN / "chief0/output/model/a b").write_bytes(damage)
    with pytest.raises(
        StoreError, match="chief0/output/model/a b differs from what landed"
    ) as raised:
        download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
    assert raised.value.exit_code == 5
    assert set(files(tmp_path / "here")) == {"worker0/output/new\nline"}


def test_every_failure_is_told(cluster: Cluster, tmp_path: Path) -> None:
    for number in range(20):
        cluster.write("chief0", f"output/{number:02}", f"{number}")
    landing(cluster)
    for number in range(20):
        (cluster.folder / RUN / f"chief0/output/{number:02}").unlink()
    with pytest.raises(StoreError) as raised:
        download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
    lines = str(raised.value).splitlines()
    assert len(lines) == 9
    assert lines[-1] == "and 12 more files"


@pytest.mark.parametrize("path", ["../../escaped", "/tmp/escaped", "chief0/../../../escaped"])
def test_a_manifest_that_leads_out_of_the_folder_is_refused(
    cluster: Cluster, tmp_path: Path, path: str
) -> None:
    place = cluster.folder / RUN / "manifest.json"
    facts = json.loads(place.read_text())
    facts["files"][0]["path"] = path
    place.write_text(json.dumps(facts))
    with pytest.raises(StoreError, match="not a path inside its folder"):
        download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
    assert not list(tmp_path.rglob("escaped"))


def test_a_run_that_has_not_landed_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing of run other has landed"):
        download_run("other", cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
    assert not (tmp_path / "here").exists()


def test_what_a_killed_fetch_has_left_goes_with_the_next_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    (here / ".partial").mkdir(parents=True)
    (here / ".partial" / "half").write_bytes(b"m" * 1000)
    os.utime(here / ".partial" / "half", (time.time() - 5, time.time() - 5))
    download_run(RUN, cluster.store, here, cluster.console, tasks=TASKS)
    assert not (here / ".partial").exists()


def test_what_another_fetch_writes_just_now_stays(cluster: Cluster, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / ".partial").mkdir(parents=True)
    half = here / ".partial" / "half"
    half.write_bytes(b"m" * 1000)
    os.utime(half, (time.time() + 5, time.time() + 5))
    download_run(RUN, cluster.store, here, cluster.console, tasks=TASKS)
    assert half.exists()


def test_a_pipe_or_a_link_in_the_store_is_an_error_and_never_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "b").write_bytes(b"m" * 2_000_000)
    stored = cluster.folder / RUN / "chief0/output/model/a b"
    for spoil in (
        lambda: os.mkfifo(stored),
        lambda: stored.symlink_to(private / "b"),
    ):
        stored.unlink()
        spoil()
        with pytest.raises(StoreError, match="a b"):
            download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
        assert not (tmp_path / "here/chief0/output/model/a b").exists()
    stored.unlink()
    stored.parent.rmdir()
    (private / "b").rename(private / "a b")
    stored.parent.symlink_to(private)
    with pytest.raises(StoreError, match="a b"):
        download_run(RUN, cluster.store, tmp_path / "here", cluster.console, tasks=TASKS)
