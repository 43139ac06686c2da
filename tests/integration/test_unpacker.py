"""Archives unpacked by a node of the cluster: their content does not pass through this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.artifacts.uploads import lock_of, revealed
from cloudtrain.core import ship
from cloudtrain.core.errors import CloudtrainError, NodeUnreachable, StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.core.shell import Secret
from cloudtrain.node import unpacker, web
from cloudtrain.stores import open_store
from tests.standins.stores import KINDS, Store
from tests.support.landing_parts import RUN, FaultyStore
from tests.support.lanes import Cases
from tests.support.spool_parts import Yard, checkpoint, content, log
from tests.support.web_store import Service, service, until

LARGE = os.urandom(1 << 20) * 20


class Killed(BaseException):
    pass


class Counted(FaultyStore):
    """Counts what passes this machine; `calls_left`: then this process is killed."""

    def __init__(self, store: StoreBackend) -> None:
        super().__init__(store)
        self.presigner = CountedPresigner(self)
        self.passed = 0
        self.calls_left: int | None = None

    def call(self) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise Killed
            self.calls_left -= 1

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        self.call()
        pieces = list(data)
        self.passed += sum(map(len, pieces))
        return super().upload(path, pieces)

    def download(self, path: str) -> Iterator[bytes]:
        self.call()
        for piece in super().download(path):
            self.passed += len(piece)
            yield piece

    def copy(self, source: str, target: str) -> None:
        self.call()
        self.store.copy(source, target)

    def delete(self, path: str) -> None:
        self.call()
        super().delete(path)


class CountedPresigner:
    def __init__(self, counted: Counted) -> None:
        self._counted = counted

    def sign_download(self, path: str, *, expires_in: float) -> PresignedRequest | None:
        self._counted.call()
        return self._its.sign_download(path, expires_in=expires_in)

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        return self._its.sign_upload(path, size, expires_in=expires_in)

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> None:
        self._its.complete(upload, parts)

    @property
    def _its(self) -> Presigner:
        assert self._counted.store.presigner is not None
        return self._counted.store.presigner


class Far(Yard):
    """A yard whose store is elsewhere, and whose nodes can reach it."""

    def __init__(self, folder: Path, store: StoreBackend) -> None:
        super().__init__(folder)
        self.store = self.counted = Counted(store)

    def take(self) -> Manifest:
        ingest_spools(
            self.run,
            self.store,
            self.console,
            nodes=tuple(self.nodes.values()),
            transport=self.transport,
            log_path=lambda task, attempt: self.logs / f"{task}.{attempt}.log",
        )
        return read_manifest(self.store, RUN) or Manifest(run=RUN)

    def detours(self) -> list[str]:
        return [text for text in self.console.said if "on this machine" in text]

    def fetches(self) -> list[str]:
        return [line for line in self.transport.commands if "cloudtrain.node.unpacker" in line]

    def left_on_nodes(self) -> list[Path]:
        return [path for path in self.transport.folder.rglob(".parcel*") if path.exists()]

    def fill(self) -> None:
        """Two archives of the chief, with a newer version in the second, and one of its log."""
        for step in (10, 20):
            self.write("chief0", "output/ö large", LARGE[step:])
            self.write("chief0", f"output/{step}", f"at {step}")
            self.write("chief0", "output/empty", "")
            names = ["output/ö large", f"output/{step}", "output/empty"]
            self.keep(*names, *checkpoint(self, step))
        log(self, "step 1\nstep 2\n")
        self.counted.passed = 0

    def is_whole(self, manifest: Manifest) -> None:
        assert pending_spools(RUN, self.store) == []
        assert self.read(manifest, "chief0/output/ö large") == LARGE[20:]
        assert self.read(manifest, "chief0/output/10") == b"at 10"
        assert self.read(manifest, "chief0/output/20") == b"at 20"
        assert self.read(manifest, "chief0/output/empty") == b""
        assert self.read(manifest, "chief0/ckpt/checkpoint") == b"ckpt-20"
        assert manifest.checkpoint is not None
        assert {path.rpartition("/")[2] for path in manifest.checkpoint.paths} == {
            "checkpoint",
            "ckpt-10",
            "ckpt-20",
        }
        assert self.read(manifest, "logs/chief0.attempt-1.log") == b"step 1\nstep 2\n"
        assert (self.logs / "chief0.1.log").read_text() == "step 1\nstep 2\n"
        for file in manifest.files.values():
            data = b"".join(self.store.download(f"{RUN}/{file.at}"))
            assert hashlib.sha256(data).hexdigest() == file.sha256


@pytest.fixture(scope="module", params=sorted(KINDS))
def place(request: pytest.FixtureRequest) -> Iterator[Store]:
    with KINDS[request.param]() as store:
        yield store


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with KINDS["s3"]() as store:
        yield store


def yard_at(place: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return Far(folder, open_store(f"{place.uri}/{folder.name}"))


@pytest.fixture
def yard(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    return yard_at(s3, tmp_path, monkeypatch)


# ── What does not pass this machine ──────────────────────────────────────────


@pytest.mark.sweep(1)
def test_what_is_in_archives_does_not_pass_this_machine(
    place: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = yard_at(place, tmp_path, monkeypatch)
    yard.fill()
    yard.take()
    assert yard.counted.passed < 100_000
    assert len(yard.fetches()) == 3
    assert yard.detours() == []
    assert yard.left_on_nodes() == []
    assert yard.console.warned == []
    yard.is_whole(read_manifest(yard.store, RUN) or Manifest(run=RUN))


def test_the_node_that_stored_an_archive_takes_it_and_otherwise_another(yard: Far) -> None:
    asked: list[str] = []
    run = yard.transport.run

    def told(node, command, **rest):  # type: ignore[no-untyped-def]
        if "node.unpacker" in command.shell():
            asked.append(node.name)
        return run(node, command, **rest)

    yard.transport.run = told  # type: ignore[method-assign]
    yard.write("worker0", "output/a", "a")
    yard.keep("output/a", task="worker0")
    yard.take()
    yard.write("worker0", "output/a", "b")
    yard.keep("output/a", task="worker0")
    yard.nodes["worker0"] = replace(yard.nodes["worker0"], state="stopped")
    manifest = yard.take()
    assert asked == ["mnist-worker0", "mnist-chief0"]
    assert yard.read(manifest, "worker0/output/a") == b"b"


# ── What goes wrong ──────────────────────────────────────────────────────────


def test_killed_at_any_call_of_the_store_nothing_is_lost(yard: Far, cases: Cases) -> None:
    """The sample: at every seventh."""
    yard.fill()
    step = 1 if cases.every else 7
    for left in range(cases.random.randrange(step), 60, step):
        yard.counted.calls_left = left
        try:
            yard.take()
        except Killed:
            yard.counted.calls_left = None
            manifest = read_manifest(yard.store, RUN) or Manifest(run=RUN)
            yard.contents(manifest)  # every file that it lists is there
        else:
            break
    else:
        raise AssertionError("it never ends")
    yard.counted.calls_left = None
    yard.is_whole(read_manifest(yard.store, RUN) or Manifest(run=RUN))


def test_killed_at_any_command_nothing_is_lost(yard: Far, cases: Cases) -> None:
    """Before it, or while a node works and tells of it. The sample: at every fifth."""
    yard.fill()
    left = 0

    def look(line: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    yard.transport.before = yard.transport.during = look
    step = 1 if cases.every else 5
    for kills in range(cases.random.randint(1, step), 60, step):
        left = kills
        try:
            manifest = yard.take()
            break
        except Killed:
            yard.contents(read_manifest(yard.store, RUN) or Manifest(run=RUN))
    assert kills > 10
    yard.is_whole(manifest)
    assert yard.left_on_nodes() == []


@pytest.mark.sweep(2)
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_where_a_node_dies_another_goes_on(yard: Far, at: int) -> None:
    yard.fill()
    left = at

    def look(line: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise NodeUnreachable("mnist-chief0", "it has gone")

    yard.transport.before = yard.transport.during = look
    yard.counted.passed = 0
    yard.is_whole(yard.take())
    assert left < 0
    assert yard.detours() == []


def test_where_no_node_answers_archives_come_through_this_machine(yard: Far) -> None:
    yard.fill()

    def gone(line: str) -> None:
        raise NodeUnreachable("mnist-chief0", "no answer")

    yard.transport.before = gone
    yard.is_whole(yard.take())
    (said,) = yard.detours()
    assert re.fullmatch(r"unpacking archives on this machine: mnist-\w+: no answer", said)


def test_without_nodes_they_come_through_this_machine(yard: Far) -> None:
    yard.fill()
    yard.nodes = {}
    yard.is_whole(yard.take())
    assert yard.detours() == [
        "unpacking archives on this machine: no running node could unpack them"
    ]


def test_a_store_that_gives_no_right_to_read_has_them_come_through_this_machine(
    yard: Far,
) -> None:
    yard.fill()
    yard.store.store.presigner.sign_download = lambda *_, **__: None  # type: ignore[method-assign]
    yard.is_whole(yard.take())
    (said,) = yard.detours()
    assert "cannot presign a download" in said


def test_where_no_right_can_be_made_why_is_said(yard: Far) -> None:
    yard.fill()

    def refuse(path: str, *, expires_in: float) -> PresignedRequest:
        raise StoreError("not allowed to sign")

    yard.store.store.presigner.sign_download = refuse  # type: ignore[method-assign]
    yard.is_whole(yard.take())
    assert yard.detours() == ["unpacking archives on this machine: not allowed to sign"]


def test_a_right_that_is_refused_is_told_without_it(yard: Far) -> None:
    yard.fill()

    def refused(path: str, *, expires_in: float) -> PresignedRequest:
        return PresignedRequest(
            url=Secret(f"{os.environ['AWS_ENDPOINT_URL_S3']}/no-bucket/x?X-Sig=0123456789abcdef"),
            method="GET",
        )

    yard.store.store.presigner.sign_download = refused  # type: ignore[method-assign]
    yard.is_whole(yard.take())
    (said,) = yard.detours()
    assert "404" in said
    assert "0123456789abcdef" not in "".join([said, *yard.transport.commands])


def test_a_node_without_python_has_them_come_through_this_machine(
    yard: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.core.ship.BOOT", "raise SystemExit('no such thing')")
    yard.fill()
    yard.is_whole(yard.take())
    (said,) = yard.detours()
    assert said.endswith("mnist-chief0: no such thing")


def test_a_disk_without_room_is_left_alone(
    tmp_path: Path, told: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "SPARE", 1 << 60)
    order = {"request": request(told, "x"), "size": 1}
    assert unpacker.fetched(order, os.fsencode(tmp_path / "x")) == {
        "why": "not enough disk space for a copy"
    }
    assert told.seen == []


def test_a_log_that_cannot_be_written_here_is_an_error_that_names_it(yard: Far) -> None:
    yard.fill()
    yard.logs.write_text("no folder")
    with pytest.raises(CloudtrainError, match="logs here"):
        yard.take()
    yard.logs.unlink()
    yard.is_whole(yard.take())


def test_what_a_node_could_not_finish_is_not_left_on_its_disk(
    yard: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.fill()
    monkeypatch.setattr(
        "cloudtrain.core.ship.BOOT",
        "import os; os.makedirs('.cloudtrain/mnist/runs/" + RUN + "/.parcel/files');"
        'print(\'{"why": "No space left on device"}\')',
    )
    yard.is_whole(yard.take())
    (said,) = yard.detours()
    assert said.endswith("mnist-chief0: No space left on device")
    assert yard.left_on_nodes() == []


def test_an_archive_with_a_damaged_file_stays_and_its_other_files_land(yard: Far) -> None:
    yard.write("chief0", "output/a", "as it is")
    yard.write("chief0", "output/b", "well")
    data = content(yard.archive("output/a", "output/b")).replace(b"as it is", b"as it was"[:8])
    path = f"{RUN}/parcels/chief0.1-00000001-00.tar"
    yard.store.upload(path, [data])
    yard.counted.passed = 0
    for _ in range(2):
        manifest = yard.take()
        assert yard.contents(manifest) == {"chief0/output/b": b"well"}
        assert [name.path for name in pending_spools(RUN, yard.store)] == [path]
    assert "output/a differs from what its node read" in yard.console.warned[0]
    assert yard.detours() == []
    assert yard.left_on_nodes() == []


@pytest.mark.parametrize("data", [b"", b"no tar" * 1000, b"\0" * 10240])
def test_what_is_no_archive_is_said_and_stays(yard: Far, data: bytes) -> None:
    yard.store.upload(f"{RUN}/parcels/chief0.1-00000001-00.tar", [data])
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    assert "chief0/output/a" in yard.take().files
    assert "is not a valid archive" in yard.console.warned[0]
    assert len(pending_spools(RUN, yard.store)) == 1
    assert yard.detours() == []


def test_a_copy_that_changes_before_it_is_stored_does_not_land(yard: Far) -> None:
    yard.write("chief0", "output/a", "as it is")
    yard.keep("output/a")

    def damage(line: str) -> None:
        if "node.unpacker" not in line:
            for path in yard.transport.folder.rglob(".parcel/files/0"):
                path.write_bytes(b"as it is not")

    yard.transport.before = damage
    manifest = yard.take()
    assert yard.read(manifest, "chief0/output/a") == b"as it is"
    (said,) = yard.detours()
    assert "has changed" in said
    assert pending_spools(RUN, yard.store) == []


# ── On the node ──────────────────────────────────────────────────────────────


@pytest.fixture
def told() -> Iterator[Service]:
    with service() as one:
        yield one


def request(told: Service, path: str) -> dict[str, object]:
    url = Secret(f"http://127.0.0.1:{told.port}/{path}?signature=0123456789abcdef")
    return revealed(PresignedRequest(url=url, method="GET"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacker.time, "sleep", lambda seconds: None)


PATH = "/x?signature=0123456789abcdef"


def faults(*kinds: int | str | None) -> Callable[[int, str], int | str | None]:
    return lambda number, path: kinds[number - 1] if number <= len(kinds) else None


@pytest.mark.parametrize("kinds", [(), ("half", "half", "half"), (503, "half", 500), (429,)])
def test_a_connection_that_breaks_is_gone_on_with(
    told: Service, quick: None, kinds: tuple[int | str, ...]
) -> None:
    told.objects[PATH], told.fault = LARGE, faults(*kinds)
    stream = unpacker.Stream(request(told, "x"), len(LARGE))
    data = b"".join(iter(lambda: stream.read(1_000_003), b""))
    assert data == LARGE
    assert len(told.seen) == len(kinds) + 1


def test_an_object_that_is_shorter_than_listed_is_refused(told: Service, quick: None) -> None:
    told.objects[PATH] = b"short"
    stream = unpacker.Stream(request(told, "x"), 6)
    with pytest.raises(web.Refused):
        stream.read(6)


def test_a_refusal_is_told_at_once_and_without_the_right(told: Service) -> None:
    told.fault = faults(403)
    with pytest.raises(web.Refused, match="403") as refused:
        unpacker.Stream(request(told, "x"), 1).read(1)
    assert "0123456789abcdef" not in str(refused.value)
    assert len(told.seen) == 1


def started(told: Service, folder: Path) -> subprocess.Popen[bytes]:
    program = ship.program("unpacker")
    order = {
        "folder": "run/.parcel/files",
        "lock": lock_of("run/.parcel/files"),
        "request": request(told, "x"),
        "size": 1,
    }
    process = subprocess.Popen(
        program.command.arguments,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(program.source + json.dumps(order).encode("ascii") + b"\n")
    process.stdin.flush()
    return process


def test_it_ends_with_its_client_and_where_a_later_one_begins(
    told: Service, tmp_path: Path
) -> None:
    told.objects[PATH], told.fault = b"x", lambda number, path: "slow"
    first = started(told, tmp_path)
    until(lambda: len(told.seen) == 1)
    second = started(told, tmp_path)
    assert first.wait(60) == -signal.SIGKILL
    until(lambda: len(told.seen) == 2)
    assert second.stdout is not None
    second.stdout.close()
    assert second.wait(60) == 1


def test_no_right_is_on_a_command_line(yard: Far, told: Service) -> None:
    told.objects[PATH], told.fault = b"", faults("slow")
    url = Secret(f"http://127.0.0.1:{told.port}{PATH}")
    yard.store.store.presigner.sign_download = lambda *_, **__: PresignedRequest(
        url=url, method="GET"
    )
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    thread = threading.Thread(target=yard.take)
    thread.start()
    until(lambda: told.seen)
    seen = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen += [(folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()]
        except OSError:
            continue
    told.gate.set()
    thread.join(60)
    assert any(b"node.unpacker" in text for text in seen)
    assert not [text for text in seen if b"0123456789abcdef" in text]
    assert pending_spools(RUN, yard.store) == []
