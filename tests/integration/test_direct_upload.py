"""Files that a node uploads itself: what arrives, what is refused, and what may be late."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.artifacts.uploads import Upload, UploadResult, revealed, upload_from_node
from cloudtrain.core.errors import NotLanded
from cloudtrain.core.model import Node
from cloudtrain.core.paths import is_inside
from cloudtrain.core.ship import program
from cloudtrain.node import uploader
from cloudtrain.node.listing import File
from cloudtrain.stores.presign.s3 import block
from tests.support.hurried import hurry_nodes
from tests.support.landing_parts import FolderTransport, node
from tests.support.web_store import PART, Service, WebStore, service, until


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry_nodes(monkeypatch)


@pytest.fixture
def told() -> Iterator[Service]:
    with service() as one:
        yield one


class Sender:
    """A node with a work folder, and a store that it reaches."""

    def __init__(self, folder: Path, told: Service, *, parts: bool = False) -> None:
        self.node: Node = node("chief0")
        self.transport = FolderTransport(folder / "nodes")
        self.work = folder / "nodes" / self.node.name / "task/work"
        self.work.mkdir(parents=True)
        self.store = WebStore(folder / "store", told, parts=parts)
        self.stop = Stop()

    def put(self, name: str, data: bytes) -> bytes:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def send(self, *names: str) -> UploadResult:
        sizes = {name: (self.work / name).stat().st_size for name in names}
        due = {f"run/{name}": File(name, name, size, "") for name, size in sizes.items()}
        assert all(map(is_inside, due))
        with ThreadPoolExecutor(4) as pool:
            return upload_from_node(self.node, "task/work", due, self.upload(pool))

    def upload(self, pool: ThreadPoolExecutor) -> Upload:
        return Upload(transport=self.transport, store=self.store, pool=pool, stop=self.stop)


def test_a_node_stores_its_files_with_their_checksums(tmp_path: Path, told: Service) -> None:
    sender = Sender(tmp_path, told)
    names = ["empty", "small", "a b/ü+%?#", os.fsdecode(b"\xff"), "large"]
    data = {name: sender.put(name, name.encode("utf-8", "surrogateescape")) for name in names}
    data |= {"empty": sender.put("empty", b""), "large": sender.put("large", bytes(5 << 20))}
    sent = sender.send(*names)
    assert (sent.changed, sent.why) == (set(), None)
    for name in names:
        arrived = sent.arrived[name]
        assert (arrived.path, arrived.size) == (f"run/{name}", len(data[name]))
        assert arrived.sha256 == hashlib.sha256(data[name]).hexdigest()
        assert arrived.md5 == hashlib.md5(data[name]).hexdigest()
        path = f"/run/{name}".encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        assert told.objects[path] == data[name]


def test_connections_are_kept_for_many_files(tmp_path: Path, told: Service) -> None:
    sender = Sender(tmp_path, told)
    names = [f"f{number}" for number in range(300)]
    for name in names:
        sender.put(name, name.encode())
    assert len(sender.send(*names).arrived) == 300
    assert told.connections <= uploader.AT_ONCE


def test_a_large_file_goes_in_parts_and_is_visible_when_all_are_there(
    tmp_path: Path, told: Service
) -> None:
    sender = Sender(tmp_path, told, parts=True)
    data = sender.put("large", os.urandom(5 * PART + 17))
    sent = sender.send("large")
    assert sent.arrived["large"].sha256 == hashlib.sha256(data).hexdigest()
    assert sent.arrived["large"].md5 == ""
    assert b"".join(sender.store.download("run/large")) == data
    assert len(told.seen) == 6


def test_parts_that_the_store_has_are_not_sent_again(tmp_path: Path, told: Service) -> None:
    sender = Sender(tmp_path, told, parts=True)
    data = sender.put("large", os.urandom(3 * PART))
    sender.send("large")
    sender.store.had = frozenset({block(PART, hashlib.md5(data[PART : 2 * PART]).digest())})
    told.seen.clear()
    sender.send("large")
    assert len(told.seen) == 2


@pytest.mark.parametrize("fault", [503, 429, 500, "reset", "half"])
def test_what_passes_is_waited_for(tmp_path: Path, told: Service, fault: int | str) -> None:
    told.fault = lambda number, path: fault if number == 1 else None
    sender = Sender(tmp_path, told)
    data = sender.put("x", os.urandom(2 << 20))
    sent = sender.send("x")
    assert sent.arrived["x"].sha256 == hashlib.sha256(data).hexdigest()
    assert told.objects["/run/x"] == data


def test_a_service_that_hangs_up_between_two_files_is_asked_again_at_once(
    tmp_path: Path, told: Service
) -> None:
    told.fault = lambda number, path: "reset" if number in (20, 40) else None
    sender = Sender(tmp_path, told)
    names = [f"f{number}" for number in range(60)]
    for name in names:
        sender.put(name, b"1")
    assert len(sender.send(*names).arrived) == 60


@pytest.mark.parametrize("fault", [403, 404, "corrupt"])
def test_what_is_refused_is_left_with_the_services_words(
    tmp_path: Path, told: Service, fault: int | str
) -> None:
    told.fault = lambda number, path: fault if path == "/run/no" else None
    sender = Sender(tmp_path, told)
    sender.put("no", os.urandom(1 << 21))
    sender.put("yes", b"2")
    sent = sender.send("no", "yes")
    assert set(sent.arrived) == {"yes"}
    assert sent.changed == set()
    assert sent.why is not None
    assert str(400 if fault == "corrupt" else fault) in sent.why


def test_a_service_that_is_not_reached_is_named_once_and_soon(
    tmp_path: Path, told: Service
) -> None:
    sender = Sender(tmp_path, told)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        sender.store.address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        names = [f"f{number}" for number in range(100)]
        for name in names:
            sender.put(name, b"1")
        sent = sender.send(*names)
    assert sent.arrived == {}
    assert "Connection refused" in (sent.why or "")


def test_a_node_without_python_stores_nothing_itself(tmp_path: Path, told: Service) -> None:
    sender = Sender(tmp_path, told)
    sender.put("x", b"1")
    sender.transport.environment = {"PATH": str(tmp_path)}
    sent = sender.send("x")
    assert sent.arrived == {}
    assert sent.why


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_time(
    tmp_path: Path, told: Service
) -> None:
    sender = Sender(tmp_path, told)
    sender.put("x", b"1" * 100)

    def change(number: int, path: str) -> None:
        sender.put("x", b"2" * 100)

    told.fault = change
    sent = sender.send("x")
    assert (sent.arrived, sent.changed) == ({}, {"x"})


def test_a_file_that_is_gone_is_left_for_the_next_time(tmp_path: Path, told: Service) -> None:
    sender = Sender(tmp_path, told)
    sender.put("x", b"1")
    sender.put("y", b"2")
    due = {f"run/{name}": File(name, name, 1, "") for name in "xy"}
    (sender.work / "x").unlink()
    with ThreadPoolExecutor(4) as pool:
        sent = upload_from_node(sender.node, "task/work", due, sender.upload(pool))
    assert (set(sent.arrived), sent.changed) == ({"y"}, {"x"})


def test_a_sender_that_nobody_hears_any_more_stores_nothing(tmp_path: Path, told: Service) -> None:
    """What it stored late would be put over newer files."""
    told.fault = lambda number, path: 503
    sender = Sender(tmp_path, told)
    sender.put("x", b"old")
    upload = sender.store.sign_upload("run/x", 3, expires_in=60)
    assert upload is not None
    orders = [
        {"folder": "task/work", "lock": "task/sending"},
        {"n": 0, "source": "x", "had": [], "piece": 0, "requests": [revealed(upload.requests[0])]},
    ]
    uploader = program("uploader")
    process = subprocess.Popen(
        uploader.command.arguments,
        cwd=sender.transport.home(sender.node),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        uploader.source + b"".join(json.dumps(order).encode() + b"\n" for order in orders)
    )
    process.stdin.flush()
    until(lambda: told.seen)
    process.stdout.close()  # as sshd does when the client is gone
    assert process.wait(60) == 1
    process.stdin.close()
    assert told.objects == {}


def test_a_later_sender_of_the_same_task_ends_an_earlier_one(tmp_path: Path, told: Service) -> None:
    told.fault = lambda number, path: "slow" if number == 1 else None
    first, second = Sender(tmp_path, told), None
    first.put("x", b"old")
    thread = threading.Thread(target=lambda: first.send("x"))
    thread.start()
    until(lambda: told.seen)
    first.put("x", b"new")
    second = first.send("x")
    assert second.arrived["x"].sha256 == hashlib.sha256(b"new").hexdigest()
    thread.join(60)
    assert first.transport.processes[0].returncode == -signal.SIGKILL


def test_an_interrupt_ends_it_soon(tmp_path: Path, told: Service) -> None:
    """With the node's next heartbeat, not when the store answers."""
    sender = Sender(tmp_path, told)

    def slow(number: int, path: str) -> str:
        sender.stop.set()
        return "slow"

    told.fault = slow
    sender.put("x", b"1")
    with pytest.raises(NotLanded, match="interrupted"):
        sender.send("x")
    assert told.objects == {}


def test_no_url_is_on_a_command_line(tmp_path: Path, told: Service) -> None:
    told.fault = lambda number, path: "slow"
    sender = Sender(tmp_path, told)
    sender.put("x", b"1")
    thread = threading.Thread(target=lambda: sender.send("x"))
    thread.start()
    until(lambda: told.seen)
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines += [(folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()]
        except OSError:
            continue
    told.gate.set()
    thread.join(60)
    assert not [line for line in lines if f"127.0.0.1:{told.port}/run/x".encode() in line]
