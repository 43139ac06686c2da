"""gs://: nodes store objects themselves, with a right to that alone; what is refused is told."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import google.auth as google_auth
import pytest
from google.api_core.exceptions import Forbidden
from google.auth import credentials as google_credentials
from google.auth import downscoped
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.oauth2.credentials import Credentials

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.artifacts.uploads import Upload, UploadResult, revealed, upload_from_node
from cloudtrain.core.errors import CredentialsError, PermissionsError, StoreError
from cloudtrain.core.presign import PresignedUpload
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.shell import Secret
from cloudtrain.identities.google import SCOPE
from cloudtrain.node.listing import File
from cloudtrain.node.unpacker import Stream
from cloudtrain.stores import StoreWishes, open_store
from cloudtrain.stores.data import open_data
from cloudtrain.stores.presign import gs as presign
from cloudtrain.stores.presign.gs import SPARE, DownscopedTokens
from tests.standins.serve import serving
from tests.standins.stores import KINDS
from tests.support.gcs_front import Call, Fault, Front, Google, front
from tests.support.landing_parts import RUN, Cluster, FolderTransport, node
from tests.support.ports import free_ports

BOTH = ("gs", "gs by others")
WEEK = 7 * 86400.0


@pytest.fixture(scope="module", params=BOTH)
def emulator(request: pytest.FixtureRequest) -> Iterator[str]:
    with KINDS[request.param]() as place:
        yield place.environment["STORAGE_EMULATOR_HOST"]


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """The one of them that refuses a wrong MD5."""
    with KINDS["gs"]() as place:
        yield place.environment["STORAGE_EMULATOR_HOST"]


@dataclass
class Place:
    """A store in a bucket that its own SDK looks into too, and a node with files."""

    front: Front
    store: ArtifactStore
    prefix: str
    transport: FolderTransport
    work: Path

    def put(self, name: str, data: bytes) -> bytes:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def send(self, *names: str) -> UploadResult:
        sizes = {name: (self.work / name).stat().st_size for name in names}
        due = {f"run/chief0/{name}": File(name, name, size, "") for name, size in sizes.items()}
        with ThreadPoolExecutor(4) as pool:
            upload = Upload(transport=self.transport, store=self.store, pool=pool)
            return upload_from_node(node("chief0"), "task/work", due, upload)

    def held(self) -> dict[str, bytes]:
        """Below the task's folder, as Google's SDK reads it."""
        start = f"{self.prefix}/run/chief0/"
        bucket = sdk(self.front.upstream).bucket("bucket")
        names = [blob.name for blob in bucket.list_blobs(prefix=start)]
        return {name[len(start) :]: bucket.blob(name).download_as_bytes() for name in names}


def sdk(url: str) -> Any:
    return storage.Client(
        project="test-project",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": url},
    )


def placed(one: Front, folder: Path, endpoint: str | None = None) -> Place:
    prefix = f"a/{uuid.uuid4().hex}"
    store = open_store(f"gs://bucket/{prefix}", endpoint=endpoint)
    transport = FolderTransport(folder / "nodes")
    work = folder / "nodes/mnist-chief0/task/work"
    work.mkdir(parents=True)
    return Place(one, store, prefix, transport, work)


@pytest.fixture
def place(emulator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Nobody in particular calls, as with STORAGE_EMULATOR_HOST."""
    with front(emulator) as one:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", one.url)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test-project")
        yield placed(one, tmp_path)


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """A service account's key in the environment, and Google's token services."""
    # google-auth asks iamcredentials.googleapis.com in a thread; nothing turns that off.
    if asks := getattr(google_credentials, "CredentialsWithRegionalAccessBoundary", None):
        lookup = "_is_regional_access_boundary_lookup_required"
        monkeypatch.setattr(asks, lookup, lambda _: False)
    told = Google()
    with serving(told) as url:
        key = told.authority.service_account(tmp_path, url, "test-project")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.setattr(downscoped, "_STS_TOKEN_URL_PATTERN", f"{url}/v1/token")
        yield told


