"""az:// beyond what every kind of store promises: signatures, blocks, refusals in words."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import azure.identity
import azure.storage.blob
import pytest
import requests
from azure.core.pipeline.transport import RequestsTransport

from cloudtrain.artifacts.uploads import revealed
from cloudtrain.core.errors import (
    CloudtrainError,
    CredentialsError,
    PermissionsError,
    StoreAway,
    StoreError,
)
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.shell import Secret
from cloudtrain.node.unpacker import Stream
from cloudtrain.node.web import Refused
from cloudtrain.stores import az, open_store
from cloudtrain.stores.presign import az as presign
from tests.standins.stores import ACCOUNT, KEY, az_connection
from tests.support.azurite_parts import HOUR, Identity, service, with_signature
from tests.support.between import RESET, Answer, Between, Call, between, refusal


@pytest.fixture
def proxy(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    with between(azurite) as told:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", az_connection(told.url))
        yield told


@pytest.fixture
def store(proxy: Between) -> ArtifactStore:
    return open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}")


@pytest.fixture(params=["key", "delegation"])
def signed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """A store whose nodes are given a right by the account's key, or by a user's."""
    uri = f"az://{ACCOUNT}/container/{uuid.uuid4().hex}"
    if request.param == "key":
        endpoint = request.getfixturevalue("azurite")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", az_connection(endpoint))
        return open_store(uri)
    endpoint, certificate = request.getfixturevalue("azurite_tls")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Identity)
    return open_store(uri, endpoint=endpoint)


def test_an_account_whose_keys_are_turned_off_is_used_by_the_users_identity(
    azurite_tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection string is in the environment all the same; nodes' rights are delegated."""
    endpoint, certificate = azurite_tls
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", az_connection(endpoint))
    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Identity)
    sent, by_key = RequestsTransport.send, list[str]()

    def refused(transport: RequestsTransport, request: Any, **given: Any) -> Any:
        signed = request.headers["Authorization"].startswith("SharedKey")
        answer = sent(transport, request, **given)
        if signed:
            by_key.append(request.url)
            answer.status_code = 403
            answer.headers["x-ms-error-code"] = "KeyBasedAuthenticationNotPermitted"
        return answer

    monkeypatch.setattr(RequestsTransport, "send", refused)
    store = open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}")
    store.upload("a", [b"abc"])
    assert content(store, "a") == b"abc"
    assert len(by_key) == 1
    right = upload_of(store, "b", 3).requests[0]
    assert "skoid=" in right.url.reveal()
    assert send(right, b"abc").status_code == 201
    assert names(store) == ["a", "b"]


def send(request: PresignedRequest, body: bytes, block: str = "") -> requests.Response:
    """As a node does, by another client."""
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    headers = {name: str(value) for name, value in request.headers.items()}
    url = request.url.reveal().replace("{block}", block)
    return requests.request(
        request.method, url, data=body, headers={**headers, "Content-MD5": md5}, timeout=60
    )


def upload_of(
    store: ArtifactStore, path: str, size: int | None, expires_in: float = HOUR
) -> PresignedUpload:
    assert store.presigner is not None
    upload = store.presigner.sign_upload(path, size, expires_in=expires_in)
    assert upload is not None
    return upload


def content(store: ArtifactStore, path: str) -> bytes:
    return b"".join(store.download(path))


def names(store: ArtifactStore) -> list[str]:
    return [found.path for found in store.list()]


# ── The right to store one file ──────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", ["x", "a b/ü世界🙂", "%41?#&+=~'()*!;:@,$[]{block}", os.fsdecode(b"\xff")]
)
def test_a_right_is_good_for_its_file_whatever_its_name(signed: ArtifactStore, name: str) -> None:
    assert send(upload_of(signed, name, 3).requests[0], b"abc").status_code == 201
    assert content(signed, name) == b"abc"
    assert [(found.path, found.size, found.md5) for found in signed.list()] == [
        (name, 3, hashlib.md5(b"abc").hexdigest())
    ]


