"""What is in a task's work folder on its node: names, sizes, stamps, links, checksums."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudtrain.errors import NodeError, NotLanded
from cloudtrain.landing.links import Entry, Lost, resolved
from cloudtrain.model import Node
from cloudtrain.paths import matches, may_hold, shown
from cloudtrain.protocols import Completed, Transport
from cloudtrain.shell import Command, script

SILENCE = 120.0
"""Seconds without a byte from a listing, a checksum or a stream: the node is then not there."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A regular file. `path` is its name in the work folder, `source` the one without links.

    `mtime` is in ns. While `stamp` (times of content and inode, and the inode) is the same,
    the content is, unless it was changed within the clock's tick or through a mapping.
    """

    path: str
    source: str
    size: int
    mtime: int
    stamp: str


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """`warnings`: what matches and cannot be landed; `unread`: what find could not read."""

    files: tuple[File, ...]
    warnings: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def take_inventory(
    node: Node, folder: str, patterns: Sequence[str], transport: Transport
) -> Inventory:
    """Every file of the folder that a pattern means. A folder that is not there has none."""
    done = transport.run(node, listing(folder), timeout=SILENCE)
    if done.exit_code == NO_FOLDER:
        return Inventory(files=())
    roots, entries = parse_listing(done.stdout)
    if not roots or done.exit_code not in (0, 1):  # 1: find could not read some of it
        raise failed(node, f"its files in {folder} cannot be listed", done)
    files, warnings = chosen(roots, entries, patterns)
    return Inventory(files=files, warnings=warnings, unread=_unread(done.stderr, patterns))


NO_FOLDER = 44


def listing(folder: str) -> Command:
    """Prints the folder's path without and with links, then each name: facts, path, link target.

    `-printf` and its directives: https://www.gnu.org/software/findutils/manual/html_mono/find.html
    """
    return script(LISTING, folder, str(NO_FOLDER))


LISTING = r"""
[ -d "$1" ] || exit "$2"
cd "$1" || exit
printf '%s\0%s\0' "$(pwd -P)" "$(pwd -L)"
LC_ALL=C exec find . -mindepth 1 -printf '%y %s %T@ %C@ %i\0%P\0%l\0'
"""


def parse_listing(data: bytes) -> tuple[tuple[str, ...], dict[str, Entry]]:
    """The folder's own absolute paths (none: nothing came) and every name below it."""
    fields = os.fsdecode(data).split("\0")
    if len(fields) < 3:
        return (), {}
    rows = fields[2:-1]
    entries = {}
    for facts, path, target in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
        kind, size, mtime, ctime, inode = facts.split(" ")
        stamp = f"{mtime}/{ctime}/{inode}"
        entries[path] = Entry(
            kind=kind, size=int(size), mtime=nanoseconds(mtime), stamp=stamp, target=target
        )
    return tuple(fields[:2]), entries


def nanoseconds(seconds: str) -> int:
    whole, _, fraction = seconds.partition(".")
    return int(whole) * 10**9 + int(fraction[:9].ljust(9, "0"))


def _unread(stderr: bytes, patterns: Sequence[str]) -> tuple[str, ...]:
    """What find says that it could not read and that may hold something that a pattern means.

    A name that vanished meanwhile is not missed.
    """
    found = []
    for line in os.fsdecode(stderr).splitlines():
        name = re.match(r"find: '\./(.*)': ", line)
        relevant = not name or any(may_hold(name[1], pattern) for pattern in patterns)
        if line and relevant and "No such file" not in line:
            found.append(shown(line))
    return tuple(found)


def chosen(
    roots: Sequence[str], entries: Mapping[str, Entry], patterns: Sequence[str]
) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files that the patterns mean, and a warning for each other thing that they mean."""
    files, warnings = [], []
    for path, source in resolved(roots, entries, patterns):
        if isinstance(source, Lost):
            warnings.append(f"{shown(path)} {source.why}: not landed")
            continue
        if not any(matches(path, pattern) for pattern in patterns):
            continue
        entry = entries[source]
        if entry.kind != "f":
            kind = _KINDS.get(entry.kind, "not a regular file")
            warnings.append(f"{shown(path)} is {kind}: not landed")
            continue
        files.append(
            File(path=path, source=source, size=entry.size, mtime=entry.mtime, stamp=entry.stamp)
        )
    return tuple(files), tuple(warnings)


_KINDS = {"p": "a named pipe", "s": "a socket", "b": "a device", "c": "a device"}


class Stop:
    """Set from another thread; work that takes long looks at it with each piece that comes."""

    def __init__(self, above: Stop | None = None) -> None:
        self._event = threading.Event()
        self._above = above

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises NotLanded once it, or the one above it, is set."""
        if self._event.is_set():
            raise NotLanded("landing was interrupted")
        if self._above is not None:
            self._above.check()


def checksums(
    node: Node, folder: str, sources: Iterable[str], transport: Transport, stop: Stop
) -> dict[str, str]:
    """SHA-256 of each file as it is on the node now; one that cannot be read is not in it."""
    names = names_on_stdin(sources)
    if not names:
        return {}
    words = bytearray()

    def hear(data: bytes) -> None:
        stop.check()
        words.extend(data)

    done = transport.run(node, summing(folder), stdin=names, on_stderr=hear, timeout=SILENCE)
    done = replace(done, stderr=bytes(words).replace(b"\0", b""))
    if done.exit_code not in (0, 123):  # xargs: some of the files could not be read
        raise failed(node, f"its files in {folder} cannot be checked", done)
    found = {}
    for row in os.fsdecode(done.stdout).split("\0")[:-1]:
        digest, name = row[:64], row[66:]
        found[name.removeprefix("./")] = digest
    return found


def summing(folder: str) -> Command:
    """A large file gives no byte for minutes: a NUL on stderr each 5 s says that it goes on."""
    return script(SUMMING, folder)


SUMMING = r"""
cd "$1" || exit
( while sleep 5 </dev/null >/dev/null 2>&1; do printf '\0' >&2; done ) >/dev/null &
trap "kill $! 2>/dev/null" EXIT
LC_ALL=C xargs -0 sha256sum -z --
"""


def names_on_stdin(sources: Iterable[str]) -> bytes:
    """NUL after each; `./` before each, so that none is taken for an option."""
    return b"".join(os.fsencode(f"./{source}") + b"\0" for source in sources)


def failed(node: Node, what: str, done: Completed) -> NodeError:
    words = os.fsdecode(done.stderr).strip().splitlines()
    return NodeError(
        node.name,
        f"{what}: {shown(words[-1]) if words else f'exit code {done.exit_code}'}",
        hint="`cloudtrain ssh` shows the node as it is; what is there stays there",
    )
