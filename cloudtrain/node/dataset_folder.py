"""A dataset's folder on a node: where it lies, what of it is whole, and when it is complete.

`<root>/data/<key>` has `files` (what tasks read), `parts` (files that are being downloaded),
`record` (a JSON line for each whole file or part) and, once it is complete, `complete`. A file
counts only while size, times and, after a reboot without a sync, checksum are as recorded: so a
crash or a task that changed a file leads to a new download of that file and no other.
"""

import collections.abc
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
import typing
import zlib

from cloudtrain.node import client

SPARE = 1 << 30
"""Bytes to leave free on the disk for other programs on the node."""
BLOCK = 4096
"""Bytes of disk that a small file takes at least."""
PIECE = 1 << 18


class Failed(Exception):
    """The dataset cannot be brought here; `facts` for the client."""

    def __init__(self, facts: "dict[str, object]") -> None:
        super().__init__()
        self.facts = facts


class Entry(typing.NamedTuple):
    """A whole file, as the record has it: by its times, in ns, it is known to be unchanged."""

    number: int
    size: int
    path: str
    modified: int
    changed: int
    digest: str


def entry_of(number: int, path: str, seen: os.stat_result, digest: str) -> Entry:
    return Entry(number, seen.st_size, path, seen.st_mtime_ns, seen.st_ctime_ns, digest)