@pytest.fixture
def owned(strict: str, google: Google, tmp_path: Path) -> Iterator[Place]:
    """As an account's own bucket is: who calls is asked."""
    with front(strict, google) as one:
        yield placed(one, tmp_path, endpoint=one.url)


# ── What a node stores ───────────────────────────────────────────────────────

NAMES = [
    "empty",
    "small",
    "a b/ü+%?#&=",
    "{md5} {block}",
    "quo'te\"d",
    os.fsdecode(b"\xff"),
    "new\nline",
]


def test_a_node_stores_small_files_in_one_request_each(place: Place) -> None:
    data = {name: place.put(name, name.encode("utf-8", "surrogateescape")) for name in NAMES}
    data["empty"] = place.put("empty", b"")
    data["any"] = place.put("any", bytes(range(256)) * 5000 + b"\r\n--\r\n")
    sent = place.send(*data)
    assert (sent.changed, sent.why) == (set(), None)
    assert {name: each.sha256 for name, each in sent.arrived.items()} == {
        name: hashlib.sha256(each).hexdigest() for name, each in data.items()
    }
    calls = [call for call in place.front.calls if call.is_upload]
    assert [call.method for call in calls] == ["POST"] * len(data)
    assert not any("Authorization" in call.headers for call in place.front.calls)
    listed = {found.path: found.md5 for found in place.store.list("run/")}
    assert listed == {each.path: each.md5 for each in sent.arrived.values()}
    assert sorted(place.held().values()) == sorted(data.values())


