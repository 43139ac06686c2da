"""Builds one archive of files, which is uploaded while the files are read.

It is a GNU tar of `work/<path in the work folder>` and `logs/attempt-<n>`; its last member is an
index of the files. Read back by artifacts/spool_archive.py.
"""

import bisect
import collections.abc
import contextlib
import hashlib
import itertools
import json
import os
import tarfile
import threading
from typing import Any

from cloudtrain.node import client, formats, listing, web


def logs_of(attempt: str) -> "list[listing.File]":
    """The metrics and the log up to their current length; they may still grow."""
    found = []
    for source, name in (("/metrics", attempt + formats.METRICS), ("/log", attempt)):
        size = 0
        with contextlib.suppress(OSError):
            size = os.stat(attempt + source).st_size
        if size:
            path = formats.ARCHIVED_LOGS + name
            found.append(listing.File(path, attempt + source, size, str(size)))
    return found


def listed(
    work: bytes,
    wanted: "list[str]",
    home: "bytes | None" = None,
    changed: bool = False,
    unread: "list[str] | None" = None,
) -> "dict[str, listing.File]":
    """List files by path in the work folder; `changed`: also those that the task made or changed,
    there and in the home; `unread` gets what cannot be read, with its error. In each, `path` is the
    name in an archive and `source` the path to read."""
    top = client.text(os.path.realpath(work))
    found = {}
    with contextlib.suppress(OSError):
        files = listing.Listing(work, wanted, home, restored=False)
        for file in itertools.chain(files.files(), files.changed() if changed else ()):
            name, source = formats.ARCHIVED_WORK + file.path, os.path.join(top, file.source)
            found[file.path] = listing.File(name, source, file.size, file.stamp, file.named)
        if unread is not None:
            unread.extend(files.unread)
    return found


class Reading:
    """The part of a file that an archive has read, up to the size that was listed."""

    def __init__(self, file: listing.File) -> None:
        self.file = file
        self.restart()

    def restart(self) -> None:
        self.sha256 = hashlib.sha256()
        self.hashed = 0
        self.is_whole = not self.file.size

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes; missing ones become zeros, and the file then counts as incomplete."""
        data = b""
        path = client.plain(self.file.source)
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), length, offset)
            if offset <= self.hashed:
                self.sha256.update(data[self.hashed - offset :])
                self.hashed = max(self.hashed, offset + len(data))
            if self.hashed == self.file.size:
                grows = self.file.path.startswith(formats.ARCHIVED_LOGS)
                self.is_whole = grows or listing.stamp(os.fstat(file.fileno())) == self.file.stamp
        return data or b"\0" * length

    def facts(self) -> "dict[str, Any]":
        return {
            "name": self.file.path,
            "size": self.file.size,
            "stamp": self.file.stamp,
            "sha256": self.sha256.hexdigest(),
            "whole": int(self.is_whole),
        }


class Archive:
    """An archive whose index is written after its files were read, into reserved space.
    `checkpoint`: the files of `folder`, which are useful only together; some may have been stored
    before. `again` lists them again. `left`: bytes by folder of what it does not have."""

    def __init__(
        self,
        files: "list[listing.File]",
        folder: "str | None",
        checkpoint: "dict[str, str]",
        again: "collections.abc.Callable[[], dict[str, str]]",
        left: "dict[str, int] | None" = None,
    ) -> None:
        self.readings, self.folder = [Reading(file) for file in files], folder
        self.left = dict(left or {})
        self.checkpoint, self.again = checkpoint, again
        self.checkpoint_is_whole = False
        self.starts = []  # type: list[int]
        self.spans = []  # type: list[bytes | Reading | None]
        self.size = 0
        for reading in self.readings:
            size = reading.file.size
            self.add(header(reading.file.path, size))
            self.add(reading, size)
            self.add(b"\0" * (-size % tarfile.BLOCKSIZE))
        self.about = self.index()
        self.add(header(formats.ABOUT, len(self.about)))
        self.add(None, len(self.about))
        self.add(b"\0" * (-len(self.about) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))

    def add(self, span: "bytes | Reading | None", size: int = -1) -> None:
        size = len(span) if isinstance(span, bytes) else size
        if size:
            self.starts.append(self.size)
            self.spans.append(span)
            self.size += size

    def index(self) -> bytes:
        """The index; its length does not depend on its values."""
        facts = {
            "checkpoint": {"folder": self.folder, "files": self.checkpoint},
            "whole": int(self.checkpoint_is_whole),
            "files": [reading.facts() for reading in self.readings],
            "left": self.left,
        }
        return json.dumps(facts).encode("ascii")

    def whole(self) -> "list[listing.File]":
        """The files that were read to their end and did not change meanwhile."""
        return [reading.file for reading in self.readings if reading.is_whole]

    def pread(self, length: int, offset: int) -> bytes:
        if offset == 0:  # from the beginning, perhaps again
            for reading in self.readings:
                reading.restart()
        at = bisect.bisect_right(self.starts, offset) - 1
        span, start = self.spans[at], self.starts[at]
        end = self.starts[at + 1] if at + 1 < len(self.starts) else self.size
        length, offset = min(length, end - offset), offset - start
        if isinstance(span, Reading):
            return span.read(offset, length)
        if span is None:
            if offset == 0:
                self.checkpoint_is_whole = bool(self.checkpoint) and self.checkpoint == self.again()
                self.about = self.index()
            span = self.about
        return span[offset : offset + length]


class Text:
    """Bytes as an archive has them: of a known size, read by position."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def pread(self, length: int, offset: int) -> bytes:
        return self.data[offset : offset + length]