class Folder:
    def __init__(self, root: bytes, key: bytes) -> None:
        self.root = root
        self.lock = os.path.join(root, b"data", key + b".lock")
        self.top = os.path.join(root, b"data", key)
        self.files = os.path.join(self.top, b"files")
        self.parts = os.path.join(self.top, b"parts")
        self.record = os.path.join(self.top, b"record")
        self.marker = os.path.join(self.top, b"complete")
        self.whole = {}  # type: dict[int, Entry]
        self.pieces = {}  # type: dict[int, dict[tuple[int, int], str]]
        self.complete = False

    def look(self) -> None:
        """Find what is whole; delete everything else in `files`."""
        self.whole, self.pieces = {}, {}
        marker = read_json(self.marker)
        self.complete = bool(marker)
        lines = self.lines()
        boot = next((line[1] for line in lines if line[0] == "boot"), "")
        trusted = marker.get("synced") is True or boot == client.boot_id() != ""
        renewed = False
        for line in lines:
            if line[0] == "file":
                entry = Entry(*line[1:])
                same = self.unchanged(entry, trusted)
                renewed = renewed or same != entry
                if same is None:
                    self.complete = False
                else:
                    self.whole[same.number] = same
            elif line[0] == "part" and self.has_part(line, trusted):
                self.pieces.setdefault(line[1], {})[line[2], line[3]] = line[4]
        self.remove_strangers()
        if marker and not self.complete:
            os.unlink(self.marker)
        if lines and (renewed or not trusted):
            self.rewrite()

    def lines(self) -> "list[list[typing.Any]]":
        """The record without lines that a crash has damaged."""
        found = []
        with contextlib.suppress(OSError), open(self.record, "rb") as record:
            for text in record:
                with contextlib.suppress(ValueError):
                    line = json.loads(text.decode("ascii"))
                    if isinstance(line, list) and len(line) == LENGTHS.get(str(line[0])):
                        found.append(line)
        return found

    def unchanged(self, entry: Entry, trusted: bool) -> "Entry | None":
        """The entry with the file's present times; None if its content is another."""
        path = self.place(entry.path)
        try:
            seen = os.lstat(path)
        except OSError:
            return None
        now = entry_of(entry.number, entry.path, seen, entry.digest)
        if trusted and now == entry:
            return entry
        is_file = stat.S_ISREG(seen.st_mode) and now.size == entry.size
        if not is_file or file_digest(path, entry.digest) != entry.digest:
            return None
        os.chmod(path, 0o444)
        return entry_of(entry.number, entry.path, os.lstat(path), entry.digest)

    def has_part(self, line: "list[typing.Any]", trusted: bool) -> bool:
        number, offset, length = line[1:4]
        try:
            with open(self.part(number), "rb", buffering=0) as file:
                if trusted:
                    return bool(os.fstat(file.fileno()).st_size >= offset + length)
                digest = str(line[4])
                return part_digest(file.fileno(), offset, length, len(digest) == 8) == digest
        except OSError:
            return False

    def remove_strangers(self) -> None:
        """Delete what a task or an older download has left in `files`."""
        known = {self.place(entry.path) for entry in self.whole.values()}
        for folder, folders, names in os.walk(self.files):
            for name in names + folders:
                path = os.path.join(folder, name)
                if path not in known and (os.path.islink(path) or not os.path.isdir(path)):
                    os.unlink(path)

    def rewrite(self) -> None:
        lines = [["boot", client.boot_id()]]  # type: list[list[object]]
        lines.extend(["file", *entry] for entry in self.whole.values())
        for number, pieces in self.pieces.items():
            lines.extend(["part", number, *part, digest] for part, digest in pieces.items())
        replace(self.record, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def prepare(self) -> None:
        """Make the folders; the record's first line is this boot's."""
        os.makedirs(self.files, exist_ok=True)
        os.makedirs(self.parts, exist_ok=True)
        self.rewrite()

    def finish(self, size: int, files: int) -> None:
        """Mark the dataset complete, at once for programs, later for a crash of the machine."""
        shutil.rmtree(self.parts, ignore_errors=True)
        replace(self.marker, json.dumps({"files": files, "size": size, "synced": False}).encode())
        self.complete = True

    def sync(self) -> None:
        """Write everything to the disk, after which a reboot needs no checksums."""
        marker = read_json(self.marker)
        top = os.open(self.top, os.O_RDONLY)
        if ctypes.CDLL(None).syncfs(top) == 0 and os.path.exists(self.marker):
            alone(self.lock, lambda: None)  # a later look may have found the dataset damaged
            if marker and marker == read_json(self.marker):
                replace(self.marker, json.dumps(dict(marker, synced=True)).encode())
                os.fsync(top)

    def place(self, path: str) -> bytes:
        return os.path.join(self.files, client.plain(path))

    def part(self, number: int) -> bytes:
        return os.path.join(self.parts, str(number).encode())

    def has(self) -> int:
        """Bytes that need no download."""
        parts = sum(length for each in self.pieces.values() for _, length in each)
        return parts + sum(entry.size for entry in self.whole.values())


LENGTHS = {"boot": 2, "file": 7, "part": 5}


def safe(path: str) -> str:
    """The path if it stays in its folder. Raises ValueError."""
    parts = path.split("/")
    if not path or "\0" in path or {"", ".", ".."} & set(parts):
        raise ValueError("is no path of a file in a folder")
    return path


def chosen(order: "dict[str, typing.Any]", key: bytes) -> Folder:
    """The folder with the dataset or some of it, or on the first disk with room. Raises Failed."""
    size, count = order["size"], order["files"]
    roots = [client.plain(root) for root in order["roots"]]
    folders = [Folder(root, key) for root in roots if root == roots[-1] or usable(root)]
    for folder in folders:
        folder.look()
    folders.sort(key=lambda folder: (not folder.complete, -folder.has()))
    tight = []
    for folder in folders:
        left = max(0, count - len(folder.whole))
        need = size - folder.has() + left * BLOCK
        free, inodes = room(folder.root)
        if folder.complete or (need + SPARE <= free and left <= inodes):
            return folder
        tight.append({"folder": client.text(folder.root), "need": need + SPARE, "free": free})
        if need + SPARE <= free:
            tight[-1].update(inodes=inodes, count=left)
    raise Failed({"error": "room", "disks": tight})


def usable(root: bytes) -> bool:
    """True if the scratch disk is mounted and a folder of ours on it can be written."""
    if not os.path.ismount(os.path.dirname(root)):
        return False
    if not os.path.isdir(root):
        with contextlib.suppress(OSError):
            os.mkdir(root, 0o755)
    if not os.path.isdir(root):
        own = ["-o", str(os.getuid()), "-g", str(os.getgid()), "-m", "755"]
        command = ["sudo", "-n", "install", "-d", *own, client.text(root)]
        with contextlib.suppress(OSError):
            subprocess.call(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return os.access(root, os.W_OK)


def room(folder: bytes) -> "tuple[int, int]":
    """Free bytes and files of the disk that the folder is or will be on."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or b"."
    seen = os.statvfs(folder)
    return seen.f_bavail * seen.f_frsize, seen.f_favail if seen.f_files else 1 << 62


def alone(path: bytes, waiting: "collections.abc.Callable[[], None]") -> int:
    """Hold the lock until all copies of the returned descriptor are closed; `waiting()` is called
    every 0.1 s while another program holds it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            waiting()
            time.sleep(0.1)


def file_digest(path: bytes, kind: str) -> str:
    """Digest of a file, as `kind` names it: `md5:…`, or SHA-256 of the whole or of its parts."""
    try:
        with open(path, "rb", buffering=0) as file:
            method, _, rest = kind.partition(":")
            if method == "parts":
                size = os.fstat(file.fileno()).st_size
                length = int(rest.partition(":")[0])
                whole = hashlib.sha256()
                for offset in range(0, size, length):
                    part = part_digest(file.fileno(), offset, min(length, size - offset))
                    whole.update(part.encode())
                return f"parts:{length}:{whole.hexdigest()}"
            digest = hashlib.new(method)
            for data in iter(lambda: file.read(PIECE), b""):
                digest.update(data)
            return f"{method}:{digest.hexdigest()}"
    except (OSError, ValueError):
        return ""


class Crc:
    """CRC-32 as a hash, several times faster: of parts, where the whole has an MD5."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: "bytes | memoryview") -> None:
        self.value = zlib.crc32(data, self.value)

    def hexdigest(self) -> str:
        return f"{self.value:08x}"


def part_hash(whole_has_md5: bool) -> "hashlib._Hash | Crc":
    return Crc() if whole_has_md5 else hashlib.sha256()


def part_digest(file: int, offset: int, length: int, is_crc: bool = False) -> str:
    digest, end = part_hash(is_crc), offset + length
    while offset < end:
        data = os.pread(file, min(PIECE, end - offset), offset)
        if not data:
            break
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def read_json(path: bytes) -> "dict[str, object]":
    try:
        with open(path, "rb") as file:
            read = json.loads(file.read().decode("ascii"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def replace(path: bytes, data: bytes) -> None:
    with open(path + b".new", "wb") as file:
        file.write(data)
    os.replace(path + b".new", path)
