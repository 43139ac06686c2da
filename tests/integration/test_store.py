"""What every kind of store promises."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cloudtrain.artifacts.manifest import ManifestWriter
from cloudtrain.core import store_kinds
from cloudtrain.core.errors import NoBucketError, StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.stores import objects, open_store
from tests.standins.stores import KINDS, Store


@pytest.fixture(scope="module", params=["file", *KINDS])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """One server for all tests of a kind; each test has a prefix of its own."""
    if request.param == "file":
        folder = tmp_path_factory.mktemp("store") / "not there/yet"
        yield Store(uri=folder.as_uri(), missing="", environment={})
        return
    with KINDS[request.param]() as store:
        yield store


@pytest.fixture
def store(place: Store, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"{place.uri}/{uuid.uuid4().hex}")


def content(store: ArtifactStore, path: str) -> bytes:
    return b"".join(store.download(path))


def test_what_is_uploaded_is_downloaded_listed_and_described(store: ArtifactStore) -> None:
    artifact = store.upload("run/chief0/output/x", [b"ab", b"", b"c" * 3_000_000])
    assert artifact.path == "run/chief0/output/x"
    assert artifact.size == 3_000_002
    assert artifact.sha256 == hashlib.sha256(b"ab" + b"c" * 3_000_000).hexdigest()
    assert content(store, "run/chief0/output/x") == b"ab" + b"c" * 3_000_000
    assert [(found.path, found.size) for found in store.list()] == [
        ("run/chief0/output/x", 3_000_002)
    ]


def test_an_empty_file_is_a_file(store: ArtifactStore) -> None:
    assert store.upload("x", []).size == 0
    assert content(store, "x") == b""


def test_a_second_upload_takes_the_place_of_the_first(store: ArtifactStore) -> None:
    store.upload("x", [b"a longer first one"])
    store.upload("x", [b"second"])
    assert content(store, "x") == b"second"


def test_a_prefix_is_the_start_of_a_path(store: ArtifactStore) -> None:
    for path in ("run-1/a", "run-1/logs/b", "run-10/c", "other"):
        store.upload(path, [b"1"])
    assert [found.path for found in store.list("run-1/")] == ["run-1/a", "run-1/logs/b"]
    assert {found.path for found in store.list("run-1")} == {"run-1/a", "run-1/logs/b", "run-10/c"}
    assert [found.path for found in store.list("run-1/logs/b")] == ["run-1/logs/b"]
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("name", ["a b", "ü/世界🙂", "x" * 255, os.fsdecode(b"\xff"), "%41?#&"])
def test_any_name_is_a_name(store: ArtifactStore, name: str) -> None:
    store.upload(name, [b"1"])
    assert [found.path for found in store.list()] == [name]
    assert content(store, name) == b"1"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "a//b", "./a", "a\0b"])
def test_no_path_leads_out_of_the_store(store: ArtifactStore, path: str) -> None:
    with pytest.raises(StoreError, match="not a path inside"):
        store.upload(path, [b"1"])
    with pytest.raises(StoreError, match="not a path inside"):
        content(store, path)


def test_data_that_breaks_off_leaves_the_old_file_and_nothing_else(store: ArtifactStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the node is gone")

    store.upload("x", [b"old"])
    for path in ("x", "new"):
        with pytest.raises(RuntimeError, match="the node is gone"):
            store.upload(path, broken())
    assert content(store, "x") == b"old"
    assert [found.path for found in store.list()] == ["x"]


def test_a_file_that_is_not_there_is_a_store_error(store: ArtifactStore) -> None:
    with pytest.raises(StoreError, match="nothing"):
        content(store, "nothing")


def test_a_check_leaves_nothing_to_be_listed(store: ArtifactStore) -> None:
    store.check()
    assert list(store.list()) == []


def test_a_bucket_that_is_not_there_is_told_by_the_check(
    place: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    if place.missing:
        with pytest.raises(NoBucketError, match=place.missing) as raised:
            open_store(place.missing).check()
        assert "artifacts.create" in str(raised.value.hint)


def test_a_store_is_made_once_and_then_used(place: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    new = uuid.uuid4().hex
    uri = place.missing.replace("none", f"new{new}") or f"{place.uri}/{new}"
    assert open_store(uri).create(None)
    assert not open_store(uri).create(None)
    open_store(uri).check()


@pytest.mark.parametrize("parts", ["whole", "short"])
def test_known_names_change_nothing_of_a_listing(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    """Also where a service lists no parts, or other ones than it was asked for."""
    monkeypatch.setattr(objects, "PAGE", 8)
    known = [f"run/{number:02}" for number in range(12)]
    for name in (*known, "run/03 more", "run/07x", "run/\u00fc", "run-2/00", "a"):
        store.upload(name, [b"x"])
    asked = []
    if isinstance(store, objects.ObjectStore):
        real = store.bucket.between

        def between(prefix: str, after: str, last: str, *, page: int) -> Any:
            asked.append(last)
            found = real(prefix, after, last, page=page)
            return found if parts == "whole" else found and found[1:]

        monkeypatch.setattr(store.bucket, "between", between)
    whole = list(store.list("run/"))
    assert len(whole) == 15
    assert not asked
    assert list(store.list("run/", known)) == whole
    assert list(store.list("run/", [*known, "run/05 gone"])) == whole
    assert len(asked) in (0, 6)


def test_many_files_are_listed_page_by_page(store: ArtifactStore) -> None:
    count = 1010 if "s3://" in store.uri else 50  # the emulators of others are slow
    names = [f"run/{number:04}" for number in range(count)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.upload(name, [b"x"]), names))
    assert [found.path for found in store.list("run/")] == names


@pytest.mark.parametrize("size", [100, 9 << 20])
def test_a_file_that_is_altered_without_another_size_no_longer_counts_as_landed(
    store: ArtifactStore, size: int
) -> None:
    """Large files, which services take in parts, have no MD5 in some listings."""
    stored = store.upload("run/chief0/x", [b"1" * size])
    writer = ManifestWriter(store, "run")
    writer.add([writer.landed("chief0/x", stored)])
    with ThreadPoolExecutor(1) as pool:
        writer.settle(pool, complete=True)

    read: list[str] = []
    whole = ManifestWriter(_Counting(store, read), "run", certain=True)
    assert whole.lost == frozenset()
    by_listing = not store.uri.startswith("file:")
    assert read == ["run/manifest.json"] + ["run/chief0/x"] * (not by_listing)

    store.upload("run/chief0/x", [b"2" * size])
    assert ManifestWriter(store, "run", certain=True).lost == {"chief0/x"}


class _Counting:
    """A store that tells what is read of it."""

    def __init__(self, store: ArtifactStore, read: list[str]) -> None:
        self._store, self._read = store, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def checksums(self, paths: Iterable[str]) -> dict[str, str]:
        read = list(paths)
        self._read += read
        return self._store.checksums(read)  # type: ignore[attr-defined, no-any-return]

    def download(self, path: str) -> Iterator[bytes]:
        self._read.append(path)
        return self._store.download(path)


def test_a_file_of_many_parts_is_whole(store: ArtifactStore) -> None:
    part = os.urandom(1 << 20)
    artifact = store.upload("large", (part for _ in range(40)))
    assert artifact.size == 40 << 20
    digest = hashlib.sha256()
    for chunk in store.download("large"):
        digest.update(chunk)
    assert digest.hexdigest() == artifact.sha256


def test_every_kind_of_store_but_a_folder_has_a_stand_in() -> None:
    assert {kind.scheme for kind in store_kinds.KINDS} - {"file"} <= KINDS.keys(), (
        "add it to KINDS in tests/standins/stores.py"
    )
