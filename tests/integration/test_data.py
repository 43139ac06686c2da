"""`data:` in each kind of store: what is listed, signed for nodes, read here, and refused."""

from __future__ import annotations

import gzip
import http.client
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.core.errors import PermissionsError, StoreError
from cloudtrain.core.model import ClusterConfig, DataSource
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.datasets.listing import DataSigner, list_dataset, open_source
from cloudtrain.stores import open_store
from tests.standins import serve
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
    return list_dataset(config(uri), "d", open_source(config(uri), "d"))


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


def signer_of(uri: str, dataset: Dataset) -> DataSigner:
    return DataSigner(dataset, open_source(config(uri), "d"))


def read(uri: str, dataset: Dataset, file: DataFile, offset: int = 0) -> bytes:
    return b"".join(signer_of(uri, dataset).read(file, offset))


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
    signer = signer_of(f"{uri}/d", dataset)
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


@pytest.mark.parametrize("place", ["gs by others"], indirect=True)
def test_an_object_that_google_would_decompress_is_read_as_stored(uri: str, put: Put) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    put("d/other", b"1")
    prefix = urlsplit(uri).path.lstrip("/")
    client = storage.Client(credentials=AnonymousCredentials(), project="test-project")
    blob = client.bucket("bucket").blob(f"{prefix}/d/x.csv")
    blob.content_encoding = "gzip"
    stored = gzip.compress(b"a,b" * 1000)
    blob.upload_from_string(stored, content_type="text/csv")
    dataset = listed(f"{uri}/d")
    file = dataset.files[1]
    assert (file.path, file.size) == ("x.csv", len(stored))
    assert read(f"{uri}/d", dataset, file) == stored
    request = signer_of(f"{uri}/d", dataset).sign(file, expires_in=60)
    assert request is not None
    assert get(request) == (200, stored)


@pytest.mark.parametrize("place", ["file", "s3", "gs by others", "az"], indirect=True)
def test_an_object_that_has_changed_is_refused_and_not_mixed(uri: str, put: Put) -> None:
    """Google's other stand-in ignores generations."""
    put("d/a", b"first")
    dataset = listed(f"{uri}/d")
    signer = signer_of(f"{uri}/d", dataset)
    request = signer.sign(dataset.files[0], expires_in=600)
    put("d/a", b"other")
    if request is not None:
        status, body = get(request)
        assert (status in (404, 412), b"other" in body) == (True, False)
    with pytest.raises(StoreError, match=r"^data\.d: "):
        b"".join(signer.read(dataset.files[0]))


# ── https:// ─────────────────────────────────────────────────────────────────