def test_a_node_stores_a_large_file_in_pieces_of_one_session(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = 32 << 20
    monkeypatch.setattr(presign, "CHUNK", piece)
    data = place.put("large", os.urandom(1 << 20) * 40 + b"tail")
    sent = place.send("large")
    assert (sent.why, sent.arrived["large"].md5) == (None, hashlib.md5(data).hexdigest())
    begins, *pieces = [call for call in place.front.calls if call.is_upload]
    assert (begins.method, [len(call.body) for call in pieces]) == (
        "POST",
        [piece, len(data) - piece],
    )
    assert pieces[-1].headers["X-Goog-Hash"] == f"md5={b64(data)}"
    assert place.held() == {"large": data}


@pytest.mark.parametrize("size", [0, 5, 1 << 18, 2 << 20])
def test_a_file_of_unknown_size_is_a_session_too(place: Place, size: int) -> None:
    """It is good for a week: what a node stores when nobody is here any more."""
    upload = place.store.presigner.sign_upload("run/chief0/x", None, expires_in=WEEK)
    assert upload is not None
    assert upload.resumable
    data = place.put("x", os.urandom(size))
    place.store.presigner.sign_upload = lambda path, size, *, expires_in: upload  # type: ignore[method-assign]
    assert place.send("x").why is None
    assert place.held() == {"x": data}


def test_a_session_that_names_another_address_is_reached_at_ours(place: Place) -> None:
    place.front.names_itself = False
    upload = place.store.presigner.sign_upload("run/chief0/x", None, expires_in=WEEK)
    assert upload is not None
    assert upload.requests[0].url.reveal().startswith(f"{place.front.url}/upload/")
    assert str(upload.requests[0].url) == "***"


def test_what_is_stored_again_takes_the_place_of_the_old(place: Place) -> None:
    for data in (b"a longer first one", b"second"):
        place.put("x", data)
        assert place.send("x").why is None
    assert place.held() == {"x": b"second"}


# ── What goes wrong on the way ───────────────────────────────────────────────


@pytest.mark.sweep(6)
@pytest.mark.parametrize("fault", [429, 500, 503, "reset", "half", "after"])
@pytest.mark.parametrize("size", [1000, 2 << 20])
def test_what_passes_is_waited_for(place: Place, fault: int | str, size: int) -> None:
    place.front.fault = once(lambda call: call.sends, fault)
    data = place.put("x", os.urandom(size))
    assert place.send("x").why is None
    assert place.held() == {"x": data}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """A piece of a session, so that files of a few MB have several."""
    monkeypatch.setattr(presign, "SMALL", 1 << 18)
    monkeypatch.setattr(presign, "CHUNK", 1 << 20)
    return 1 << 20


@pytest.mark.parametrize("fault", [429, 503, "reset", "half"])
def test_an_upload_goes_on_where_it_broke(
    strict_place: Place, short: int, fault: int | str
) -> None:
    place, size = strict_place, 2 * short + 4
    place.front.fault = once(lambda call: content_range(call).startswith(f"bytes {short}-"), fault)
    data = place.put("large", os.urandom(size))
    assert place.send("large").why is None
    assert place.held() == {"large": data}
    assert [content_range(call) for call in place.front.sent] == [
        f"bytes 0-{short - 1}/{size}",
        f"bytes {short}-{2 * short - 1}/{size}",
        f"bytes */{size}",
        f"bytes {short}-{2 * short - 1}/{size}",
        f"bytes {2 * short}-{size - 1}/{size}",
    ]


def test_what_arrived_before_it_broke_is_not_sent_again(strict_place: Place, short: int) -> None:
    place, size = strict_place, short + 4
    place.front.fault = once(lambda call: content_range(call).startswith("bytes 0-"), "after")
    data = place.put("large", os.urandom(size))
    assert place.send("large").why is None
    assert place.held() == {"large": data}
    assert [content_range(call) for call in place.front.sent] == [
        f"bytes 0-{short - 1}/{size}",
        f"bytes */{size}",
        f"bytes {short}-{size - 1}/{size}",
    ]


def test_40_mb_arrive_over_a_connection_that_breaks_half_way(strict_place: Place) -> None:
    place = strict_place
    place.front.fault = once(lambda call: content_range(call).startswith("bytes 0-"), "half")
    data = place.put("large", os.urandom(1 << 20) * 40)
    assert place.send("large").why is None
    assert place.held() == {"large": data}


def test_a_server_that_takes_the_question_for_the_end_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    """It has half of the file then, under the whole one's name; this machine puts that right."""
    with (
        KINDS["gs by others"]() as server,
        front(server.environment["STORAGE_EMULATOR_HOST"]) as one,
    ):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", one.url)
        place = placed(one, tmp_path)
        one.fault = once(lambda call: content_range(call).startswith(f"bytes {short}-"), "reset")
        place.put("large", bytes(2 * short))
        sent = place.send("large")
    assert sent.arrived == {}
    assert "stored other bytes" in str(sent.why)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [1000, 200_000, 3 << 20])
def test_bytes_that_arrive_changed_are_not_taken_for_landed(place: Place, size: int) -> None:
    place.front.fault = lambda call: "corrupt" if call.sends else None
    place.put("x", bytes(size))
    sent = place.send("x")
    assert sent.arrived == {}
    assert sent.why


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("fault", "words"),
    [(403, "403 Forbidden: as it was told"), (404, "404"), (410, "410"), (412, "412")],
)
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [1000, 2 << 20])
def test_what_is_refused_is_left_with_the_services_words(
    place: Place, fault: int, words: str, size: int
) -> None:
    place.front.fault = lambda call: fault if call.sends else None
    place.put("x", bytes(size))
    sent = place.send("x")
    assert (sent.arrived, sent.changed) == ({}, set())
    assert words in str(sent.why)


def test_a_service_that_asks_for_time_is_given_it(place: Place) -> None:
    place.front.retry_after = "1"
    place.front.fault = once(lambda call: call.sends, 503)
    place.put("x", b"1")
    assert place.send("x").why is None
    assert len(place.front.sent) == 2


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_time(place: Place) -> None:
    def change(call: Call) -> None:
        if call.sends:
            place.put("x", b"2" * 100)

    place.put("x", b"1" * 100)
    place.front.fault = change
    sent = place.send("x")
    assert (sent.arrived, sent.changed) == ({}, {"x"})


