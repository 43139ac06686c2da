"""Nodes that store their files in Azurite themselves, by the real sender, and what breaks there."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import azure.identity
import pytest
from azure.storage.blob import BlobBlock, BlobClient, BlobServiceClient, ContainerClient

from cloudtrain.artifacts import uploads
from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.uploads import Upload, UploadResult, upload_from_node
from cloudtrain.core.errors import StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.node.listing import File
from cloudtrain.stores import open_store
from cloudtrain.stores.presign import az
from tests.standins.stores import ACCOUNT, az_connection
from tests.support.azurite_parts import Identity, service
from tests.support.between import RESET, Answer, Between, Call, between, refusal
from tests.support.landing_parts import RUN, Cluster, FolderTransport, node
from tests.support.web_store import until


@pytest.fixture
def proxy(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    with between(azurite) as told:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", az_connection(told.url))
        yield told


class Place:
    """A node with a work folder, a store, and what another client finds in it."""

    def __init__(self, folder: Path, container: ContainerClient, store: ArtifactStore) -> None:
        self.node, self.transport = node("chief0"), FolderTransport(folder / "nodes")
        self.task = self.transport.home(self.node) / "task"
        (self.task / "work").mkdir(parents=True)
        self.store, self.container = store, container

    def put(self, name: str, data: bytes) -> bytes:
        path = self.task / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def send(self, *names: str) -> UploadResult:
        sizes = {name: (self.task / "work" / name).stat().st_size for name in names}
        due = {f"run/{name}": File(name, name, size, "") for name, size in sizes.items()}
        with ThreadPoolExecutor(4) as pool:
            upload = Upload(transport=self.transport, store=self.store, pool=pool)
            return upload_from_node(self.node, "task/work", due, upload)

    def stored(self, name: str) -> bytes:
        return self._blob(name).download_blob().readall()

    def blocks(self, name: str) -> list[BlobBlock]:
        """Those that no file consists of yet."""
        return self._blob(name).get_block_list("uncommitted")[1]

    def _blob(self, name: str) -> BlobClient:
        prefix = self.store.uri.split("/", 4)[4]
        return self.container.get_blob_client(f"{prefix}/run/{name}")


@pytest.fixture
def place(tmp_path: Path, proxy: Between, azurite: str) -> Place:
    store = open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}")
    return Place(tmp_path, service(azurite).get_container_client("container"), store)


def test_a_node_stores_files_of_any_size_and_name_and_none_comes_here(
    place: Place, proxy: Between
) -> None:
    contents = {
        "empty": b"",
        "small": b"1",
        "a b/ü世界+#?&=~;:@,$'()!*[]{md5}{block}": b"odd",
        "large": os.urandom((40 << 20) + 1),
    }
    for name, data in contents.items():
        place.put(name, data)
    sent = place.send(*contents)
    assert (sent.why, sent.changed) == (None, set())
    for name, data in contents.items():
        assert sent.arrived[name].sha256 == hashlib.sha256(data).hexdigest()
        assert place.stored(name) == data
    found = {each.path.removeprefix("run/"): each for each in place.store.list()}
    for name, each in sent.arrived.items():
        assert (found[name].size, found[name].md5) == (each.size, each.md5)
    assert len(proxy.by_nodes()) == 6
    others = [call for call in proxy.calls if not call.by_node]
    assert sum(len(call.body) for call in others) < 1000


def test_names_that_are_no_text_and_percent_signs_arrive(place: Place) -> None:
    names = ["100%", "%41", os.fsdecode(b"\xff")]
    for name in names:
        place.put(name, name.encode("utf-8", "surrogateescape"))
    assert set(place.send(*names).arrived) == set(names)
    for name in names:
        assert b"".join(place.store.download(f"run/{name}")) == os.fsencode(name)


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_a_file_that_changes_while_it_is_read_has_not_arrived(
    place: Place, proxy: Between, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(az, "SMALL", 1 << 20)
    place.put("x", bytes(size))

    def append(call: Call) -> None:
        if call.by_node:
            with (place.task / "work" / "x").open("ab") as file:
                file.write(b"more")

    proxy.meddle = append
    assert place.send("x") == UploadResult(changed={"x"})


def test_what_azure_gets_changed_it_refuses_and_it_is_not_called_arrived(
    place: Place, proxy: Between
) -> None:
    def change(call: Call) -> None:
        if call.by_node:
            call.body = call.body[:-1] + bytes([call.body[-1] ^ 1])

    proxy.meddle = change
    place.put("x", b"abc")
    sent = place.send("x")
    assert sent.arrived == {}
    assert "400" in (sent.why or "")
    assert list(place.store.list()) == []


@pytest.mark.parametrize(
    "fault", [refusal(503, "ServerBusy", Retry_After="1"), refusal(500, "InternalError"), RESET]
)
def test_what_passes_is_waited_for(place: Place, proxy: Between, fault: Answer) -> None:
    proxy.meddle = lambda call: fault if call.by_node and len(proxy.by_nodes()) in (1, 2) else None
    data = place.put("large", os.urandom((18 << 20) + 1))
    assert set(place.send("large").arrived) == {"large"}
    assert place.stored("large") == data


def test_what_is_refused_is_told_in_azures_words(place: Place, proxy: Between) -> None:
    proxy.meddle = lambda call: refusal(403, "AuthorizationFailure") if call.by_node else None
    place.put("x", b"1")
    sent = place.send("x")
    assert sent.arrived == {}
    assert "AuthorizationFailure" in (sent.why or "")
    assert "sig=" not in (sent.why or "")


def test_a_right_that_has_ended_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LASTS", -60.0)
    place.put("x", b"1")
    sent = place.send("x")
    assert sent.arrived == {}
    assert "AuthorizationFailure" in (sent.why or "")


def test_a_sender_that_was_killed_is_gone_on_from_where_it_was(
    place: Place, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(az, "SMALL", 1 << 20)
    data = place.put("large", os.urandom(20 << 20))

    def kill(call: Call) -> Answer | None:
        if not call.is_block or len(proxy.by_nodes()) <= 10:
            return None
        os.kill(int((place.task / "sending").read_text()), signal.SIGKILL)
        return RESET

    proxy.meddle = kill
    sent = place.send("large")
    assert sent.arrived == {}
    assert sent.why
    assert list(place.store.list()) == []
    until(lambda: len(place.blocks("large")) == 10)
    proxy.meddle = lambda call: None
    proxy.calls.clear()
    assert set(place.send("large").arrived) == {"large"}
    assert place.stored("large") == data
    assert len([call for call in proxy.calls if call.is_block]) == 10
    proxy.calls.clear()
    place.send("large")
    assert len([call for call in proxy.calls if call.is_block]) == 20


def test_a_part_that_changed_since_is_sent_again(
    place: Place, proxy: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(az, "SMALL", 1 << 20)
    data = bytearray(place.put("large", os.urandom(4 << 20)))
    proxy.meddle = lambda call: (
        refusal(403, "X") if b"comp=blocklist" in call.path.encode() else None
    )
    assert place.send("large").arrived == {}
    data[2_500_000] ^= 1
    place.put("large", bytes(data))
    proxy.meddle = lambda call: None
    proxy.calls.clear()
    place.send("large")
    assert len([call for call in proxy.calls if call.is_block]) == 1
    assert place.stored("large") == data


# ── Over TLS, with the credentials of a user ─────────────────────────────────


@pytest.fixture
def users_place(
    tmp_path: Path, azurite_tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Place:
    endpoint, certificate = azurite_tls
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Identity)
    store = open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}", endpoint=endpoint)
    return Place(tmp_path, service(endpoint).get_container_client("container"), store)


def test_a_users_own_credentials_let_a_node_store_its_files(
    users_place: Place, azurite_tls: tuple[str, Path]
) -> None:
    users_place.transport.environment = {"SSL_CERT_FILE": str(azurite_tls[1])}
    small, large = users_place.put("a b", b"1"), users_place.put("large", os.urandom(17 << 20))
    sent = users_place.send("a b", "large")
    assert (sent.why, set(sent.arrived)) == (None, {"a b", "large"})
    assert (users_place.stored("a b"), users_place.stored("large")) == (small, large)


def test_a_node_that_does_not_trust_the_service_sends_it_nothing(users_place: Place) -> None:
    users_place.put("x", b"1")
    sent = users_place.send("x")
    assert sent.arrived == {}
    assert "CERTIFICATE_VERIFY_FAILED" in (sent.why or "")


def test_who_may_not_lend_a_right_is_told_so_and_asked_once(
    users_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*_: object, **__: object) -> Any:
        asked.append(1)
        raise azure.core.exceptions.HttpResponseError("AuthorizationPermissionMismatch")

    monkeypatch.setattr(BlobServiceClient, "get_user_delegation_key", refuse)
    names = [f"f{number}" for number in range(100)]
    for name in names:
        users_place.put(name, b"1")
    sent = users_place.send(*names)
    assert sent.arrived == {}
    assert "AuthorizationPermissionMismatch" in (sent.why or "")
    assert asked == [1]


# ── A whole landing ──────────────────────────────────────────────────────────


@pytest.fixture
def cluster(tmp_path: Path, proxy: Between, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(az, "SMALL", 1 << 20)
    cluster = Cluster(tmp_path, workers=2)
    cluster.store = open_store(f"az://{ACCOUNT}/container/{uuid.uuid4().hex}")  # type: ignore[assignment]
    return cluster


def landing(cluster: Cluster) -> Manifest:
    return cluster.land(checkpoints="ckpt")


def landed(cluster: Cluster) -> dict[str, bytes]:
    top = f"{RUN}/"
    return {
        each.path.removeprefix(top): b"".join(cluster.store.download(each.path))
        for each in cluster.store.list(top)
        if not each.path.endswith("manifest.json")
    }


def filled(cluster: Cluster) -> dict[str, bytes]:
    expected = {}
    for task in cluster.nodes:
        for name, data in (
            ("output/empty", b""),
            ("output/a b/ü%+", task.encode()),
            ("output/large", os.urandom((2 << 20) + 3)),
        ):
            cluster.write(task, name, data)
            expected[f"{task}/{name}"] = data
    cluster.write("chief0", "ckpt/checkpoint", b"c")
    return {**expected, "chief0/ckpt/checkpoint": b"c"}


def test_a_run_of_three_tasks_lands_without_a_detour(cluster: Cluster, proxy: Between) -> None:
    expected = filled(cluster)
    assert landing(cluster).complete
    assert landed(cluster) == expected
    assert cluster.console.said == []
    cluster.write("chief0", "output/empty", b"not any more")
    assert landing(cluster).complete
    assert landed(cluster) == {**expected, "chief0/output/empty": b"not any more"}


@pytest.mark.parametrize("fault", ["refused", "corrupt"])
def test_what_the_nodes_cannot_store_lands_through_this_machine_and_why_is_said(
    cluster: Cluster, proxy: Between, fault: str
) -> None:
    def meddle(call: Call) -> Answer | None:
        if call.by_node and fault == "refused":
            return refusal(403, "AuthorizationFailure")
        if call.by_node and call.body:
            call.body = call.body[:-1] + bytes([call.body[-1] ^ 1])
        return None

    expected = filled(cluster)
    proxy.meddle = meddle
    assert landing(cluster).complete
    assert landed(cluster) == expected
    assert len(cluster.console.said) == 3
    for line in cluster.console.said:
        assert "files through this machine: 40" in line
        assert "sig=" not in line


def test_a_container_that_is_gone_keeps_the_nodes_and_loses_nothing(
    cluster: Cluster, azurite: str
) -> None:
    box = service(azurite).create_container(f"box-{uuid.uuid4().hex}")
    cluster.store = open_store(f"az://{ACCOUNT}/{box.container_name}/p")  # type: ignore[assignment]
    expected = filled(cluster)

    once = threading.Lock()

    def vanish(line: str) -> None:
        if once.acquire(blocking=False):
            box.delete_container()

    cluster.transport.before = vanish
    with pytest.raises(StoreError, match="ContainerNotFound") as raised:
        landing(cluster)
    assert raised.value.exit_code == 5
    assert cluster.store.create(None)
    cluster.transport.before = lambda line: None
    assert landing(cluster).complete
    assert landed(cluster) == expected
    assert read_manifest(cluster.store, RUN) is not None