def test_a_right_is_good_for_nothing_but_its_file(signed: ArtifactStore) -> None:
    signed.upload("mine", [b"old"])
    signed.upload("other", [b"of somebody else"])
    url = upload_of(signed, "mine", 3).requests[0].url.reveal()
    place, _, right = url.partition("?")
    other = f"{place.removesuffix('mine')}other?{right}"
    container = place.partition("/container/")[0] + f"/container?{right}"
    blob = {"x-ms-blob-type": "BlockBlob"}

    def status(method: str, url: str, **headers: str) -> int:
        return requests.request(method, url, headers=headers, timeout=60).status_code

    assert status("GET", url) == 403
    assert status("HEAD", url) == 403
    assert status("DELETE", url) == 403
    assert status("PUT", other, **blob) == 403
    assert status("PUT", f"{other}&comp=block&blockid=MDAw") == 403
    assert status("GET", other) == 403
    assert status("DELETE", other) == 403
    assert status("PUT", f"{place}2?{right}", **blob) == 403
    assert status("GET", f"{container}&restype=container&comp=list") == 403
    assert status("DELETE", f"{container}&restype=container") == 403
    assert status("PUT", url, **blob, **{"x-ms-copy-source": other}) >= 400
    assert (content(signed, "mine"), content(signed, "other")) == (b"old", b"of somebody else")
    assert send(PresignedRequest(url=Secret(url), headers=blob), b"new").status_code == 201


def test_a_right_ends(signed: ArtifactStore) -> None:
    assert send(upload_of(signed, "x", 3, expires_in=-1).requests[0], b"abc").status_code == 403
    assert (
        send(upload_of(signed, "x", 3, expires_in=7 * 86400).requests[0], b"abc").status_code == 201
    )


def test_a_right_is_for_tls_alone_where_there_is_tls(signed: ArtifactStore, azurite: str) -> None:
    url = urlsplit(upload_of(signed, "x", 3).requests[0].url.reveal())
    query = parse_qs(url.query)
    assert query.get("spr") == (["https"] if url.scheme == "https" else None)
    assert (query["sr"], query["sp"]) == (["b"], ["cw"])


def test_what_arrives_changed_is_refused(signed: ArtifactStore) -> None:
    request = upload_of(signed, "x", 3).requests[0]
    md5 = base64.b64encode(hashlib.md5(b"abc").digest()).decode()
    headers = {**request.headers, "Content-MD5": md5}
    answer = requests.put(request.url.reveal(), data=b"abd", headers=headers, timeout=60)
    assert answer.status_code == 400
    assert names(signed) == []


def test_a_file_whose_size_is_not_known_yet_is_one_request(signed: ArtifactStore) -> None:
    (request,) = upload_of(signed, "x", None, expires_in=7 * 86400).requests
    assert (request.offset, request.length) == (0, None)
    assert send(request, b"").status_code == 201
    assert [(found.path, found.size) for found in signed.list()] == [("x", 0)]


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presign, "SMALL", 1 << 20)
    monkeypatch.setattr(az, "PART", 1 << 18)


@pytest.mark.usefixtures("_small_blocks")
def test_a_file_of_many_blocks_is_visible_whole_or_not_at_all(signed: ArtifactStore) -> None:
    data = os.urandom((2 << 20) + 7)
    upload = upload_of(signed, "x", len(data))
    parts = [uploaded(request, data) for request in upload.requests]
    assert [each.size for each in parts] == [1 << 20, 1 << 20, 7]
    for request, part in reversed(list(zip(upload.requests, parts, strict=True))):
        assert send(request, bytes_of(request, data), quoted(part.block)).status_code == 201
    assert names(signed) == []
    assert upload_of(signed, "x", len(data)).uploaded == {part.block for part in parts}
    signed.presigner.complete(upload, parts)
    assert [(found.path, found.size, found.md5) for found in signed.list()] == [
        ("x", len(data), "")
    ]
    assert content(signed, "x") == data
    assert upload_of(signed, "x", len(data)).uploaded == frozenset()


def uploaded(request: PresignedRequest, data: bytes) -> UploadedPart:
    part = bytes_of(request, data)
    md5 = hashlib.md5(part).hexdigest()
    block = base64.b64encode(f"{request.offset:016d}{md5}".encode()).decode()
    return UploadedPart(etag="", block=block, size=len(part), md5=md5)


def bytes_of(request: PresignedRequest, data: bytes) -> bytes:
    end = None if request.length is None else request.offset + request.length
    return data[request.offset : end]


def quoted(block: str) -> str:
    return block.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")


@pytest.mark.usefixtures("_small_blocks")
def test_a_file_of_which_a_block_is_missing_does_not_become_visible(store: ArtifactStore) -> None:
    data = bytes(2 << 20)
    upload = upload_of(store, "x", len(data))
    parts = [uploaded(request, data) for request in upload.requests]
    send(upload.requests[0], bytes_of(upload.requests[0], data), quoted(parts[0].block))
    with pytest.raises(StoreError, match="InvalidBlockList"):
        store.presigner.complete(upload, parts)
    assert names(store) == []


def test_who_has_only_a_signature_cannot_give_a_right_away_and_does_the_rest(
    azurite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", with_signature(azurite, whole_account()))
    store = open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}")
    store.check()
    store.upload("x", [b"abc"])
    store.copy("x", "y")
    assert content(store, "y") == b"abc"
    store.delete("x")
    assert names(store) == ["y"]
    assert store.presigner is None