# ── The right that a node gets ───────────────────────────────────────────────


def test_a_node_gets_a_token_that_makes_objects_of_its_task_alone(
    owned: Place, google: Google
) -> None:
    data = {name: owned.put(name, name.encode()) for name in ("x", "y", "z")}
    sent = owned.send(*data)
    assert (sent.why, owned.held()) == (None, data)
    assert google.asked == [
        {
            "accessBoundaryRules": [
                {
                    "availablePermissions": ["inRole:roles/storage.objectCreator"],
                    "availableResource": "//storage.googleapis.com/projects/_/buckets/bucket",
                    "availabilityCondition": {
                        "expression": 'resource.name.startsWith("projects/_/buckets/bucket/objects/'
                        f'{owned.prefix}/run/chief0/")'
                    },
                }
            ]
        }
    ]
    (token,) = google.scoped
    assert {call.headers["Authorization"] for call in owned.front.sent} == {f"Bearer {token}"}


def test_a_token_of_one_task_is_no_right_to_anothers_objects_nor_to_change_its_own(
    owned: Place, google: Google
) -> None:
    owned.put("x", b"1")
    assert owned.send("x").why is None
    (token,) = google.scoped
    theirs = Credentials(token)
    url = owned.front.url
    bucket = storage.Client("none", theirs, client_options={"api_endpoint": url}).bucket("bucket")
    for key in ("run/worker0/x", "run/chief0", "other", "run/chief0/x"):
        with pytest.raises(Forbidden):
            bucket.blob(f"{owned.prefix}/{key}").upload_from_string(b"2")
    with pytest.raises(Forbidden):
        bucket.blob(f"{owned.prefix}/run/chief0/x").delete()
    assert owned.held() == {"x": b"1"}


def test_a_large_file_takes_no_token_to_its_node(owned: Place, google: Google, short: int) -> None:
    data = owned.put("large", os.urandom(2 * short))
    assert owned.send("large").why is None
    assert owned.held() == {"large": data}
    assert google.asked == []
    assert not any("Authorization" in call.headers for call in owned.front.sent)


