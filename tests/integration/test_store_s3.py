"""S3: what nodes store themselves arrives whole, verified by the server, whatever breaks."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.artifacts.uploads import Upload, UploadResult, upload_from_node
from cloudtrain.core.errors import (
    CloudtrainError,
    CredentialsError,
    NameTakenError,
    NoBucketError,
    PermissionsError,
    StoreAway,
    StoreError,
)
from cloudtrain.core.model import Node
from cloudtrain.core.presign import PresignedUpload
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.shell import Secret
from cloudtrain.node.listing import File
from cloudtrain.stores import StoreWishes, open_store
from cloudtrain.stores.data import open_data
from cloudtrain.stores.presign import s3 as presign
from tests.standins.faults import Fault, Faults
from tests.standins.s3_door import S3Door
from tests.standins.serve import serving
from tests.standins.stores import strict_s3
from tests.support.landing_parts import RUN, Cluster, FolderTransport, node
from tests.support.web_store import until

PART = 5 << 20
"""The least that S3 takes, so that a large file is soon sent."""
LARGE = 2 * PART + (2 << 20)


@dataclass
class World:
    door: S3Door
    faults: Faults
    client: Any
    """Not through the door: what it asks is not counted, and never goes wrong."""

    def calls(self, word: str) -> list[str]:
        return [call["action"] for call in self.faults.calls() if word in call["action"]]

    def uploads(self, store: ArtifactStore) -> list[str]:
        """Keys of what is not ended, under the store's prefix."""
        prefix = store.uri.partition("bucket/")[2] + "/"
        told = self.client.list_multipart_uploads(Bucket="bucket", Prefix=prefix)
        return [each["Key"].removeprefix(prefix) for each in told.get("Uploads", [])]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[World, dict[str, str]]]:
    import boto3

    with strict_s3() as (port, environment):
        door = S3Door(port)
        faults = Faults(door)
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket="bucket")
        with serving(faults) as url:
            yield World(door, faults, client), {**environment, "AWS_ENDPOINT_URL_S3": url}