def whole_account() -> str:
    return azure.storage.blob.generate_account_sas(
        ACCOUNT,
        KEY,
        azure.storage.blob.ResourceTypes(service=True, container=True, object=True),
        azure.storage.blob.AccountSasPermissions(read=True, write=True, delete=True, list=True),
        datetime.now(timezone.utc) + timedelta(hours=1),
    )


def test_no_error_has_the_signature_in_it(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(az, "RETRIES", {"retry_total": 0})
    with between(azurite) as told:
        told.meddle = lambda call: RESET
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING", with_signature(told.url, whole_account())
        )
        with pytest.raises(StoreError) as raised:
            open_store(f"az://{ACCOUNT}/container/p").check()
    signature = whole_account()
    for place, kind in (("http://127.0.0.1:1/x", StoreError), ("http:/x", CredentialsError)):
        for told_as in (with_signature(place, signature), f"BlobEndpoint={place}?{signature}"):
            monkeypatch.setenv(
                "AZURE_STORAGE_CONNECTION_STRING", f"AccountName={ACCOUNT};{told_as}"
            )
            with pytest.raises(kind) as unreached:
                open_store("az://x/container/p").check()
            for error in (raised.value, unreached.value):
                assert "sig=" not in f"{error} {error.hint}".replace("sig=***", "")


# ── A user's own key ─────────────────────────────────────────────────────────


def test_a_right_to_read_is_no_right_to_write(store: ArtifactStore) -> None:
    store.upload("x", [b"one"])
    request = store.presigner.sign_download("x", expires_in=HOUR)
    assert request is not None
    assert Stream(revealed(request), 3).read(3) == b"one"
    assert parse_qs(request.url.reveal())["sp"] == ["r"]
    written = replace(request, method="PUT", headers={"x-ms-blob-type": "BlockBlob"})
    with pytest.raises(Refused, match="403"):
        Stream(revealed(written), 3).read(3)
    assert b"".join(store.download("x")) == b"one"


# ── Through this machine ─────────────────────────────────────────────────────


@pytest.mark.usefixtures("_small_blocks")
def test_a_stream_may_follow_a_node_that_left_some_blocks_and_the_other_way_round(
    store: ArtifactStore,
) -> None:
    data = os.urandom(2 << 20)
    upload = upload_of(store, "x", len(data))
    parts = [uploaded(request, data) for request in upload.requests]

    def stage(number: int) -> int:
        request = upload.requests[number]
        part = quoted(parts[number].block)
        return send(request, bytes_of(request, data), part).status_code

    def broken() -> Iterator[bytes]:
        yield data[:900_000]
        raise RuntimeError("the node is gone")

    assert stage(0) == 201
    with pytest.raises(RuntimeError, match="the node is gone"):
        store.upload("x", broken())
    assert stage(1) == 201
    store.presigner.complete(upload, parts)
    assert content(store, "x") == data
    assert stage(0) == 201
    store.upload("x", [data[::-1]])
    assert content(store, "x") == data[::-1]


@pytest.mark.usefixtures("_small_blocks")
def test_what_is_changed_on_the_way_is_refused_and_nothing_becomes_visible(
    proxy: Between, store: ArtifactStore
) -> None:
    def change(call: Call) -> None:
        if call.method == "PUT" and call.body:
            call.body = call.body[:-1] + bytes([call.body[-1] ^ 1])

    proxy.meddle = change
    for size in (10, 1 << 20):
        with pytest.raises(StoreError):
            store.upload("x", [bytes(size)])
    proxy.meddle = lambda call: None
    assert names(store) == []


# ── In the store itself ──────────────────────────────────────────────────────


def test_a_copy_is_made_in_the_store_itself(proxy: Between, store: ArtifactStore) -> None:
    store.upload("a b/ü%+?", [b"abc"])
    proxy.calls.clear()
    store.copy("a b/ü%+?", "again/y")
    assert content(store, "again/y") == b"abc"
    assert [found.md5 for found in store.list("again/")] == [hashlib.md5(b"abc").hexdigest()]
    assert [call.method for call in proxy.calls][:1] == ["PUT"]
    assert not [call for call in proxy.calls if call.body]


def test_a_copy_that_takes_its_time_is_waited_for(proxy: Between, store: ArtifactStore) -> None:
    store.upload("x", [b"abc"])
    asked = []

    def pend(call: Call, headers: dict[str, str]) -> None:
        if "x-ms-copy-source" in call.headers:
            headers["x-ms-copy-status"] = "pending"
        elif call.method == "HEAD":
            asked.append(call)
            headers["x-ms-copy-status"] = "pending" if len(asked) < 3 else "success"

    proxy.retouch = pend
    store.copy("x", "y")
    assert len(asked) == 3