@pytest.mark.parametrize("why", ["STS refuses", "the bucket takes none", "STS is away", "expires"])
def test_without_a_token_each_file_gets_a_session_of_its_own(
    owned: Place, google: Google, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    google.refuses = why == "STS refuses"
    owned.front.takes_scoped = why != "the bucket takes none"
    if why == "expires":
        google.lifetime = SPARE - 1
    if why == "STS is away":
        address = f"http://127.0.0.1:{free_ports(1)}/v1/token"
        monkeypatch.setattr(downscoped, "_STS_TOKEN_URL_PATTERN", address)
    data = {name: owned.put(name, name.encode()) for name in ("x", "y")}
    assert owned.send(*data).why is None
    assert owned.held() == data
    assert len(google.asked) <= 1
    assert not any("Authorization" in call.headers for call in owned.front.sent)


def test_what_its_token_may_not_replace_comes_another_way(owned: Place) -> None:
    owned.put("x", b"old")
    assert owned.send("x").why is None
    owned.put("x", b"new")
    sent = owned.send("x")
    assert sent.arrived == {}
    assert "storage.objects.delete" in str(sent.why)


def test_a_token_is_used_until_shortly_before_its_end(google: Google) -> None:
    now, opened = [time.time()], list[str]()
    credentials, _ = google_auth.default(scopes=(SCOPE,))
    rights = DownscopedTokens(
        credentials, "bucket", lambda _, key: opened.append(key), lambda: now[0]
    )
    first = rights.token("a/b/")
    assert first is not None
    now[0] += 3600 - SPARE - 60
    assert rights.token("a/b/") is first
    assert rights.token("a/c/") is not None
    now[0] += 120
    google.lifetime = 7200
    second = rights.token("a/b/")
    assert second is not None
    assert second.reveal() != first.reveal()
    assert [key.partition(".cloudtrain-")[0] for key in opened] == ["a/b/", "a/c/", "a/b/"]
    assert repr(first) == "***"


# ── A run's landing ──────────────────────────────────────────────────────────


def landed(cluster: Cluster, store: ArtifactStore) -> None:
    cluster.land(store=store)


@pytest.mark.usefixtures("short")
def test_a_run_of_three_tasks_lands_from_their_nodes(
    owned: Place, google: Google, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "cluster", workers=2)
    wanted = {}
    for task in cluster.nodes:
        for name, data in (("a", b"1"), ("deep/er/{md5}", b""), ("large", os.urandom(3 << 20))):
            cluster.write(task, f"output/{name}", data)
            wanted[f"{task}/output/{name}"] = data
    landed(cluster, owned.store)
    manifest = read_manifest(owned.store, RUN)
    assert manifest is not None
    assert manifest.complete
    assert {path: each.md5 for path, each in manifest.files.items()} == {
        path: hashlib.md5(data).hexdigest() for path, data in wanted.items()
    }
    bucket = sdk(owned.front.upstream).bucket("bucket")
    for path, data in wanted.items():
        assert bucket.blob(f"{owned.prefix}/{RUN}/{path}").download_as_bytes() == data
    assert len(google.scoped) == 3
    assert cluster.console.said == []
    assert not [line for line in cluster.transport.commands if "tar --create" in line]

    cluster.write("worker1", "output/a", b"newer")  # a second landing, put beside and brought home
    landed(cluster, owned.store)
    blob = bucket.blob(f"{owned.prefix}/{RUN}/worker1/output/a")
    assert blob.download_as_bytes() == b"newer"
    assert not [f.path for f in owned.store.list(f"{RUN}/again/")]
    assert cluster.console.said == []


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fault", [403, 404, "corrupt", "away"])
def test_what_a_node_cannot_store_comes_through_this_machine_and_the_reason_is_said(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int | str
) -> None:
    cluster = Cluster(tmp_path / "cluster", workers=0)
    cluster.write("chief0", "output/x", bytes(9999))
    if fault == "away":
        refuse_from_nodes(place, monkeypatch)
    else:
        place.front.fault = lambda call: fault if "User-Agent" not in call.headers else None
    landed(cluster, place.store)
    bucket = sdk(place.front.upstream).bucket("bucket")
    blob = bucket.blob(f"{place.prefix}/{RUN}/chief0/output/x")
    assert blob.download_as_bytes() == bytes(9999)
    (said,) = cluster.console.said
    assert "uploading 1 files through this machine" in said


def refuse_from_nodes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that this machine reaches and a node does not."""
    upload = place.store.presigner.sign_upload

    def elsewhere(path: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        made = upload(path, size, expires_in=expires_in)
        assert made is not None
        url = made.requests[0].url.reveal().replace(f":{place.front.port}/", ":9/")
        return replace(made, requests=(replace(made.requests[0], url=Secret(url)),))

    monkeypatch.setattr(place.store.presigner, "sign_upload", elsewhere)


def test_a_bucket_that_is_gone_keeps_a_run_from_landing(place: Place, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", workers=0)
    cluster.write("chief0", "output/x", b"1")
    place.front.fault = lambda call: 404 if call.is_upload else None
    with pytest.raises(StoreError, match="404 as it was told"):
        landed(cluster, place.store)


# ── What this machine does itself ────────────────────────────────────────────


def test_a_bucket_is_made_where_there_is_none_and_for_its_owner_alone(place: Place) -> None:
    name = f"bucket-{uuid.uuid4().hex}"
    store = open_store(f"gs://{name}/x")
    assert store.create("us-east4-c", {"team": "vision"})
    assert not store.create("us-east4-c")
    is_new = "?project=test-project"
    (made,) = [call for call in place.front.calls if call.method == "POST" and is_new in call.path]
    body = json.loads(made.body)
    assert (body["name"], body["location"]) == (name, "us-east4")
    assert body["labels"] == {"team": "vision"}
    rules = body["iamConfiguration"]
    assert rules["uniformBucketLevelAccess"]["enabled"]
    assert rules["publicAccessPrevention"] == "enforced"
    store.check()


def test_a_bucket_of_no_project_is_not_made(owned: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_auth, "default", lambda **_: (AnonymousCredentials(), None))
    owned.front.fault = lambda call: 404
    with pytest.raises(StoreError, match="no project is set") as raised:
        open_store("gs://new/x", endpoint=owned.front.url).create("us-east4-c")
    assert "GOOGLE_CLOUD_PROJECT" in str(raised.value.hint)


@pytest.mark.parametrize("status", [403, 409])
def test_a_bucket_that_is_somebodys_is_not_made(place: Place, status: int) -> None:
    name = f"bucket-{uuid.uuid4().hex}"
    place.front.fault = lambda call: (
        status if call.method == ("GET" if status == 403 else "POST") else None
    )
    assert not open_store(f"gs://{name}/x").create(None)


def test_what_is_not_there_is_deleted_without_an_error(place: Place) -> None:
    place.store.upload("x", [b"1"])
    place.store.delete("x")
    place.store.delete("x")
    assert list(place.store.list()) == []


def test_a_copy_goes_on_until_it_is_whole(place: Place) -> None:
    """https://cloud.google.com/storage/docs/json_api/v1/objects/rewrite"""
    place.store.upload("a b", [b"1" * 1000])
    asked: list[str] = []

    def rewrite(call: Call) -> Fault:
        if "/rewriteTo/" not in call.path:
            return None
        asked.append(parse_qs(urlsplit(call.path).query).get("rewriteToken", [""])[0])
        done = {"done": len(asked) == 3, "totalBytesRewritten": "1", "objectSize": "3"}
        return done | ({"resource": {}} if len(asked) == 3 else {"rewriteToken": "go-on"})

    place.front.fault = rewrite
    place.store.copy("a b", "c")
    assert asked == ["", "go-on", "go-on"]
    place.front.fault = lambda call: None
    place.store.copy("a b", "d")
    assert b"".join(place.store.download("d")) == b"1" * 1000
    md5 = {found.path: found.md5 for found in place.store.list()}
    assert md5["d"] == md5["a b"] == hashlib.md5(b"1" * 1000).hexdigest()


def test_an_object_that_was_composed_has_no_md5(place: Place) -> None:
    page = {"items": [{"name": f"{place.prefix}/x", "size": "7", "crc32c": "AAAAAA=="}]}
    place.front.fault = lambda call: (
        page if call.path.startswith("/storage/v1/b/bucket/o?") else None
    )
    assert [(f.path, f.size, f.md5) for f in place.store.list()] == [("x", 7, "")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud.storage import retry

    short = retry.DEFAULT_RETRY.with_deadline(0.3)
    monkeypatch.setattr(retry, "DEFAULT_RETRY", short)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "kind", "words", "way_out"),
    [
        (401, CredentialsError, "cannot be refreshed", "gcloud auth"),
        (403, PermissionsError, "403 as it was told", "roles/storage.objectUser"),
        (404, StoreError, "404 as it was told", "buckets create"),
        (400, StoreError, "400 as it was told", "None"),
        (412, StoreError, "412 as it was told", "None"),
        (429, StoreError, "429 as it was told", "run the command again"),
        (503, StoreError, "503 as it was told", "run the command again"),
        ("reset", StoreError, "Connection", "run the command again"),
        ("corrupt", StoreError, "hash|hecksum", "None|run the command again"),
    ],
)
@pytest.mark.parametrize("size", [10, 9 << 20])
def test_what_the_service_refuses_is_told_in_its_words_without_a_sessions_address(
    strict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: int | str,
    kind: type[Exception],
    words: str,
    way_out: str,
    size: int,
) -> None:
    with front(strict) as one:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", one.url)
        place = placed(one, tmp_path)
        one.fault = lambda call: fault if call.sends else None
        with pytest.raises(kind, match=words) as raised:
            place.store.upload("x", [bytes(size)])
    assert re.search(way_out, str(raised.value.hint))  # type: ignore[attr-defined]
    assert "upload_id=" not in str(raised.value)
    assert f"{place.prefix}: x: " in str(raised.value)