def header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def store(request: "dict[str, Any]", piece: int, archive: "Archive | Text") -> None:
    """Upload without an MD5, which would need all bytes before the first is sent: a notice may
    leave only 30 s. The archive's SHA-256s are checked when it is ingested."""
    connections = web.Web()
    if piece:
        connections.in_pieces(request, archive, archive.size, piece)
    else:
        part = web.Part(request, archive, 0, archive.size)
        web.patiently(lambda: connections.send(part))


# ── The node's end, and how many bytes can be uploaded until then ─────────────────────────────

LIMIT = (4 << 30) - (64 << 20)
"""Maximum bytes of files in one archive; a request may store 4 GiB."""

FIRST = 64 << 20
"""Maximum bytes of the first archive near the end while no upload has been measured."""

LEAST = 8 << 20
"""Maximum bytes of an archive, however slow the uploads."""

MEASURABLE = 1 << 20
"""Bytes from which an upload is a measure of the rate."""

SHARE = 4
"""An archive takes at most this part of the remaining time, as the node's end may interrupt it."""

MARGIN = 30.0
"""Seconds that are kept in addition to twice those that uploads took so far."""

EARLIEST = 3600.0
"""Maximum seconds before the node's end at which uploads begin because they are slow."""

SAVING = 30.0
"""Maximum seconds for a task to save its checkpoint after SIGTERM, before that is uploaded."""


class Ending:
    """Unix times: `at` of the node's end, `last` of the first upload before it, `stop` of the
    SIGTERM to its task. `word` says what was announced: `preempted`, `shutdown`, `lifetime`."""

    def __init__(self, at: float, last: float, stop: float) -> None:
        self.at, self.last, self.stop = at, last, stop
        self.latest = last, stop
        self.word = ""
        self.save_until = 0.0
        self.rate = 0.0
        self.lock = threading.Lock()

    def announce(self, word: str, now: float, seconds: float) -> bool:
        """Note that the node ends in `seconds`; returns False if an end was announced before."""
        with self.lock:
            self.at = min(self.at, now + seconds)
            if self.word:
                return False
            self.save_until = now + min(SAVING, max(0.0, self.at - now) / 3)
            self.word = word
            return True

    def is_near(self, now: float) -> bool:
        return self.word != "" or now >= self.last

    def measure(self, size: int, seconds: float) -> None:
        if size >= MEASURABLE:
            self.rate = size / max(seconds, 1e-3)

    def is_in_reach(self, now: float) -> bool:
        """True if slow uploads would have to begin about now, and their rate is known."""
        return self.rate > 0 and not self.word and now >= self.at - EARLIEST

    def plan(self, size: int, checkpoint: int) -> None:
        """Begin early enough for `size` bytes, and the last checkpoint after the task has ended."""
        self.last = min(self.latest[0], self.at - self.seconds_for(size))
        self.stop = min(self.latest[1], self.at - self.seconds_for(checkpoint) / 2)

    def seconds_for(self, size: int) -> float:
        return min(EARLIEST, 2 * size / self.rate + MARGIN) if self.rate else MARGIN

    def room(self, now: float) -> int:
        """Maximum bytes of files in an archive that is begun now."""
        if not self.is_near(now):
            return LIMIT
        if not self.rate:
            return FIRST
        return int(min(LIMIT, max(LEAST, self.rate * max(0.0, self.at - now) / SHARE)))
