"""`data:` in each kind of store: what is listed, signed for nodes, read here, and refused."""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.datasets.listing import list_dataset
from cloudtrain.datasets.signing import DataSigner
from cloudtrain.errors import StoreError
from cloudtrain.model import ClusterConfig, DataSource
from cloudtrain.presign import PresignedRequest
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS, Store

Put = Callable[[str, bytes], None]


@pytest.fixture(scope="module", params=["file", *KINDS])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    if request.param == "file":
        yield Store(uri=tmp_path_factory.mktemp("data").as_uri(), missing="", environment={})
        return
    with KINDS[request.param]() as store:
        yield store


@pytest.fixture
def uri(place: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own for each test."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    return f"{place.uri}/{uuid.uuid4().hex}"


@pytest.fixture
def put(uri: str) -> Put:
    store = open_store(uri)

    def put(path: str, data: bytes) -> None:
        store.upload(path, [data])

    return put


def config(uri: str) -> ClusterConfig:
    data = {"d": DataSource(source=uri)}
    return ClusterConfig(name="m", provider="local", strategy="custom", nodes={}, data=data)


def listed(uri: str) -> Dataset:
    return list_dataset(config(uri), "d")


def get(request: PresignedRequest, **more: str) -> tuple[int, bytes]:
    """What a node gets: the request alone, without any credential."""
    url = urlsplit(request.url.reveal())
    assert url.hostname
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    headers = {name: getattr(v, "reveal", lambda v=v: v)() for name, v in request.headers.items()}
    connection.request(request.method, f"{url.path}?{url.query}", headers={**headers, **more})
    with connection.getresponse() as answer:
        found = answer.status, answer.read()
    connection.close()
    return found


def read(uri: str, dataset: Dataset, file: DataFile, offset: int = 0) -> bytes:
    return b"".join(DataSigner(config(uri), dataset).read(file, offset))


def test_a_prefix_is_a_folder_and_not_the_start_of_a_name(uri: str, put: Put) -> None:
    put("digits/b", b"2")
    put("digits/a/x", b"1" * 3_000_000)
    put("digits-old/x", b"old")
    for source in (f"{uri}/digits", f"{uri}/digits/"):
        dataset = listed(source)
        assert [(file.path, file.size) for file in dataset.files] == [
            ("a/x", 3_000_000),
            ("b", 1),
        ]
        assert dataset.size == 3_000_001
        big, small = dataset.files
        assert read(source, dataset, big) == b"1" * 3_000_000
        assert read(source, dataset, big, 2_999_990) == b"1" * 10
        assert read(source, dataset, small) == b"2"


def test_one_object_is_a_dataset_with_one_file(uri: str, put: Put) -> None:
    put("digits.tar", b"tar")
    put("digits.tar.old", b"old")
    dataset = listed(f"{uri}/digits.tar")
    assert [(file.path, file.size) for file in dataset.files] == [("digits.tar", 3)]
    assert read(f"{uri}/digits.tar", dataset, dataset.files[0]) == b"tar"


def test_nothing_there_is_said_with_the_uri(uri: str, put: Put) -> None:
    put("digits-old/x", b"old")
    with pytest.raises(StoreError, match=r"^data\.d: no object under .*/digits") as caught:
        listed(f"{uri}/digits")
    assert caught.value.hint == "check the URI"


def test_the_digest_changes_with_any_file_and_only_then(uri: str, put: Put) -> None:
    put("d/a", b"1")
    put("d/b", b"1")
    before = listed(f"{uri}/d").digest
    assert listed(f"{uri}/d").digest == before
    put("d/b", b"2")
    assert listed(f"{uri}/d").digest != before


def test_a_node_gets_that_version_with_the_signed_request_alone(
    uri: str, put: Put, place: Store
) -> None:
    put("d/ä b+c&?#%41.txt", b"0123456789")
    put("d/empty", b"")
    dataset = listed(f"{uri}/d")
    signer = DataSigner(config(f"{uri}/d"), dataset)
    for file, content in zip(dataset.files, (b"", b"0123456789"), strict=True):
        request = signer.sign(file, expires_in=600)
        if place.uri.startswith("file:"):
            assert request is None
            continue
        assert request is not None
        assert get(request) == (200, content)
        if content:
            assert get(request, Range="bytes=4-") == (206, b"456789")
    assert b"".join(signer.read(dataset.files[0])) == b""


@pytest.mark.parametrize("place", ["file", "s3", "gs by others", "az"], indirect=True)
def test_an_object_that_has_changed_is_refused_and_not_mixed(uri: str, put: Put) -> None:
    """Google's other stand-in ignores generations."""
    put("d/a", b"first")
    dataset = listed(f"{uri}/d")
    signer = DataSigner(config(f"{uri}/d"), dataset)
    request = signer.sign(dataset.files[0], expires_in=600)
    put("d/a", b"other")
    if request is not None:
        status, body = get(request)
        assert (status in (404, 412), b"other" in body) == (True, False)
    with pytest.raises(StoreError, match=r"^data\.d: "):
        b"".join(signer.read(dataset.files[0]))
