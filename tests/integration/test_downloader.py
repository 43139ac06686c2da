"""The downloader on a node, by itself: what it writes, refuses, repeats, and what a kill leaves."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import ship
from cloudtrain.node import dataset_folder, fetcher
from tests.support.data_server import DataServer, data_server, etag

KEY = "d" * 64
MIB = 1 << 20
LIMIT = 120.0
"""Seconds after which a test fails; none waits for a time."""


@pytest.fixture
def server() -> Iterator[DataServer]:
    with data_server() as found:
        yield found


@dataclass
class Node:
    """Runs downloaders whose client is this test."""

    cache: Path
    server: DataServer
    md5: bool = True
    roots: Sequence[str] = ()
    answers: list[dict[str, Any]] = field(default_factory=list)
    renew: Callable[[], None] = lambda: None
    signature: str = ""
    inside: Sequence[str] = ()
    """Words before its command."""
    process: subprocess.Popen[bytes] | None = None

    def started(self) -> subprocess.Popen[bytes]:
        program = ship.program("downloader")
        self.process = subprocess.Popen(
            [*self.inside, "sh", "-c", f"exec {program.command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin
        self.process.stdin.write(program.source)
        objects = self.server.objects
        self.tell(
            key=KEY,
            roots=[*self.roots, str(self.cache)],
            size=sum(map(len, objects.values())),
            files=len(objects),
        )
        return self.process

    def tell(self, **order: object) -> None:
        assert self.process
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def order(self, number: int, listed: Mapping[str, bytes]) -> None:
        path = sorted(listed)[number]
        data = listed[path]
        self.tell(
            n=number,
            path=path,
            size=len(data),
            md5=hashlib.md5(data).hexdigest() if self.md5 else "",
            request={
                "url": self.server.url(path) + self.signature,
                "headers": {"If-Match": etag(data)},
            },
        )

    def run(self, listed: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """One download to its end; returns its last answer."""
        process = self.started()
        listed = dict(self.server.objects) if listed is None else listed
        assert process.stdout
        late = threading.Timer(LIMIT, process.kill)
        late.start()
        self.answers = []
        for line in process.stdout:
            told = json.loads(line)
            self.answers.append(told)
            if "need" in told:
                whole = bits(told["have"])
                threading.Thread(target=self.send, args=(listed, whole), daemon=True).start()
            if "again" in told:
                self.renew()
                self.order(told["again"], listed)
            if "ready" in told or "error" in told:
                break
        late.cancel()
        process.wait(LIMIT)
        return self.answers[-1] if self.answers else {}

    def send(self, listed: Mapping[str, bytes], whole: set[int]) -> None:
        try:
            for number in range(len(listed)):
                if number not in whole:
                    self.order(number, listed)
        except (OSError, ValueError):
            pass

    @property
    def files(self) -> Path:
        return self.cache / "data" / KEY / "files"


def bits(text: str) -> set[int]:
    data = base64.b64decode(text)
    return {n for n in range(8 * len(data)) if data[n // 8] >> n % 8 & 1}


@pytest.fixture
def node(tmp_path: Path, server: DataServer) -> Node:
    return Node(tmp_path / "cache", server)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_file_arrives_read_only(node: Node) -> None:
    node.server.objects = {f"a/{n}/x": os.urandom(n) for n in range(300)}
    answer = node.run()
    assert answer["ready"] == str(node.files.resolve())
    assert content(node.files) == node.server.objects
    assert all(path.stat().st_mode & 0o222 == 0 for path in node.files.rglob("x"))


@pytest.mark.parametrize("md5", [True, False])
def test_a_large_file_arrives_in_parts_side_by_side(node: Node, md5: bool) -> None:
    node.md5 = md5
    node.server.objects = {"large": os.urandom(70 * MIB + 5), "small": b"x"}
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects
    assert len(node.server.seen) == 6
    assert all(asked for path, asked in node.server.seen if path == "large")


def test_parts_that_a_server_sends_with_status_200_are_taken_as_parts(node: Node) -> None:
    node.server.objects = {"large": os.urandom(40 * MIB)}
    node.server.partial = 200
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects
    assert all(asked for _, asked in node.server.seen)


def test_a_server_without_ranges_sends_a_large_file_at_once(node: Node) -> None:
    node.server.objects = {"large": os.urandom(40 * MIB)}
    node.server.ranges = False
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects


ODD = (
    "with space", "ünïcode/日本", "'quotes\"", "-dash", "--help", "a.part", "a", "%41?x=1&y#z",
    "b/.hidden", "…" * 80, "back\\slash", "~", "$HOME", "*", "parts", "record", "complete",
)  # fmt: skip


def test_odd_names_are_names(node: Node) -> None:
    node.server.objects = {name: name.encode() for name in ODD}
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/../../b", "", "."])
def test_a_path_that_leaves_the_folder_is_refused(node: Node, path: str) -> None:
    node.server.objects = {path: b"x"}
    assert node.run()["error"] == "order"
    assert not node.files.exists() or content(node.files) == {}


def test_a_complete_dataset_is_not_downloaded_again(node: Node) -> None:
    node.server.objects = {"a": b"1", "b/c": b"2"}
    node.run()
    node.server.seen.clear()
    assert "ready" in node.run()
    assert node.server.seen == []
    assert [each for each in node.answers if "need" in each] == []


def damage(path: Path, how: str) -> None:
    path.chmod(0o644)
    if how == "other bytes, same time":
        seen = path.stat()
        path.write_bytes(b"?" * seen.st_size)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif how == "deleted":
        path.unlink()
    elif how == "a link":
        path.unlink()
        path.symlink_to("/etc/passwd")
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("how", ["other bytes, same time", "deleted", "a link", "emptied"])
def test_a_file_that_a_task_damaged_is_downloaded_again_and_no_other(node: Node, how: str) -> None:
    node.server.objects = {"a": b"1111", "b/c": b"2222"}
    node.run()
    node.server.seen.clear()
    damage(node.files / "b" / "c", how)
    (node.files / "b" / "new").write_text("a task's")
    (node.files / "link").symlink_to("/tmp")
    assert "ready" in node.run()
    assert node.server.paths() == ["b/c"]
    assert content(node.files) == node.server.objects
    assert not (node.files / "link").is_symlink()


def test_a_file_that_only_its_times_changed_is_kept(node: Node) -> None:
    node.server.objects = {"a": b"1111"}
    node.run()
    node.server.seen.clear()
    (node.files / "a").chmod(0o644)
    os.utime(node.files / "a")
    assert "ready" in node.run()
    assert node.server.seen == []
    assert (node.files / "a").stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("large", [False, True])
def test_an_object_that_changed_since_it_was_listed_is_named(node: Node, large: bool) -> None:
    size = 40 * MIB if large else 10
    node.server.objects = {"a": b"1", "b": os.urandom(size)}
    listed = dict(node.server.objects)
    node.server.objects["b"] = os.urandom(size)
    answer = node.run(listed)
    assert (answer["error"], answer["n"]) == ("changed", 1)
    assert not (node.files / "b").exists()


def test_a_missing_object_is_named(node: Node) -> None:
    node.server.objects = {"a": b"1", "b": b"2"}
    listed = dict(node.server.objects)
    node.server.fault = lambda number, path: 404 if path == "b" else None
    assert node.run(listed)["error"] == "gone"


def test_bytes_that_differ_from_the_listed_checksum_are_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.server.objects = {"a": b"1"}

    def order(number: int, listed: Mapping[str, bytes]) -> None:
        request = {"url": node.server.url("a"), "headers": {}}
        node.tell(n=0, path="a", size=1, md5="0" * 32, request=request)

    monkeypatch.setattr(node, "order", order)
    assert node.run()["error"] == "corrupt"
    assert content(node.files) == {}


def test_a_broken_connection_continues_where_it_broke(node: Node) -> None:
    node.server.objects = {"a": os.urandom(4 * MIB)}
    node.server.fault = lambda number, path: "half" if number == 1 else None
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects
    assert node.server.seen[1] == ("a", f"bytes={2 * MIB}-{4 * MIB - 1}")


def test_a_busy_server_is_asked_again(node: Node) -> None:
    node.server.objects = {str(n): b"x" for n in range(20)}
    node.server.fault = lambda number, path: 503 if number % 3 == 0 and number < 20 else None
    assert "ready" in node.run()


@pytest.mark.parametrize("size", [10, 40 * MIB])
def test_an_expired_signature_is_renewed(node: Node, size: int) -> None:
    node.server.objects = {"a": b"x", "b": os.urandom(size)}
    node.server.signature, node.signature = "new", "old"
    node.renew = lambda: setattr(node, "signature", "new")
    assert "ready" in node.run()
    assert [each for each in node.answers if "again" in each]
    assert content(node.files) == node.server.objects


def test_parts_with_an_old_signature_use_the_new_one_without_asking_again(node: Node) -> None:
    """All parts are in hand when the signature expires, and are refused one after the other: each
    once the one before is requested with the new signature, and before any has arrived.
    """
    parts = 6
    node.server.objects = {"a": os.urandom(parts * 16 * MIB)}
    node.server.signature, node.signature = "new", "old"
    node.renew = lambda: setattr(node, "signature", "new")
    changed, seen = threading.Condition(), {"old": [""], "new": [""]}

    def arrive(signature: str, part: str) -> None:
        with changed:
            seen[signature].append(part)
            changed.notify_all()
            turn = len(seen["old"]) - 1 if signature == "old" else parts + 1
            changed.wait_for(
                lambda: len(seen["old"]) > parts and len(seen["new"]) >= turn, timeout=LIMIT
            )

    node.server.arrive = arrive
    assert "ready" in node.run()
    assert len([each for each in node.answers if "again" in each]) == 1
    assert sorted(seen["old"]) == sorted(seen["new"])
    assert content(node.files) == node.server.objects


def test_a_signature_that_is_refused_again_and_again_is_an_error(node: Node) -> None:
    node.server.objects = {"a": b"x"}
    node.signature = "s" * 40
    node.server.fault = lambda number, path: 403
    answer = node.run()
    assert answer["error"] == "refused"
    assert "403" in answer["text"]
    assert node.signature not in json.dumps(answer)


def test_a_dataset_that_does_not_fit_the_disk_is_refused_at_once(node: Node) -> None:
    node.server.objects = {"a": b"x"}
    process = node.started
    total = 1 << 60

    def started() -> subprocess.Popen[bytes]:
        tell = node.tell
        node.tell = lambda **order: tell(**{**order, "size": total})  # type: ignore[method-assign]
        return process()

    node.started = started  # type: ignore[method-assign]
    answer = node.run()
    assert answer["error"] == "room"
    assert answer["disks"][0]["need"] > total > answer["disks"][0]["free"] > 0
    assert node.server.seen == []


def test_the_bytes_of_a_client_are_stored_in_parts(node: Node) -> None:
    data = os.urandom(20 * MIB)
    node.server.objects = {"a": data, "b": b""}

    def order(number: int, listed: Mapping[str, bytes]) -> None:
        each = listed["ab"[number]]
        for offset in range(0, len(each) or 1, 16 * MIB):
            piece = each[offset : offset + 16 * MIB]
            md5 = hashlib.md5(each).hexdigest()
            facts = {"n": number, "path": "ab"[number], "size": len(each), "md5": md5}
            node.tell(**facts, offset=offset, length=len(piece))
            assert node.process
            assert node.process.stdin
            node.process.stdin.write(piece)
            node.process.stdin.flush()

    node.order = order  # type: ignore[method-assign]
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects


def test_a_file_of_this_machine_is_copied(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"hello")
    node.server.objects = {"a": b"hello"}

    def order(number: int, listed: Mapping[str, bytes]) -> None:
        mtime = source.stat().st_mtime_ns
        node.tell(n=0, path="a", size=5, md5="", copy=str(source), mtime=mtime)

    node.order = order  # type: ignore[method-assign]
    assert "ready" in node.run()
    (node.files / "a").chmod(0o644)
    (node.files / "a").write_text("a task's")
    assert source.read_bytes() == b"hello"


def test_a_second_download_waits_for_the_first_and_finds_it_done(node: Node) -> None:
    node.server.objects = {"a": os.urandom(MIB)}
    node.server.fault = lambda number, path: "wait"
    second = Node(node.cache, node.server)
    answers: list[dict[str, Any]] = []
    one = threading.Thread(target=lambda: answers.append(node.run()))
    one.start()
    until(lambda: node.server.seen)
    two = threading.Thread(target=lambda: answers.append(second.run()))
    two.start()
    until(lambda: second.answers)
    assert second.answers == [{"waiting": True}]
    node.server.gate.set()
    one.join(LIMIT)
    two.join(LIMIT)
    assert ["ready" in answer for answer in answers] == [True, True]
    assert len(node.server.seen) == 1


def test_a_killed_download_is_continued_and_is_never_complete_before(node: Node) -> None:
    large = os.urandom(80 * MIB)
    node.server.objects = {**{f"s/{n}": os.urandom(2000) for n in range(400)}, "large": large}
    node.md5 = False
    names = sorted(node.server.objects)
    chance = random.Random(4)
    marker = node.cache / "data" / KEY / "complete"
    for _ in range(12):
        node.answers, before = [], len(node.server.seen)
        node.server.fault = killer(node, before + chance.randrange(1, 90))
        answer = node.run()
        needed = [bits(told["have"]) for told in node.answers if "need" in told]
        had = {names[number] for whole in needed for number in whole}
        assert not had & set(node.server.paths()[before:])
        if "ready" in answer:
            break
        assert not marker.exists()
    node.server.fault = lambda number, path: None
    assert "ready" in node.run()
    assert content(node.files) == node.server.objects


def killer(node: Node, last: int) -> Callable[[int, str], None]:
    """A fault that kills the downloader at that request."""

    def fault(number: int, path: str) -> None:
        # Requests of the killed one may arrive later: not before this one has begun.
        if number >= last and any("need" in told for told in node.answers) and node.process:
            node.process.kill()

    return fault


def test_what_was_whole_before_a_kill_is_not_downloaded_again(node: Node) -> None:
    node.server.objects = {"a": b"x" * 100, "z": os.urandom(48 * MIB)}
    node.md5 = False
    node.server.fault = lambda number, path: "wait" if number == 4 else None
    run = threading.Thread(target=node.run)
    run.start()
    record = node.cache / "data" / KEY / "record"
    until(lambda: record.exists() and len(record.read_bytes().splitlines()) == 4)
    assert node.process
    node.process.kill()
    run.join(LIMIT)
    node.server.seen.clear()
    node.server.fault = lambda number, path: None
    assert "ready" in node.run()
    assert len(node.server.seen) == 1
    assert content(node.files) == node.server.objects


def test_after_a_reboot_without_a_sync_checksums_decide(node: Node) -> None:
    node.server.objects = {"a": b"1111", "b": b"2222", "c": os.urandom(40 * MIB)}
    node.md5 = False
    node.run()
    folder = node.cache / "data" / KEY
    until(lambda: b'"synced": true' in (folder / "complete").read_bytes())
    marker = json.loads((folder / "complete").read_bytes())
    (folder / "complete").write_text(json.dumps({**marker, "synced": False}))
    lines = (folder / "record").read_text().splitlines()
    (folder / "record").write_text("\n".join(['["boot", "another"]', *lines[1:], '["fi']) + "\n")
    lose(folder, "b")
    node.server.seen.clear()
    assert "ready" in node.run()
    assert node.server.paths() == ["b"]
    assert content(node.files) == node.server.objects


def lose(folder: Path, path: str) -> None:
    """A file as a crash may leave it: its size and times, none of its bytes."""
    file = folder / "files" / path
    file.chmod(0o644)
    file.write_bytes(b"\0" * file.stat().st_size)
    seen = file.stat()
    lines = []
    for line in (folder / "record").read_text().splitlines():
        if f'"{path}"' in line:
            told = json.loads(line)
            told[4:6] = [seen.st_mtime_ns, seen.st_ctime_ns]
            line = json.dumps(told)
        lines.append(line)
    (folder / "record").write_text("\n".join(lines) + "\n")


def test_the_end_of_the_client_ends_the_download(node: Node) -> None:
    node.server.objects = {"a": os.urandom(MIB)}
    node.server.fault = lambda number, path: "wait"
    process = node.started()
    assert process.stdout
    assert process.stdin
    process.stdout.readline()
    node.order(0, node.server.objects)
    until(lambda: node.server.seen)
    process.stdout.close()
    assert process.wait(LIMIT) == 1


def test_a_scratch_disk_that_is_not_mounted_is_not_used(node: Node, tmp_path: Path) -> None:
    node.server.objects = {"a": b"1"}
    node.roots = [str(tmp_path / "nvme" / "cloudtrain")]
    assert node.run()["root"] == str(node.cache)


def test_a_mounted_scratch_disk_is_used_first_and_found_again(node: Node, tmp_path: Path) -> None:
    node.server.objects = {"a": b"1"}
    with scratch_disk(tmp_path / "nvme") as node.inside:
        node.roots = [str(tmp_path / "nvme" / "cloudtrain")]
        assert node.run()["root"] == node.roots[0]
        node.server.seen.clear()
        assert node.run()["root"] == node.roots[0]
    assert node.server.seen == []


@contextmanager
def scratch_disk(place: Path) -> Iterator[Sequence[str]]:
    """Mounts a disk of 2 GB there, in memory, for commands that begin with these words alone: it
    holds only what is written, and /dev/shm has less room in some containers than a disk must have.
    """
    place.mkdir()
    line = f"mount -t tmpfs -o size=2g none {shlex.quote(str(place))} && echo done && exec cat"
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        if not holder.stdout.readline():
            pytest.skip("no private mounts on this machine")
        yield ["nsenter", "-t", str(holder.pid), "-U", "-m", "--preserve-credentials"]


def until(true: Callable[[], object], seconds: float = LIMIT) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it did not come true"
        time.sleep(0.02)


@pytest.mark.parametrize(("seconds", "threads"), [(0.001, 16), (0.009, 30), (0.2, 64)])
def test_the_longer_an_answer_takes_the_more_are_waited_for(seconds: float, threads: int) -> None:
    class Counted(fetcher.Fetcher):
        def begin(self) -> None:
            self.threads += 1

    folder = dataset_folder.Folder(b"/nowhere", b"key")
    counted = Counted(io.BytesIO(), 1, folder, most=64)
    for _ in range(fetcher.AT_ONCE):
        counted.begin()
    for late in range(100):
        counted.waited(seconds + late)
    assert counted.threads == threads


def test_those_that_are_there_go_on_where_no_more_threads_may_be_started() -> None:
    class Full(fetcher.Fetcher):
        def begin(self) -> None:
            if self.threads == 20:
                raise RuntimeError("can't start new thread")
            self.threads += 1

    full = Full(io.BytesIO(), 1, dataset_folder.Folder(b"/nowhere", b"key"), most=64)
    for _ in range(100):
        full.waited(1.0)
    assert (full.threads, full.most) == (20, 20)