# ── What Google documents of a session ───────────────────────────────────────


# https://cloud.google.com/storage/docs/performing-resumable-uploads
@pytest.mark.parametrize("fault", [500, 502, 504, 408, 429])
def test_after_an_error_it_is_asked_how_far_it_came(
    strict_place: Place, short: int, fault: int
) -> None:
    strict_place.front.fault = once(lambda call: content_range(call).startswith("bytes 0-"), fault)
    data = strict_place.put("x", bytes(short))
    assert strict_place.send("x").why is None
    assert strict_place.held() == {"x": data}
    size = len(data)
    ranges = [content_range(call) for call in strict_place.front.sent]
    assert ranges == [f"bytes 0-{size - 1}/{size}", f"bytes */{size}", f"bytes 0-{size - 1}/{size}"]


def test_no_range_means_that_nothing_has_arrived(strict_place: Place, short: int) -> None:
    strict_place.front.fault = once(lambda call: call.method == "PUT", 308)
    data = strict_place.put("x", bytes(2 * short))
    assert strict_place.send("x").why is None
    assert strict_place.held() == {"x": data}


def test_a_server_that_keeps_nothing_is_left_after_some_tries(
    strict_place: Place, short: int
) -> None:
    strict_place.front.fault = lambda call: 308 if call.method == "PUT" else None
    strict_place.put("x", bytes(2 * short))
    sent = strict_place.send("x")
    assert sent.arrived == {}
    assert sent.why == f"the service keeps only 0 of {2 * short} bytes"
    assert len(strict_place.front.sent) <= 10


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_is_gone_is_not_waited_for(
    strict_place: Place, short: int, status: int
) -> None:
    place = strict_place
    place.front.fault = lambda call: (
        status if content_range(call).startswith(f"bytes {short}-") else None
    )
    place.put("x", bytes(2 * short))
    assert str(status) in str(place.send("x").why)
    assert len(place.front.sent) == 2


