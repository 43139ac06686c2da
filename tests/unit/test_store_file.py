"""The store in a folder: whole files only, modes as the user has them, errors with a way out."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.artifacts.manifest import ManifestWriter
from cloudtrain.core.errors import PermissionsError, StoreError
from cloudtrain.stores import disk
from cloudtrain.stores.file import PARTIAL, FileStore


@pytest.mark.parametrize(
    "uri", ["file://{0}/a%20b/%C3%BC%25", "file://{0}/a b/ü%", "FILE://{0}/a b/ü%25"]
)
def test_a_uri_may_be_percent_encoded_or_not(tmp_path: Path, uri: str) -> None:
    FileStore(uri.format(tmp_path)).upload("x", [b"1"])
    assert (tmp_path / "a b" / "ü%" / "x").read_bytes() == b"1"


def test_files_and_folders_have_the_modes_that_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        FileStore((tmp_path / "store").as_uri()).upload("run/x", [b"1"])
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "store/run/x").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "store/run").stat().st_mode) == 0o750


def test_a_file_is_never_seen_half_under_its_name(tmp_path: Path) -> None:
    store = FileStore(tmp_path.as_uri())
    store.upload("run/x", [b"old"])

    def looking() -> Any:
        yield b"new "
        assert (tmp_path / "run/x").read_bytes() == b"old"
        assert [found.path for found in store.list()] == ["run/x"]
        yield b"and more"

    store.upload("run/x", looking())
    assert (tmp_path / "run/x").read_bytes() == b"new and more"
    assert list((tmp_path / PARTIAL).iterdir()) == []


class Killed(BaseException):
    pass


class Disk:
    """The system calls of a store that is killed after `calls` of them. No file has its name before
    it is synced, and `unsynced` are the folders with names that are not.
    """

    def __init__(self, calls: int, patch: pytest.MonkeyPatch) -> None:
        self._calls, self._synced, self.unsynced = calls, set[int](), set[int]()
        self._fsync, self._replace = os.fsync, os.replace
        for name in ("open", "mkdir", "write", "unlink"):
            patch.setattr(os, name, partial(self.call, getattr(os, name)))
        patch.setattr(os, "fsync", partial(self.call, self.fsync))
        patch.setattr(os, "replace", partial(self.call, self.replace))

    def call(self, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self._calls == 0:
            raise Killed
        self._calls -= 1
        return real(*args, **named)

    def fsync(self, file: int) -> None:
        self._synced.add(os.fstat(file).st_ino)
        self.unsynced.discard(os.fstat(file).st_ino)
        self._fsync(file)

    def replace(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        assert os.stat(source, dir_fd=src_dir_fd).st_ino in self._synced
        self.unsynced.add(os.fstat(dst_dir_fd).st_ino)
        self._replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def test_a_kill_at_any_call_leaves_each_file_of_a_batch_whole_or_absent(tmp_path: Path) -> None:
    files = {f"run/{folder}/{name}": [name.encode(), b"!"] for folder in "ab" for name in "xyz"}
    for calls in itertools.count():
        store = FileStore((tmp_path / str(calls)).as_uri())
        store.upload("run/a/x", [b"old"])
        with pytest.MonkeyPatch.context() as patch:
            calls_to = Disk(calls, patch)
            try:
                stored = store.upload_all(files)
            except Killed:
                stored = []
        held = {each.path: b"".join(store.download(each.path)) for each in store.list()}
        whole = {path: b"".join(data) for path, data in files.items()}
        assert held.pop("run/a/x") in (b"old", whole["run/a/x"])
        assert held.items() <= whole.items()
        if stored:
            break
        assert [each.path for each in store.upload_all(files)] == list(files)
    assert calls > 4 * len(files)
    assert (len(held), calls_to.unsynced) == (len(files) - 1, set())
    assert [each.sha256 for each in stored] == [sha256(whole[path]).hexdigest() for path in files]
    assert list((store.root / PARTIAL).iterdir()) == []


@pytest.mark.parametrize("syncfs", [True, False])
def test_what_a_manifest_names_is_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncfs: bool
) -> None:
    """Also of many files, which are not synced one by one."""
    unsynced, names, replace, fsync = set[int](), list[str](), os.replace, os.fsync

    def named(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        unsynced.add(os.fstat(dst_dir_fd).st_ino)
        replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        names.append(target)
        if target == "manifest.json":
            assert unsynced == {os.fstat(dst_dir_fd).st_ino}, "its own folder comes last"

    def synced(opened: int) -> None:
        unsynced.discard(os.fstat(opened).st_ino)
        fsync(opened)

    monkeypatch.setattr(disk, "SYNCFS_TELLS", syncfs)
    monkeypatch.setattr(disk, "FEW", 2)
    monkeypatch.setattr(disk, "syncfs", lambda opened: unsynced.clear())
    monkeypatch.setattr(os, "replace", named)
    monkeypatch.setattr(os, "fsync", synced)
    store = FileStore((tmp_path / "new").as_uri())
    writer = ManifestWriter(store, "run")
    for number in range(4):
        stored = store.upload_all({f"run/{folder}/{number}": [b"1"] for folder in "ab"})
        assert bool(unsynced) == (syncfs and number > 0)
        writer.add(writer.landed(each.path[4:], each) for each in stored)
    writer.save()
    assert (len(names), names[-1], unsynced) == (9, "manifest.json", set())


def test_a_disk_that_failed_once_gets_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(opened: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "SYNCFS_TELLS", True)
    monkeypatch.setattr(disk, "FEW", 0)
    monkeypatch.setattr(disk, "syncfs", failing)
    store = FileStore(tmp_path.as_uri())
    writer = ManifestWriter(store, "run")
    writer.add(writer.landed("a", each) for each in store.upload_all({"run/a": [b"1"]}))
    for _ in range(2):
        with pytest.raises(StoreError, match="Input/output error"):
            writer.save()
    assert [found.path for found in store.list()] == ["run/a"]


def test_a_file_of_a_batch_that_is_refused_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def refused() -> Any:
        yield b"half"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = FileStore(tmp_path.as_uri())
    with pytest.raises(StoreError, match=f"{tmp_path}/run/2: No space left on device"):
        store.upload_all({"run/1": [b"whole"], "run/2": refused()})
    assert list(store.list()) == list((tmp_path / PARTIAL).iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words", "way_out"),
    [
        (errno.ENOSPC, "No space left on device", "free some"),
        (errno.EROFS, "Read-only file system", "choose a writable place"),
        (errno.EIO, "Input/output error", "read and written"),
    ],
)
def test_what_the_system_refuses_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, way_out: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    store = FileStore(tmp_path.as_uri())
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(StoreError, match=f"{tmp_path}/run/x: {words}") as raised:
        store.upload("run/x", [b"1"])
    assert way_out in str(raised.value.hint)
    assert raised.value.exit_code == 5
    monkeypatch.undo()
    assert list((tmp_path / PARTIAL).iterdir()) == []


def test_a_check_without_the_right_to_write_is_about_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionsError, match=f"{tmp_path}.*: Permission denied") as raised:
        FileStore(tmp_path.as_uri()).check()
    assert raised.value.exit_code == 4


def test_a_file_where_the_store_should_be_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.write_text("in the way")
    store = FileStore(place.as_uri())
    with pytest.raises(StoreError, match=str(place)):
        store.check()
    with pytest.raises(StoreError, match=str(place)):
        list(store.list("run/"))
    assert place.read_text() == "in the way"


def test_a_check_clears_away_what_killed_uploads_left_a_day_ago(tmp_path: Path) -> None:
    store = FileStore(tmp_path.as_uri())
    store.upload("x", [b"1"])
    for name, age in (("old", 90_000), ("young", 10)):
        left = tmp_path / PARTIAL / name
        left.write_bytes(b"half")
        now = left.stat().st_mtime
        os.utime(left, (now - age, now - age))
    store.check()
    assert [path.name for path in (tmp_path / PARTIAL).iterdir()] == ["young"]


def test_files_that_are_compared_together_open_their_folders_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, opened, really = FileStore(tmp_path.as_uri()), list[str](), os.open
    files = {f"run/a/b/{number}": [b"x" * number] for number in range(5)}
    files |= {"run/c": [b"y"], "run/d": [b"z" * (1 << 21)]}
    stored = store.upload_all(files)

    def counting(name: str, *args: Any, **named: Any) -> int:
        opened.append(Path(name).name)
        return really(name, *args, **named)

    monkeypatch.setattr(os, "open", counting)
    assert store.checksums(iter(files)) == {each.path: each.sha256 for each in stored}
    top = tmp_path.name
    assert opened == [top, "run", "a", "b", "0", "1", "2", "3", "4", top, "run", "c", "d"]
    with pytest.raises(StoreError, match=f"{tmp_path}/run/gone: No such file"):
        store.checksums(["run/c", "run/gone"])


@pytest.mark.parametrize("link", ["run", "run/chief0", PARTIAL])
@pytest.mark.parametrize("work", ["upload", "delete", "swap", "peek", "download", "checksums"])
def test_no_link_below_the_store_is_followed(tmp_path: Path, link: str, work: str) -> None:
    """Whoever may write to a shared folder could lead what is written, or deleted, to the home."""
    home, root, path = tmp_path / "home", tmp_path / "store", "run/chief0/config"
    theirs = home / path.removeprefix(f"{link}/")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the user's")
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(home)
    store = FileStore(root.as_uri())
    before = sorted(home.rglob("*"))
    with suppress(StoreError):
        if work == "upload":
            store.upload(path, [b"hostile"])
        elif work == "delete":
            store.delete(path)
        elif work == "swap":
            store.swap(path, b"hostile", "")
        elif work == "peek":
            assert store.peek(path).data == b""
        elif work == "checksums":
            assert store.checksums([path])[path] != sha256(b"the user's").hexdigest()
        else:
            assert b"".join(store.download(path)) != b"the user's"
    assert (theirs.read_text(), sorted(home.rglob("*"))) == ("the user's", before)
