"""Conditional writes: of several that try at once, one does it, on every kind of store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

from cloudtrain.core.errors import NoBucketError
from cloudtrain.core.protocols import SMALL, ArtifactStore
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS, fake_gcs, strict_s3
from tests.support.project import until

PLACES = ["file", "ministack", "fake_gcs", *(kind for kind in KINDS if kind != "gs")]
"""The emulator of `gs` heeds no precondition."""


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The URI of a store that is there, and of one that is not."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                patch.delenv(name)
        if request.param == "file":
            yield tmp_path_factory.mktemp("store").as_uri(), ""
            return
        if request.param == "ministack":
            port, environment = stack.enter_context(strict_s3())
            environment["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{port}"
            uris = "s3://bucket/a/prefix", "s3://none/x"
        else:
            kind = fake_gcs if request.param == "fake_gcs" else KINDS[request.param]
            store = stack.enter_context(kind())
            environment, uris = store.environment, (store.uri, store.missing)
        for name, value in environment.items():
            patch.setenv(name, value)
        if request.param == "ministack":
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield uris


@pytest.fixture
def store(place: tuple[str, str]) -> ArtifactStore:
    return open_store(place[0])


def test_a_file_is_written_only_where_there_is_none_or_of_the_version_that_is_known(
    store: ArtifactStore,
) -> None:
    first = store.swap("x/one.json", b"first", "")
    assert first.done
    assert first.version
    refused = store.swap("x/one.json", b"second", "")
    assert (refused.done, refused.data, refused.version) == (False, b"first", first.version)
    assert -2.0 < refused.age < 60.0
    second = store.swap("x/one.json", b"second", first.version)
    assert second.done
    assert second.version not in ("", first.version)
    assert b"".join(store.download("x/one.json")) == b"second"
    late = store.swap("x/one.json", b"third", first.version)
    assert (late.done, late.data, late.version) == (False, b"second", second.version)
    read = store.peek("x/one.json")
    assert (read.done, read.data, read.version) == (False, b"second", second.version)
    assert -2.0 < read.age < 60.0
    assert store.peek("x/none.json").version == ""
    store.upload("x/large", [b"x" * (2 * SMALL)])
    assert store.peek("x/large").data == b"x" * SMALL


def test_a_file_is_deleted_only_of_the_version_that_is_known(store: ArtifactStore) -> None:
    made = store.swap("x/two.json", b"first", "")
    assert store.swap("x/two.json", None, made.version).done
    gone = store.swap("x/two.json", b"second", made.version)
    assert (gone.done, gone.version) == (False, "")
    assert store.swap("x/two.json", b"second", "").done
    assert store.swap("x/none.json", None, "").done


def test_its_age_is_told_by_the_stores_own_clock(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.swap("x/old.json", b"old", "")

    def age() -> float:
        return store.swap("x/old.json", b"new", "").age

    until(lambda: age() >= 1.0, 30, "it is a second old")
    assert age() < 60.0


# moto looks and writes in two steps, between which another may write: S3 is ministack here.
@pytest.mark.parametrize("place", [each for each in PLACES if each != "s3"], indirect=True)
def test_of_many_at_once_one_does_it(store: ArtifactStore) -> None:
    start, done = threading.Barrier(8), []

    def work(number: int) -> None:
        start.wait()
        if store.swap("x/race.json", f"{number}".encode(), "").done:
            done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert b"".join(store.download("x/race.json")) == f"{done[0]}".encode()


@pytest.mark.parametrize("place", [each for each in PLACES if each != "file"], indirect=True)
def test_a_bucket_that_is_not_there_is_an_error_and_no_lack_of_a_file(
    place: tuple[str, str],
) -> None:
    """A folder is made when it is written to."""
    with pytest.raises(NoBucketError):
        open_store(place[1]).swap("x/one.json", b"x", "")


def test_a_folder_tells_no_file_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    made = store.swap("x/one.json", b"first", "")
    assert [each.path for each in store.list()] == ["x/one.json"]
    store.swap("x/one.json", None, made.version)
    assert list(store.list()) == []
    (tmp_path / "x" / "link").symlink_to("/etc/hostname")
    with pytest.raises(Exception, match="link"):
        store.swap("x/link", b"x", "")