def b64(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def content_range(call: Call) -> str:
    return str(call.headers["Content-Range"] or "")


def once(is_meant: Any, fault: int | str) -> Any:
    done: list[Call] = []

    def decide(call: Call) -> int | str | None:
        if done or not is_meant(call):
            return None
        done.append(call)
        return fault

    return decide


@pytest.fixture
def strict_place(strict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with front(strict) as one:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", one.url)
        yield placed(one, tmp_path)


# ── What a node reads ────────────────────────────────────────────────────────


def test_a_node_may_read_one_object_and_do_nothing_else(owned: Place, google: Google) -> None:
    owned.put("x", b"one")
    owned.put("y", b"two")
    assert owned.send("x", "y").why is None
    request = owned.store.presigner.sign_download("run/chief0/x", expires_in=60.0)
    assert request is not None
    told = revealed(request)
    assert Stream(told, 3).read(3) == b"one"
    (token,) = google.readers
    assert told["headers"] == {"Authorization": f"Bearer {token}"}
    theirs = Credentials(token)
    url = owned.front.url
    bucket = storage.Client("none", theirs, client_options={"api_endpoint": url}).bucket("bucket")
    mine = bucket.blob(f"{owned.prefix}/run/chief0/x")
    for act in (
        bucket.blob(f"{owned.prefix}/run/chief0/y").download_as_bytes,
        lambda: list(bucket.list_blobs(prefix=owned.prefix)),
        lambda: mine.upload_from_string(b"2"),
        mine.delete,
    ):
        with pytest.raises(Forbidden):
            act()
    assert owned.held() == {"x": b"one", "y": b"two"}


def test_where_google_gives_no_token_no_node_reads(owned: Place, google: Google) -> None:
    google.refuses = True
    assert owned.store.presigner.sign_download("run/chief0/x", expires_in=60.0) is None


def test_one_token_reads_a_dataset_and_nothing_beside_it(owned: Place, google: Google) -> None:
    owned.put("d/x", b"one")
    owned.put("d/y", b"two")
    owned.put("d-old/z", b"old")
    assert owned.send("d/x", "d/y", "d-old/z").why is None
    google.asked.clear()
    uri = f"gs://bucket/{owned.prefix}/run/chief0/d"
    data = open_data(uri, endpoint=owned.front.url)
    found = {each.key: each for each in data.objects()}
    requests = [data.sign(key, found[key].version, expires_in=60.0) for key in sorted(found)]
    told = [revealed(request) for request in requests if request is not None]
    assert [Stream(each, 3).read(3) for each in told] == [b"one", b"two"]
    assert len(google.asked) == 1
    (token,) = google.readers
    theirs = Credentials(token)
    client = storage.Client("none", theirs, client_options={"api_endpoint": owned.front.url})
    bucket = client.bucket("bucket")
    for act in (
        bucket.blob(f"{owned.prefix}/run/chief0/d-old/z").download_as_bytes,
        lambda: list(bucket.list_blobs(prefix=owned.prefix)),
        lambda: bucket.blob(f"{owned.prefix}/run/chief0/d/x").upload_from_string(b"2"),
    ):
        with pytest.raises(Forbidden):
            act()


def test_data_whose_reader_pays_is_read_here_and_by_nodes(
    owned: Place, google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token, too, is tried in the payer's name."""
    owned.put("d/x", b"one")
    assert owned.send("d/x").why is None
    owned.front.requester_pays = "paying-project"
    uri, url = f"gs://bucket/{owned.prefix}/run/chief0/d", owned.front.url
    with pytest.raises(StoreError, match="requester pays") as raised:
        list(open_data(uri, endpoint=url).objects())
    assert "requester_pays: true" in str(raised.value.hint)
    wishes = StoreWishes(requester_pays=True)
    paid = open_data(uri, endpoint=url, project="paying-project", wishes=wishes)
    (one,) = paid.objects()
    assert b"".join(paid.read(one.key, one.version)) == b"one"
    request = paid.sign(one.key, one.version, expires_in=60.0)
    assert request is not None
    assert Stream(revealed(request), 3).read(3) == b"one"
    google.refuses = True
    paid = open_data(uri, endpoint=url, project="paying-project", wishes=wishes)
    signed = paid.sign(one.key, one.version, expires_in=60.0)
    assert signed is not None
    query = parse_qs(urlsplit(signed.url.reveal()).query)
    assert query["userProject"] == ["paying-project"]


def test_where_google_gives_no_token_a_service_accounts_key_signs(
    owned: Place, google: Google
) -> None:
    google.refuses = True
    uri = f"gs://bucket/{owned.prefix}/d"
    request = open_data(uri, endpoint=owned.front.url).sign(
        f"{owned.prefix}/d/x", "17", expires_in=60.0
    )
    assert request is not None
    query = parse_qs(urlsplit(request.url.reveal()).query)
    assert (query["generation"], query["X-Goog-Expires"]) == (["17"], ["60"])
    assert query["X-Goog-Signature"]
    assert request.headers == {"Accept-Encoding": "gzip"}