@pytest.mark.parametrize("fault", ["refused", "failed", "stuck"])
def test_what_the_store_cannot_copy_comes_through_this_machine(
    proxy: Between, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    store.upload("x", [b"abc"])
    monkeypatch.setattr(az, "COPY_SECONDS", 0.2)

    def refuse(call: Call) -> Answer | None:
        if "x-ms-copy-source" in call.headers and fault == "refused":
            return refusal(403, "CannotVerifyCopySource")
        if "comp=copy" in call.path:
            return 204, {}, b""
        return None

    def fail(call: Call, headers: dict[str, str]) -> None:
        if "x-ms-copy-source" in call.headers or call.method == "HEAD":
            headers["x-ms-copy-status"] = "failed" if fault == "failed" else "pending"

    proxy.meddle, proxy.retouch = refuse, fail
    store.copy("x", "y")
    assert [call.body for call in proxy.calls if call.body] == [b"abc", b"abc"]
    assert content(store, "y") == b"abc"
    assert bool([call for call in proxy.calls if "comp=copy" in call.path]) == (fault == "stuck")


def test_a_copy_of_nothing_is_an_error(store: ArtifactStore) -> None:
    with pytest.raises(StoreError, match="BlobNotFound"):
        store.copy("nothing", "y")
    assert names(store) == []


def test_what_is_not_there_is_deleted_without_a_word(store: ArtifactStore) -> None:
    store.delete("nothing")
    store.upload("x", [b"1"])
    store.delete("x")
    assert names(store) == []


# ── The container ────────────────────────────────────────────────────────────


def test_a_container_is_made_where_there_is_none_for_its_owner_alone(
    proxy: Between, azurite: str
) -> None:
    name = f"new-{uuid.uuid4().hex}"
    store = open_store(f"az://{ACCOUNT}/{name}/p")
    assert store.create("eastus") is True
    assert store.create(None) is False
    store.upload("x", [b"1"])
    assert requests.get(f"{azurite}/{name}/p/x", timeout=60).status_code in (403, 404)
    access = service(azurite).get_container_client(name).get_container_access_policy()
    assert access["public_access"] is None


def test_two_that_make_one_container_both_go_on(proxy: Between) -> None:
    store = open_store(f"az://{ACCOUNT}/new-{uuid.uuid4().hex}")
    together = threading.Barrier(2, timeout=60)

    def wait(call: Call) -> None:
        if call.method == "PUT":
            together.wait()

    proxy.meddle = wait
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(store.create(None))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, True]


# ── Refusals ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (401, "InvalidAuthenticationInfo", CredentialsError, "az login"),
        (401, "NoAuthenticationInformation", CredentialsError, "az login"),
        (403, "AuthenticationFailed", CredentialsError, "az login"),
        (403, "AuthorizationPermissionMismatch", PermissionsError, "Blob Data Contributor"),
        (403, "AuthorizationFailure", PermissionsError, "firewall"),
        (403, "KeyBasedAuthenticationNotPermitted", PermissionsError, "Blob Data Contributor"),
        (404, "ContainerNotFound", StoreError, "az storage container create"),
        (409, "ContainerBeingDeleted", StoreError, "half a minute"),
        (400, "Md5Mismatch", StoreError, "damaged in transit"),
        (412, "LeaseIdMissing", StoreError, "run the command again"),
        (503, "ServerBusy", StoreAway, "run the command again"),
    ],
)
def test_every_refusal_is_told_with_its_code_and_what_to_do(
    azurite: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    kind: type[CloudtrainError],
    hint: str,
) -> None:
    monkeypatch.setattr(az, "RETRIES", {"retry_total": 0})
    with between(azurite) as told:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", az_connection(told.url))
        told.meddle = lambda call: refusal(status, code)
        store = open_store(f"az://{ACCOUNT}/container/p")
        for act in (store.check, lambda: list(store.list()), lambda: store.delete("x")):
            if act is not store.check and status == 404:
                continue
            with pytest.raises(kind, match="Said so") as raised:
                act()
            assert type(raised.value) is kind
            assert code in str(raised.value) or kind is CredentialsError
            assert hint in str(raised.value.hint)


def test_a_service_that_is_busy_is_asked_again(
    proxy: Between, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    proxy.meddle = lambda call: refusal(503, "ServerBusy") if len(proxy.calls) < 4 else None
    store.upload("x", [b"1"])
    assert len(proxy.calls) == 4