@pytest.fixture
def world(
    server: tuple[World, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[World]:
    world, environment = server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(presign, "PART", PART)
    monkeypatch.setattr(presign, "SMALL", PART)
    world.faults.forget()
    yield world
    world.faults.disarm()
    world.door.corrupt, world.door.has_own_key = 0, False
    world.door.demanded, world.door.requester_pays = {}, False


def new_store() -> ArtifactStore:
    return open_store(f"s3://bucket/{uuid.uuid4().hex}")


class Sender:
    """A node with a work folder, and a store that it reaches."""

    def __init__(self, folder: Path) -> None:
        self.node: Node = node("chief0")
        self.transport = FolderTransport(folder / "nodes")
        self.work = folder / "nodes" / self.node.name / "task/work"
        self.work.mkdir(parents=True)
        self.store = new_store()

    def put(self, name: str, data: bytes) -> bytes:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def send(self, *names: str) -> UploadResult:
        sizes = {name: (self.work / name).stat().st_size for name in names}
        due = {f"run/{name}": File(name, name, size, "") for name, size in sizes.items()}
        with ThreadPoolExecutor(4) as pool:
            upload = Upload(transport=self.transport, store=self.store, pool=pool)
            return upload_from_node(self.node, "task/work", due, upload)

    def stored(self, name: str) -> bytes:
        return b"".join(self.store.download(f"run/{name}"))


@pytest.fixture
def sender(world: World, tmp_path: Path) -> Sender:
    return Sender(tmp_path)


# ── What a node stores itself ────────────────────────────────────────────────


def test_a_node_stores_files_of_any_name_and_s3_tells_their_md5(
    world: World, sender: Sender
) -> None:
    names = ["empty", "a b/ü+%?#&=", "new\nline", "世界🙂", os.fsdecode(b"\xff"), "~!*'()"]
    data = {name: sender.put(name, name.encode("utf-8", "surrogateescape")) for name in names}
    data["empty"] = sender.put("empty", b"")
    sent = sender.send(*names)
    assert (sent.changed, sent.why) == (set(), None)
    for name in names:
        assert sent.arrived[name].sha256 == hashlib.sha256(data[name]).hexdigest()
        assert sender.stored(name) == data[name]
    listed = {found.path: (found.size, found.md5) for found in sender.store.list("run/")}
    assert listed == {
        f"run/{name}": (len(data[name]), hashlib.md5(data[name]).hexdigest()) for name in names
    }


def test_a_large_file_goes_in_parts_and_leaves_no_upload(
    world: World, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sender.put("large", os.urandom(40 << 20))
    monkeypatch.setattr(presign, "PART", 10 << 20)
    sent = sender.send("large")
    assert sent.why is None
    assert sent.arrived["large"].sha256 == hashlib.sha256(data).hexdigest()
    assert sender.stored("large") == data
    assert len(world.calls("partNumber=")) == 4
    assert world.uploads(sender.store) == []
    assert [found.md5 for found in sender.store.list("run/large")] == [""]


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_time(
    world: World, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.put("x", b"1" * 100)
    pass_on = S3Door.__call__

    def change(door: S3Door, environ: Any, start_response: Any) -> Any:
        sender.put("x", b"2" * 100)
        return pass_on(door, environ, start_response)

    monkeypatch.setattr(S3Door, "__call__", change)
    sent = sender.send("x")
    assert (sent.arrived, sent.changed) == ({}, {"x"})


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_does_not_arrive_as_it_was_sent_is_refused_by_s3(
    world: World, sender: Sender, size: int
) -> None:
    sender.put("x", os.urandom(size))
    upload = sender.store.presigner.sign_upload
    sender.store.presigner.sign_upload = lambda *a, **k: _then(upload(*a, **k), world)  # type: ignore[method-assign]
    sent = sender.send("x")
    assert sent.arrived == {}
    assert "BadDigest" in (sent.why or "")
    assert list(sender.store.list("run/")) == []


def _then(upload: PresignedUpload | None, world: World) -> PresignedUpload | None:
    world.door.corrupt = 2  # a small file that is refused is sent once more
    return upload


def test_a_small_file_that_arrives_otherwise_once_is_sent_again(
    world: World, sender: Sender
) -> None:
    data = sender.put("x", os.urandom(1000))
    world.door.corrupt = 1
    assert sender.send("x").arrived["x"].sha256 == hashlib.sha256(data).hexdigest()
    assert sender.stored("x") == data


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="answer", action="PUT *", status=503, code="SlowDown", retry_after=0),
        Fault(kind="answer", action="PUT *", status=500, code="InternalError", times=2),
        Fault(kind="reset", action="PUT *"),
        Fault(kind="reset", action="PUT *", after=True),
        Fault(kind="answer", action="POST *uploadId=*", status=503, code="SlowDown"),
        Fault(kind="reset", action="POST *uploadId=*", after=True),
    ],
    ids=["slow down", "500 twice", "reset", "reset after", "end: slow down", "end: reset after"],
)
def test_what_passes_is_waited_for(world: World, sender: Sender, fault: Fault) -> None:
    data = sender.put("x", os.urandom(PART + 1000))
    world.faults.arm(fault)
    sent = sender.send("x")
    assert sent.why is None
    assert set(sent.arrived) == {"x"}
    assert sender.stored("x") == data
    assert world.uploads(sender.store) == []


def test_what_is_refused_comes_the_other_way_and_its_upload_is_ended(
    world: World, tmp_path: Path
) -> None:
    cluster = landing_cluster(tmp_path, tasks=1)
    data = os.urandom(PART + 1000)
    cluster.write("chief0", "output/large", data)
    world.faults.arm(Fault(kind="answer", action="PUT *partNumber=2*", status=403, code="No"))
    landing(cluster)
    assert b"".join(cluster.store.download(f"{RUN}/chief0/output/large")) == data
    assert world.uploads(cluster.store) == []
    assert any("files through this machine: 403" in line for line in cluster.console.said)


def test_a_request_that_expired_comes_the_other_way(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.artifacts.uploads.LASTS", 1.0)
    cluster = landing_cluster(tmp_path, tasks=1)
    cluster.write("chief0", "output/x", "1")
    world.faults.arm(Fault(kind="delay", action="PUT *output/x*", seconds=2.5))
    landing(cluster)
    assert b"".join(cluster.store.download(f"{RUN}/chief0/output/x")) == b"1"
    assert any("Request has expired" in line for line in cluster.console.said)


def test_a_node_that_does_not_reach_s3_sends_its_files_here_and_that_is_said(
    world: World, tmp_path: Path
) -> None:
    cluster = landing_cluster(tmp_path, tasks=1)
    cluster.write("chief0", "output/x", "1")
    signing = cluster.store.presigner.sign_upload

    def elsewhere(path: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        upload = signing(path, size, expires_in=expires_in)
        assert upload is not None
        url = upload.requests[0].url.reveal()
        moved = Secret(url.replace(urlsplit(url).netloc, f"127.0.0.1:{closed}"))
        return replace(upload, requests=(replace(upload.requests[0], url=moved),))

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        closed = one.getsockname()[1]
        cluster.store.presigner.sign_upload = elsewhere  # type: ignore[method-assign]
        landing(cluster)
    assert b"".join(cluster.store.download(f"{RUN}/chief0/output/x")) == b"1"
    assert any("Connection refused" in line for line in cluster.console.said)


# ── Going on ─────────────────────────────────────────────────────────────────


def break_off(world: World, sender: Sender, name: str, parts: int) -> None:
    """The node's sender is killed when so many parts have arrived."""
    world.faults.arm(Fault(kind="silence", action="PUT *partNumber=*", skip=parts, times=99))

    def kill() -> None:
        until(lambda: _answered(world) >= parts)
        os.killpg(sender.transport.processes[-1].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    sent = sender.send(name)
    killer.join()
    assert sent.arrived == {}
    world.faults.disarm()
    world.faults.forget()


def _answered(world: World) -> int:
    calls = world.faults.calls()
    return len([c for c in calls if "partNumber=" in c["action"] and c["status"] == 200])


def test_after_a_kill_only_the_missing_parts_are_sent(world: World, sender: Sender) -> None:
    data = sender.put("large", os.urandom(LARGE))
    break_off(world, sender, "large", parts=2)
    again = Sender.__new__(Sender)
    again.__dict__ |= {**sender.__dict__, "store": open_store(sender.store.uri)}
    sent = again.send("large")
    assert set(sent.arrived) == {"large"}
    assert len(world.calls("partNumber=")) == 1
    assert again.stored("large") == data
    assert world.uploads(sender.store) == []


def test_equal_parts_are_not_taken_for_each_other(world: World, sender: Sender) -> None:
    data = sender.put("zeros", bytes(3 * PART))
    break_off(world, sender, "zeros", parts=1)
    sent = sender.send("zeros")
    assert set(sent.arrived) == {"zeros"}
    assert len(world.calls("partNumber=")) == 2
    assert sender.stored("zeros") == data


def test_parts_of_an_older_content_are_not_kept(world: World, sender: Sender) -> None:
    sender.put("large", os.urandom(LARGE))
    break_off(world, sender, "large", parts=2)
    data = sender.put("large", os.urandom(LARGE))
    assert set(sender.send("large").arrived) == {"large"}
    assert sender.stored("large") == data
    assert world.uploads(sender.store) == []


def test_an_upload_that_was_cut_otherwise_is_ended(world: World, sender: Sender) -> None:
    data = sender.put("large", os.urandom(LARGE))
    key = f"{sender.store.uri.partition('bucket/')[2]}/run/large"
    other = world.client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
    world.client.upload_part(
        Bucket="bucket", Key=key, UploadId=other, PartNumber=1, Body=b"x" * PART + b"y"
    )
    world.client.create_multipart_upload(Bucket="bucket", Key=f"{key}r")
    assert set(sender.send("large").arrived) == {"large"}
    assert sender.stored("large") == data
    assert world.uploads(sender.store) == ["run/larger"]


def test_a_check_ends_uploads_of_a_week_ago(
    world: World, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.put("large", os.urandom(LARGE))
    break_off(world, sender, "large", parts=1)
    sender.store.check()
    assert world.uploads(sender.store) == ["run/large"]
    monkeypatch.setattr("cloudtrain.stores.s3.UNFINISHED_DAYS", -1)
    sender.store.check()
    assert world.uploads(sender.store) == []


def test_without_the_right_to_list_uploads_a_new_one_is_begun(world: World, sender: Sender) -> None:
    data = sender.put("large", os.urandom(PART + 1))
    denied = {"status": 403, "code": "AccessDenied", "times": 99}
    world.faults.arm(Fault(kind="answer", action="GET *uploads*", **denied))  # type: ignore[arg-type]
    assert set(sender.send("large").arrived) == {"large"}
    assert sender.stored("large") == data


# ── Requests ─────────────────────────────────────────────────────────────────


def test_a_request_is_signed_for_the_host_alone_and_a_week_at_most(world: World) -> None:
    store = new_store()
    for size in (None, 5, 20 << 20):
        upload = store.presigner.sign_upload("x", size, expires_in=1e9)
        assert upload is not None
        for request in upload.requests:
            assert request.headers == {}
            query = parse_qs(urlsplit(request.url.reveal()).query)
            assert query["X-Amz-SignedHeaders"] == ["host"]
            assert query["X-Amz-Expires"] == ["604800"]
            assert not [name for name in query if "checksum" in name]


def test_requests_of_small_files_are_made_without_a_call(world: World) -> None:
    store = new_store()
    for number in range(20):
        store.presigner.sign_upload(f"{number}", 10, expires_in=60.0)
    assert [call["action"] for call in world.faults.calls()] == ["HEAD /bucket"]


def test_a_request_is_for_the_region_of_the_bucket(world: World) -> None:
    name = f"b{uuid.uuid4().hex}"
    assert open_store(f"s3://{name}").create("eu-west-1a")
    upload = open_store(f"s3://{name}/x").presigner.sign_upload("y", 1, expires_in=60.0)
    assert upload is not None
    assert "%2Feu-west-1%2Fs3%2F" in upload.requests[0].url.reveal()


def test_without_credentials_it_is_said_which_command_gives_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialsError) as raised:
        new_store().presigner.sign_upload("x", 1, expires_in=60.0)
    assert "aws configure" in str(raised.value.hint)


def test_credentials_that_come_later_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a machine whose metadata service failed once."""
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        store = new_store()
        with pytest.raises(CredentialsError, match="no AWS credentials"):
            store.upload("x", [b"1"])
    store.upload("x", [b"1"])
    assert b"".join(store.download("x")) == b"1"
    assert store.presigner.sign_upload("y", 1, expires_in=60.0).requests  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("wish", "demanded"),
    [
        ("AES256", {"x-amz-server-side-encryption": "AES256"}),
        (
            "aws:kms:alias/train",
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "alias/train",
            },
        ),
    ],
)
def test_a_bucket_that_demands_encryption_takes_every_upload(
    world: World, tmp_path: Path, wish: str, demanded: dict[str, str]
) -> None:
    """Of ours and of nodes, whole and in parts, copies and leases."""
    world.door.demanded = demanded
    with pytest.raises(PermissionsError) as raised:
        new_store().check()
    assert "artifacts.encryption" in str(raised.value.hint)
    sender = Sender(tmp_path)
    sender.store = store = open_store(sender.store.uri, wishes=StoreWishes(encryption=wish))
    store.check()
    data = sender.put("small", b"1" * 100), sender.put("large", os.urandom(PART + 12345))
    sent = sender.send("small", "large")
    assert set(sent.arrived) == {"small", "large"}, sent.why
    assert (sender.stored("small"), sender.stored("large")) == data
    store.upload("large", [os.urandom(9 << 20)])
    store.copy("large", "copied")
    assert store.swap("lease", b"mine", "").done
    told = world.client.head_object(Bucket="bucket", Key=f"{store.uri[12:]}/run/large")
    assert told["ServerSideEncryption"] == wish[:7]


def test_data_whose_reader_pays_is_read_here_and_by_nodes(world: World) -> None:
    world.client.put_object(Bucket="bucket", Key="paid/one", Body=b"1")
    world.door.requester_pays = True
    with pytest.raises(PermissionsError) as raised:
        list(open_data("s3://bucket/paid").objects())
    assert "requester_pays" in str(raised.value.hint)
    paid = open_data("s3://bucket/paid", wishes=StoreWishes(requester_pays=True))
    (one,) = paid.objects()
    assert b"".join(paid.read(one.key, one.version)) == b"1"
    signed = paid.sign(one.key, one.version, expires_in=60.0)
    assert signed is not None
    headers = {name: str(value) for name, value in signed.headers.items()}
    asked = urllib.request.Request(signed.url.reveal(), headers=headers)
    with urllib.request.urlopen(asked) as answer:
        assert answer.read() == b"1"


# ── Landing ──────────────────────────────────────────────────────────────────


def landing_cluster(folder: Path, tasks: int = 3) -> Cluster:
    cluster = Cluster(folder, workers=tasks - 1)
    cluster.store = new_store()  # type: ignore[assignment]
    return cluster


def landing(cluster: Cluster) -> Manifest:
    return cluster.land()


def left(cluster: Cluster) -> tuple[str, ...]:
    return cluster.unlanded()


def fill(cluster: Cluster) -> dict[str, bytes]:
    data = {
        f"{task}/output/{name}": content
        for task in cluster.nodes
        for name, content in {
            "model.pb": os.urandom(100_000),
            "empty": b"",
            "de ep/é": task.encode(),
        }.items()
    }
    data["worker1/output/large"] = os.urandom(PART + 12345)
    for path, content in data.items():
        task, _, name = path.partition("/")
        cluster.write(task, name, content)
    return data


def test_three_tasks_land_in_s3_by_their_nodes_own_hands(world: World, tmp_path: Path) -> None:
    cluster = landing_cluster(tmp_path)
    data = fill(cluster)
    manifest = landing(cluster)
    assert manifest.complete
    assert set(manifest.files) == set(data)
    for path, content in data.items():
        assert b"".join(cluster.store.download(f"{RUN}/{path}")) == content
    assert left(cluster) == ()
    assert cluster.console.said == []
    assert not any("tar --create" in line for line in cluster.transport.commands)
    text = json.loads(b"".join(cluster.store.download(f"{RUN}/manifest.json")))
    assert text["complete"] is True


@pytest.mark.parametrize("when", ["from the start", "since a while"])
def test_etags_that_are_no_md5s_hide_nothing_that_landed(
    world: World, tmp_path: Path, when: str
) -> None:
    """As in a bucket whose default encryption is SSE-KMS, which no listing tells."""
    world.door.has_own_key = when == "from the start"
    cluster = landing_cluster(tmp_path)
    data = fill(cluster)
    landing(cluster)
    world.door.has_own_key = True
    world.faults.forget()
    assert landing(cluster).complete
    assert left(cluster) == ()
    assert [call for call in world.calls("PUT") if "output" in call] == []
    assert (
        b"".join(cluster.store.download(f"{RUN}/chief0/output/de ep/é"))
        == (data["chief0/output/de ep/é"])
    )


def test_a_file_that_was_replaced_in_the_bucket_has_not_landed(
    world: World, tmp_path: Path
) -> None:
    cluster = landing_cluster(tmp_path)
    fill(cluster)
    landing(cluster)
    cluster.store.upload(f"{RUN}/worker0/output/model.pb", [b"!" * 100_000])
    assert left(cluster) == (f"{RUN}/worker0/output/model.pb",)


# ── The bucket ───────────────────────────────────────────────────────────────


def test_a_bucket_is_made_once_private_in_its_region_and_clears_up_after_itself(
    world: World,
) -> None:
    name = f"b{uuid.uuid4().hex}"
    store = open_store(f"s3://{name}/prefix")
    with pytest.raises(NoBucketError, match="NoSuchBucket"):
        store.check()
    assert store.create("us-west-2-lax-1a", {"Team": "vision"})
    (tag,) = world.client.get_bucket_tagging(Bucket=name)["TagSet"]
    assert tag == {"Key": "Team", "Value": "vision"}
    assert not store.create("eu-west-1")
    assert not open_store(f"s3://{name}/other").create(None)
    store.check()
    where = world.client.get_bucket_location(Bucket=name)["LocationConstraint"]
    assert where == "us-west-2"
    blocked = world.client.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    assert set(blocked.values()) == {True}
    (rule,) = world.client.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}


def test_a_bucket_is_made_where_the_service_knows_nothing_of_its_privacy(world: World) -> None:
    world.faults.arm(
        Fault(kind="answer", action="PUT *?publicAccessBlock", status=501, code="NotImplemented")
    )
    world.faults.arm(
        Fault(kind="answer", action="PUT *?lifecycle", status=501, code="NotImplemented")
    )
    assert open_store(f"s3://b{uuid.uuid4().hex}").create(None)


def test_a_bucket_in_the_first_region_has_no_location(world: World) -> None:
    name = f"b{uuid.uuid4().hex}"
    assert open_store(f"s3://{name}").create("us-east-1a")
    assert world.client.get_bucket_location(Bucket=name)["LocationConstraint"] is None


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", PermissionsError),
        (403, "InvalidAccessKeyId", CredentialsError),
        (403, "AccountProblem", PermissionsError),
        (400, "ExpiredToken", CredentialsError),
        (403, "RequestTimeTooSkewed", CredentialsError),
        (404, "NoSuchBucket", NoBucketError),
        (503, "SlowDown", StoreAway),
        (400, "BadDigest", StoreError),
    ],
)
def test_a_refusal_is_told_in_s3_s_own_words(
    world: World,
    status: int,
    code: str,
    kind: type[CloudtrainError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    store = new_store()
    refused = {"status": status, "code": code, "times": 99, "retry_after": 0.0}
    world.faults.arm(Fault(kind="answer", action="* /bucket*", **refused))  # type: ignore[arg-type]
    for use in uses(store):
        with pytest.raises(CloudtrainError, match=f"{code}: a fault") as raised:
            use()
        assert type(raised.value) is kind
        assert raised.value.hint


def uses(store: ArtifactStore) -> list[Callable[[], object]]:
    return [
        lambda: store.upload("x", [b"1"]),
        lambda: list(store.list()),
        lambda: store.delete("x"),
        lambda: store.presigner.sign_upload("x", 20 << 20, expires_in=60.0),
    ]


def test_a_name_that_another_account_has_is_said_to_be_taken(world: World) -> None:
    taken = {"status": 409, "code": "BucketAlreadyExists"}
    world.faults.arm(Fault(kind="answer", action="PUT /*", **taken))  # type: ignore[arg-type]
    store = open_store(f"s3://b{uuid.uuid4().hex}")
    with pytest.raises(NameTakenError, match="BucketAlreadyExists"):
        store.create("eu-west-1")


def test_a_signed_read_is_of_the_listed_version_alone(world: World) -> None:
    """A server that checks signatures: the condition is signed, and cannot be left out."""
    world.client.put_object(Bucket="bucket", Key="data/a b+ü", Body=b"0123456789")
    data = open_data("s3://bucket/data")
    (found,) = data.objects()
    request = data.sign(found.key, found.version, expires_in=60.0)
    assert request is not None
    url, headers = request.url.reveal(), dict(request.headers)
    assert headers == {"If-Match": found.version}
    assert status(url, headers) == (200, b"0123456789")
    assert status(url, {**headers, "Range": "bytes=4-5"}) == (206, b"45")
    assert status(url, {})[0] == 403
    world.client.put_object(Bucket="bucket", Key="data/a b+ü", Body=b"other")
    assert status(url, headers)[0] == 412
    with pytest.raises(StoreError, match="PreconditionFailed"):
        list(data.read(found.key, found.version))


def status(url: str, headers: dict[str, Any]) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_a_small_object_is_sent_without_a_round_trip_before_it(world: World) -> None:
    store, sent = new_store(), dict[str, Any]()
    store.bucket._client.meta.events.register(  # type: ignore[attr-defined]
        "before-send.s3.PutObject", lambda request, **_: sent.update(request.headers)
    )
    store.upload("manifest.json", [b"{}"])
    assert int(sent["Content-Length"]) == 2
    assert "Expect" not in sent
