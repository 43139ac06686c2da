"""What every kind of store promises."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.errors import StoreError, UsageError
from cloudtrain.protocols import ArtifactStore
from cloudtrain.stores import open_store

STORES: dict[str, Callable[[Path], str]] = {
    "file": lambda folder: (folder / "not there/yet").as_uri(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return open_store(STORES[request.param](tmp_path))


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


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket/x", "Google Cloud Storage is not in this version"),
        ("s3://bucket/x", "Amazon S3 is not in this version"),
        ("az://account/c", "Azure Blob Storage is not in this version"),
        ("http://x/y", "no such kind of store"),
        ("/a/path", "no such kind of store"),
        ("", "no such kind of store"),
        ("file://host/path", "names a host"),
        ("file://relative", "names a host"),
        ("file://~/x", "names a host"),
        ("file:///a%00b", "NUL"),
    ],
)
def test_a_uri_that_names_no_store_of_this_version_says_which_there_are(
    uri: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        open_store(uri)
    assert "NUL" in words or "file:///" in str(raised.value.hint)