class Web:
    """A web server's files by path: its answer's status, headers and body."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, dict[str, str], bytes]] = {}
        self.methods: list[str] = []
        self.without_head = False

    def __call__(self, environ: Any, start: Any) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        self.methods.append(method)
        if method == "HEAD" and self.without_head:
            start("405 Method Not Allowed", [("Content-Length", "0")])
            return [b""]
        status, headers, body = self.files.get(environ["PATH_INFO"], ("404 Not Found", {}, b""))
        wanted = environ.get("HTTP_RANGE", "")
        tag = environ.get("HTTP_IF_MATCH")
        if tag is not None and tag != headers.get("ETag"):
            status, headers, body = "412 Precondition Failed", {}, b""
        elif wanted and status.startswith("200") and "Accept-Ranges" in headers:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(len(body), int(last or len(body)) + bool(last))
            span = f"bytes {first}-{end - 1}/{len(body)}"
            status, headers = "206 Partial Content", {**headers, "Content-Range": span}
            body = body[int(first) : end]
        start(status, [*headers.items(), ("Content-Length", str(len(body)))])
        return [b"" if method == "HEAD" else body]


RANGES = {"ETag": '"one"', "Accept-Ranges": "bytes"}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Web, str]]:
    tls = serve.certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    files = Web()
    with serve.serving(files, tls=tls) as url:
        yield files, url


@pytest.mark.parametrize("without_head", [False, True])
def test_a_url_is_one_file_by_its_last_name(web: tuple[Web, str], without_head: bool) -> None:
    files, url = web
    files.without_head = without_head
    files.files["/d/a b.csv"] = ("200 OK", RANGES, b"0123456789")
    source = f"{url}/d/a%20b.csv?download=1"
    dataset = listed(source)
    assert dataset.files == (DataFile(path="a b.csv", size=10, version='"one"'),)
    assert read(source, dataset, dataset.files[0], 4) == b"456789"
    request = signer_of(source, dataset).sign(dataset.files[0], expires_in=60)
    assert request is not None
    assert (request.url.reveal(), request.headers["If-Match"]) == (source, '"one"')


def test_a_redirect_is_resolved_here_and_stays_on_https(web: tuple[Web, str]) -> None:
    files, url = web
    files.files["/latest.tar"] = ("302 Found", {"Location": f"{url}/v1.tar?sig=x"}, b"")
    files.files["/v1.tar"] = ("200 OK", RANGES, b"tar")
    dataset = listed(f"{url}/latest.tar")
    assert [(file.path, file.size) for file in dataset.files] == [("latest.tar", 3)]
    request = signer_of(f"{url}/latest.tar", dataset).sign(dataset.files[0], expires_in=60)
    assert request is not None
    assert request.url.reveal() == f"{url}/v1.tar?sig=x"
    assert "sig=" not in repr(request)
    plain = url.replace("https:", "http:")
    files.files["/latest.tar"] = ("302 Found", {"Location": f"{plain}/v1.tar"}, b"")
    with pytest.raises(StoreError, match="redirects to an address without https"):
        listed(f"{url}/latest.tar")


def test_a_server_without_ranges_is_read_from_the_start(web: tuple[Web, str]) -> None:
    files, url = web
    files.files["/d"] = ("200 OK", {"Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}, b"0123")
    dataset = listed(f"{url}/d")
    assert dataset.files[0].version == "Sun, 22 Nov 2026 00:00:00 GMT"
    assert read(f"{url}/d", dataset, dataset.files[0], 2) == b"23"


def test_a_url_that_has_changed_or_gone_is_refused(web: tuple[Web, str]) -> None:
    files, url = web
    files.files["/d"] = ("200 OK", RANGES, b"1")
    dataset = listed(f"{url}/d")
    files.files["/d"] = ("200 OK", {**RANGES, "ETag": '"two"'}, b"2")
    for action in (
        lambda: signer_of(f"{url}/d", dataset).sign(dataset.files[0], expires_in=60),
        lambda: read(f"{url}/d", dataset, dataset.files[0]),
    ):
        with pytest.raises(StoreError, match="changed since it was listed"):
            action()
    del files.files["/d"]
    with pytest.raises(StoreError, match="no object under https://"):
        listed(f"{url}/d")


def test_a_url_that_needs_a_login_is_a_refusal_with_what_to_do(web: tuple[Web, str]) -> None:
    files, url = web
    files.files["/d"] = ("403 Forbidden", {}, b"")
    with pytest.raises(PermissionsError, match="403: the server refuses access") as caught:
        listed(f"{url}/d")
    assert caught.value.exit_code == 4
    assert "https:// is for public files" in str(caught.value.hint)


# ── check and up ─────────────────────────────────────────────────────────────


def test_folder_markers_are_skipped_and_a_folder_that_is_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with KINDS["s3"]() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        import boto3

        client = boto3.client("s3", region_name="us-east-1")
        for key in ("d/", "d/sub/", "d/sub/x", "e/a", "e/a/b", "g//x"):
            client.put_object(Bucket="bucket", Key=key, Body=b"" if key.endswith("/") else b"1")
        assert [file.path for file in listed("s3://bucket/d").files] == ["sub/x"]
        for prefix, text in {
            "e": "a and a/b: one would be both a file and a folder",
            "g": "g//x: its path is absolute below the prefix",
        }.items():
            with pytest.raises(StoreError, match=text):
                listed(f"s3://bucket/{prefix}")


def test_an_object_and_a_prefix_of_one_name_are_told_apart_by_the_slash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with KINDS["s3"]() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        import boto3

        client = boto3.client("s3", region_name="us-east-1")
        for key in ("d", "d/x"):
            client.put_object(Bucket="bucket", Key=key, Body=b"1")
        with pytest.raises(StoreError, match="is an object, and objects are below it too"):
            listed("s3://bucket/d")
        assert [file.path for file in listed("s3://bucket/d/").files] == ["x"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_bucket_that_does_not_exist_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with KINDS[kind]() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match=r"^data\.d: ") as caught:
            listed(store.missing)
        assert "check the name" in str(caught.value.hint)


def test_check_and_up_say_what_is_wrong_with_the_data_and_create_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    (tmp_path / "c.yaml").write_text(
        "provider: local\nstrategy: mirrored\n"
        f"data: {{digits: {(tmp_path / 'none').as_uri()}}}\n"
        "train: {command: 'ls {data.digits}'}\n"
    )
    for command in (["check", "c.yaml"], ["up", "c.yaml", "--yes"]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 2, result.output
        assert "no object under file://" in result.output
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x").write_text("1")
    result = CliRunner().invoke(cli, ["check", "c.yaml"])
    assert result.exit_code == 0, result.output
    assert "1 file, 1 B on each of 1 node" in result.output
