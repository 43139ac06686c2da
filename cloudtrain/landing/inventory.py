"""What is in a task's work folder on its node: names, sizes, stamps, links, checksums."""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cloudtrain.errors import NodeError, NotLanded
from cloudtrain.landing.links import Entry, Lost, resolved
from cloudtrain.model import Node
from cloudtrain.node.patterns import matches, may_hold
from cloudtrain.paths import is_inside, shown
from cloudtrain.protocols import Completed, Transport
from cloudtrain.shell import Command, script

T = TypeVar("T")

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
    answer = Answer(node, f"its list of the files in {folder}", LISTED)
    done = transport.run(node, listing(folder), on_stdout=answer.take, timeout=SILENCE)
    if done.exit_code == NO_FOLDER:
        return Inventory(files=())
    roots, entries = understood(answer, parse_listing)
    if not roots or done.exit_code not in (0, 1):  # 1: find could not read some of it
        raise failed(node, f"its files in {folder} cannot be listed", done)
    files, warnings = chosen(roots, entries, patterns)
    return Inventory(files=files, warnings=warnings, unread=_unread(done.stderr, patterns))


NO_FOLDER = 44

LISTED = 256 << 20
"""Bytes of a listing: some two million files."""


class Answer:
    """What a node answers, up to `most` bytes: it may not be what it was, and this machine's memory
    serves all of them."""

    def __init__(self, node: Node, what: str, most: int) -> None:
        self.node, self.what = node, what
        self._most, self._data = most, bytearray()

    def take(self, data: bytes) -> None:
        """Raises NodeError for a byte too many."""
        if len(self._data) + len(data) > self._most:
            raise NodeError(
                self.node.name,
                f"{self.what} has more than {self._most >> 20} MB",
                hint="`cloudtrain ssh` shows the node as it is",
            )
        self._data += data

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def understood(answer: Answer, parse: Callable[[bytes], T]) -> T:
    """Raises NodeError with the node and the words that make no sense."""
    try:
        return parse(answer.data)
    except ValueError as error:
        raise NodeError(
            answer.node.name,
            f"{answer.what} makes no sense: {shown(str(error))[:300]}",
            hint="`cloudtrain ssh` shows the node as it is; find or sha256sum there may be others",
        ) from error


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
    """The folder's own absolute paths (none: nothing came) and every name below it.

    Raises ValueError with the row that is none.
    """
    fields = os.fsdecode(data).split("\0")
    if len(fields) < 3:
        return (), {}
    rows = fields[2:-1]
    entries = {}
    for facts, path, target in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
        if not (_FACTS.fullmatch(facts) and is_inside(path)):
            raise ValueError(f"{path}: {facts}")
        kind, size, mtime, ctime, inode = facts.split(" ")
        stamp = f"{mtime}/{ctime}/{inode}"
        entries[path] = Entry(
            kind=kind, size=int(size), mtime=nanoseconds(mtime), stamp=stamp, target=target
        )
    return tuple(fields[:2]), entries


_FACTS = re.compile(r"\S \d+ -?\d+(\.\d+)? -?\d+(\.\d+)? \d+", re.ASCII)


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
    files: list[File] = []
    skipped: dict[str, list[str]] = defaultdict(list)
    for path, source in resolved(roots, entries, patterns):
        if isinstance(source, Lost):
            skipped[source.why].append(path)
            continue
        if not any(matches(path, pattern) for pattern in patterns):
            continue
        entry = entries[source]
        if entry.kind != "f":
            skipped[f"is {_KINDS.get(entry.kind, 'not a regular file')}"].append(path)
            continue
        files.append(
            File(path=path, source=source, size=entry.size, mtime=entry.mtime, stamp=entry.stamp)
        )
    return tuple(files), tuple(_warnings(skipped))


def _warnings(skipped: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A line for each of a few names of a kind, and how many more there are: a data set that is
    linked into the work folder has hundreds of thousands."""
    for why, paths in skipped.items():
        for path in paths[:NAMED]:
            yield f"{shown(path)} {why}: not landed"
        if len(paths) > NAMED:
            yield f"… {len(paths) - NAMED} more: {why}: not landed"


NAMED = 10
"""Names of one kind that are told and kept."""

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
    node: Node,
    folder: str,
    sources: Iterable[str],
    transport: Transport,
    stop: Stop,
    heard: Callable[[int], None] = lambda count: None,
) -> dict[str, str]:
    """SHA-256 of each file as it is on the node now; one that cannot be read is not in it.

    `heard` is told how many have come so far.
    """
    names = names_on_stdin(sources)
    if not names:
        return {}
    # Each name comes back with 64 digits and a few marks, or with a complaint of its length.
    most = 4 * len(names) + 256 * names.count(b"\0") + (1 << 20)
    answer = Answer(node, f"its checksums in {folder}", most)
    words = Answer(node, f"what it says of the files in {folder}", most)

    came = 0

    def take(data: bytes) -> None:
        nonlocal came
        answer.take(data)
        came += data.count(b"\0")
        heard(came)

    def hear(data: bytes) -> None:
        stop.check()
        words.take(data.replace(b"\0", b""))

    done = transport.run(
        node,
        summing(folder),
        stdin=names,
        on_stdout=take,
        on_stderr=hear,
        timeout=SILENCE,
    )
    done = replace(done, stderr=words.data)
    if done.exit_code not in (0, 123):  # xargs: some of the files could not be read
        raise failed(node, f"its files in {folder} cannot be checked", done)
    found = {}
    for row in os.fsdecode(answer.data).split("\0")[:-1]:
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
