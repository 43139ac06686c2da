"""The uploader on a node, against services that speak HTTP badly and clients that read badly."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.artifacts.uploads import Upload, UploadResult, upload_from_node
from cloudtrain.core.presign import PresignedRequest, PresignedUpload
from cloudtrain.core.shell import Secret
from cloudtrain.node import client, quick_uploads, uploader
from cloudtrain.node.listing import File
from cloudtrain.stores.file import FileStore
from tests.standins.serve import certificate
from tests.support.landing_parts import FolderTransport, node

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Asked:
    """One request on the wire; `again`: how many came before it on this connection."""

    number: int
    again: int
    path: str
    body: bytes
    connection: socket.socket


@dataclass
class Wire:
    """`answer` gives the bytes to answer with, None to hang up; b"" where it did all itself."""

    answer: Callable[[Asked], bytes | None] = lambda asked: OK
    before: Callable[[int, socket.socket], socket.socket] = lambda number, raw: raw
    """Of each connection as it is taken, with its number from 1."""
    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    one_at_a_time: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def wire() -> Iterator[Wire]:
    told = Wire()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    told.port = listener.getsockname()[1]

    def accept() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            told.connections += 1
            if told.one_at_a_time:
                serve(told.connections, raw)
            else:
                threading.Thread(target=serve, args=(told.connections, raw), daemon=True).start()

    def serve(number: int, raw: socket.socket) -> None:
        with raw, suppress(OSError):
            connection = told.before(number, raw)
            with connection, connection.makefile("rb") as stream:
                again = 0
                while one(connection, stream, again):
                    again += 1

    def one(connection: socket.socket, stream, again: int) -> bool:  # type: ignore[no-untyped-def]
        first = stream.readline()
        if not first:
            return False
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = stream.read(length)
        with told.lock:
            path = first.split()[1].decode()
            asked = Asked(len(told.asked) + 1, again, path, body, connection)
            told.asked.append(asked)
        answer = told.answer(asked)
        if answer is None:
            return False
        connection.sendall(answer)
        return True

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield told
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


class Store(FileStore):
    """Nodes send their files over the wire; what comes through this machine is in a folder."""

    def __init__(self, folder: Path, told: Wire) -> None:
        super().__init__(folder.as_uri())
        self.presigner = self
        self._told = told
        self.query = ""
        self.lasts: list[float] = []

    def sign_upload(self, path: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        self.lasts.append(expires_in)
        url = f"{self._told.scheme}://127.0.0.1:{self._told.port}/{path}{self.query}"
        return PresignedUpload(path=path, requests=(PresignedRequest(url=Secret(url)),))


class Rig:
    def __init__(self, folder: Path, told: Wire) -> None:
        self.told, self.node = told, node("chief0")
        self.transport = FolderTransport(folder / "nodes")
        self.task = self.transport.home(self.node) / "task"
        (self.task / "work").mkdir(parents=True)
        self.store = Store(folder / "store", told)

    def send(self, files: dict[str, bytes], sizes: dict[str, int] | None = None) -> UploadResult:
        for name, data in files.items():
            (self.task / "work" / name).write_bytes(data)
        sizes = sizes or {name: len(data) for name, data in files.items()}
        due = {f"run/{name}": File(name, name, size, "") for name, size in sizes.items()}
        with ThreadPoolExecutor(4) as pool:
            upload = Upload(transport=self.transport, store=self.store, pool=pool)
            return upload_from_node(self.node, "task/work", due, upload)


@pytest.fixture
def told() -> Iterator[Wire]:
    with wire() as one:
        yield one


@pytest.fixture
def rig(tmp_path: Path, told: Wire) -> Rig:
    return Rig(tmp_path, told)


def many(count: int) -> dict[str, bytes]:
    return {f"f{number}": f"{number}".encode() for number in range(count)}


def arrived(rig: Rig, files: dict[str, bytes]) -> None:
    sent = rig.send(files)
    assert (sent.why, sent.changed) == (None, set())
    for name, data in files.items():
        assert sent.arrived[name].sha256 == hashlib.sha256(data).hexdigest()


# ── Servers ──────────────────────────────────────────────────────────────────


def test_a_server_of_http_1_0_is_served_by_a_connection_each(rig: Rig, told: Wire) -> None:
    def old(asked: Asked) -> bytes | None:
        asked.connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nno length, to the end")
        return None

    told.answer = old
    arrived(rig, many(40))


def test_a_server_that_serves_one_connection_after_the_other_gets_all(rig: Rig, told: Wire) -> None:
    """As http.server does: one that is open and says nothing would hold up all others."""

    def old(asked: Asked) -> bytes | None:
        asked.connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
        return None

    told.one_at_a_time, told.answer = True, old
    large = {f"large{number}": b"x" * (quick_uploads.SMALL + 1) for number in range(3)}
    arrived(rig, {**large, **many(40)})


def test_a_server_that_hangs_up_after_each_answer_unsaid_gets_all(rig: Rig, told: Wire) -> None:
    def hang_up(asked: Asked) -> bytes | None:
        asked.connection.sendall(OK)
        return None

    told.answer = hang_up
    arrived(rig, many(40))


def test_a_server_that_closes_its_half_gets_all(rig: Rig, told: Wire) -> None:
    def close(asked: Asked) -> bytes:
        if asked.again == 1:
            asked.connection.sendall(OK)
            asked.connection.shutdown(socket.SHUT_WR)
            return b""
        return OK

    told.answer = close
    arrived(rig, many(60))


def test_a_server_that_says_an_idle_connection_was_too_slow_is_asked_again(
    rig: Rig, told: Wire
) -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    told.answer = lambda asked: late if asked.again == 1 else OK
    arrived(rig, many(20))


def test_a_server_that_says_go_on_unasked_gets_all(rig: Rig, told: Wire) -> None:
    told.answer = lambda asked: b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    arrived(rig, many(20))


@pytest.mark.parametrize("how", ["cut", "reset", "nothing", "garbage"])
def test_an_answer_that_breaks_off_is_asked_for_again(rig: Rig, told: Wire, how: str) -> None:
    def broken(asked: Asked) -> bytes | None:
        if asked.number > 2:
            return OK
        if how == "garbage":
            asked.connection.sendall(b"\0\1\2 not HTTP\r\n\r\n")
        elif how != "nothing":
            asked.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
        if how == "reset":
            linger = b"\1\0\0\0\0\0\0\0"
            asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return None

    told.answer = broken
    arrived(rig, {"x": b"1" * 100})


@pytest.mark.parametrize(
    "status", ["301 Moved", "307 Temporary Redirect", "308 Permanent Redirect"]
)
def test_a_redirect_is_not_taken_for_a_yes(rig: Rig, told: Wire, status: str) -> None:
    told.answer = lambda asked: (
        f"HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".encode()
    )
    sent = rig.send({"x": b"1"})
    assert sent.arrived == {}
    assert status in (sent.why or "")


def test_an_endless_error_is_not_listened_to(rig: Rig, told: Wire) -> None:
    def endless(asked: Asked) -> bytes | None:
        asked.connection.sendall(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            while True:
                asked.connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        return None

    told.answer = endless
    sent = rig.send({"x": b"1"})
    assert (sent.why or "").startswith("403 Forbidden: xxx")
    assert len(sent.why or "") < 1000


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_a_refusal_that_comes_before_all_was_heard_is_told(rig: Rig, told: Wire, size: int) -> None:
    def early(number: int, raw: socket.socket) -> socket.socket:
        raw.recv(1000)
        raw.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\nConnection: close\r\n\r\nwhy")
        raise OSError("hang up")

    told.before = early
    sent = rig.send({"x": bytes(size)})
    assert sent.why == "403 Forbidden: why"


def test_who_refuses_everything_is_not_asked_for_ever(rig: Rig, told: Wire) -> None:
    told.answer = lambda asked: b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    sent = rig.send(many(2000))
    assert (sent.arrived, sent.changed) == ({}, set())
    assert "403 Forbidden" in (sent.why or "")
    assert len(told.asked) < 200


def test_who_refuses_some_gets_the_others(rig: Rig, told: Wire) -> None:
    no = b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"
    told.answer = lambda asked: no if int(asked.path[6:]) % 2 else OK
    sent = rig.send(many(400))
    assert len(sent.arrived) == 200
    assert sent.changed == set()


def test_an_error_cannot_write_to_the_terminal_and_has_no_right_in_it(rig: Rig, told: Wire) -> None:
    rig.store.query = "?name=x&sig=abcdefghijklmnop%2Bqrstuvwxyz012345%3D"

    def echo(asked: Asked) -> bytes:
        body = f"\x1b[31m\r\nno\n{asked.path} abcdefghijklmnop+qrstuvwxyz012345= ".encode()
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    told.answer = echo
    sent = rig.send({"x": b"1"})
    assert (sent.why or "").isprintable()
    assert "abcdefgh" not in (sent.why or "")
    assert "sig=***" in (sent.why or "")


def test_an_answer_that_comes_in_pieces_is_read_to_its_end(rig: Rig, told: Wire) -> None:
    def slowly(asked: Asked) -> bytes:
        for piece in (OK[:9], OK[9:30], OK[30:-1]):
            asked.connection.sendall(piece)
        return OK[-1:]

    told.answer = slowly
    arrived(rig, many(100))
    assert len(told.asked) == 100


def test_a_file_that_changes_while_it_is_sent_has_not_arrived(rig: Rig, told: Wire) -> None:
    def change(asked: Asked) -> bytes:
        if asked.path == "/run/f1":
            (rig.task / "work" / "f1").write_bytes(b"another")
        return OK

    told.answer = change
    sent = rig.send(many(3))
    assert (sent.why, sent.changed, sorted(sent.arrived)) == (None, {"f1"}, ["f0", "f2"])


def test_a_file_that_grew_or_is_gone_since_it_was_listed(rig: Rig, told: Wire) -> None:
    files = {**many(2), "grown": bytes(quick_uploads.SMALL + 1)}
    sizes = {**{name: len(data) for name, data in files.items()}, "grown": 1, "gone": 1}
    sent = rig.send(files, sizes)
    assert (sent.why, sent.changed) == (None, {"gone"})
    assert sent.arrived["grown"].sha256 == hashlib.sha256(files["grown"]).hexdigest()


def test_answers_that_are_never_simple_are_soon_waited_for_in_another_way(
    rig: Rig, told: Wire
) -> None:
    """What goes wrong is sent twice: not each file of a store whose every answer is odd."""
    told.answer = lambda asked: b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    arrived(rig, many(400))
    assert len(told.asked) < 400 + 2 * quick_uploads.FEWEST + quick_uploads.DOUBT


# ── Connections ──────────────────────────────────────────────────────────────


@pytest.fixture
def over_tls(tmp_path: Path, told: Wire, rig: Rig) -> ssl.SSLContext:
    crt, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    told.scheme = "https"
    rig.transport.environment = {"SSL_CERT_FILE": str(crt)}
    return context


def test_a_handshake_that_breaks_off_is_tried_again(
    rig: Rig, told: Wire, over_tls: ssl.SSLContext
) -> None:
    def some(number: int, raw: socket.socket) -> socket.socket:
        if number in (1, 3, 5):
            raise OSError("hang up")
        return over_tls.wrap_socket(raw, server_side=True)

    told.before = some
    arrived(rig, many(60))


def test_a_certificate_that_is_not_trusted_ends_it_at_once(
    rig: Rig, told: Wire, over_tls: ssl.SSLContext
) -> None:
    rig.transport.environment = {}
    told.before = lambda number, raw: over_tls.wrap_socket(raw, server_side=True)
    sent = rig.send(many(60))
    assert sent.arrived == {}
    assert "CERTIFICATE_VERIFY_FAILED" in (sent.why or "")
    assert told.connections <= uploader.AT_ONCE


def test_there_are_more_connections_the_later_a_store_answers() -> None:
    most = quick_uploads.most
    assert [most(0.0), most(0.001), most(0.02), most(0.03), most(1.0)] == [16, 16, 100, 150, 256]
    assert [most(0.03, 1e5), most(0.2, 1e5), most(1.0, 1e5)] == [43, 256, 256], "larger: fewer"


def test_small_files_go_over_tls_side_by_side(
    rig: Rig, told: Wire, over_tls: ssl.SSLContext
) -> None:
    told.before = lambda number, raw: over_tls.wrap_socket(raw, server_side=True)
    files = {name: data * 60_000 for name, data in many(60).items()}
    arrived(rig, files)
    assert len(told.asked) == 60
    assert told.connections <= quick_uploads.MOST


def test_a_connection_that_fails_in_a_way_nobody_knows_holds_up_no_file() -> None:
    class Strange:
        def made_to(self, target: object) -> None:
            raise ValueError(target)

    sent: list[dict[str, object]] = []
    strange: Any = Strange()
    quick = quick_uploads.QuickUploads(strange, sent.append, lambda n: None, lambda well: True)
    files: list[dict[str, object]] = [
        {"n": n, "requests": [{"url": "http://127.0.0.1:1/x"}]} for n in range(40)
    ]
    for file in files:
        quick.add(file)
    quick.finish()
    assert sorted(str(each["n"]) for each in sent) == sorted(str(n) for n in range(40))


# ── Who hears it ─────────────────────────────────────────────────────────────


def test_a_shell_that_prints_a_greeting_is_no_answer(rig: Rig, tmp_path: Path) -> None:
    greeting = tmp_path / "bin" / "python3"
    greeting.parent.mkdir()
    greeting.write_text(
        "#!/bin/sh\necho 'Welcome!'\necho '{\"n\": 7}'\necho 7\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    greeting.chmod(0o755)
    rig.transport.environment = {"PATH": f"{greeting.parent}:{os.environ['PATH']}"}
    arrived(rig, many(3))


def test_a_right_is_good_for_as_long_as_what_is_before_it_may_take(rig: Rig) -> None:
    names = many(3)
    rig.send(names, {"f0": 100 << 20, "f1": 100 << 20, "f2": 100 << 20})
    assert rig.store.lasts == [3900.0, 3900.0, 3900.0]


@pytest.mark.parametrize("late", [(), (lambda: None,) * 3], ids=["soon", "late"])
def test_only_who_holds_the_lock_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: tuple[Callable[[], None], ...]
) -> None:
    """A number that was left in its file may be that of another process by now; who has the lock
    writes its own, `late` where the machine is busy."""
    lock = tmp_path / "lock"
    with subprocess.Popen(["sleep", "60"]) as innocent:
        lock.write_text(str(innocent.pid))
        held = os.open(lock, os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        steps = iter([*late, lambda: os.ftruncate(held, 0), lambda: os.close(held)])
        monkeypatch.setattr(client.time, "sleep", lambda seconds: next(steps)())
        client.alone(os.fsencode(lock))
        innocent.terminate()
        assert innocent.wait() == -signal.SIGTERM
        assert lock.read_text() == str(os.getpid())
