"""What is in a task's work folder on its node: names, sizes, stamps, links, checksums."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cloudtrain.errors import NodeError, NotLanded
from cloudtrain.model import Node
from cloudtrain.node.listing import NAMED, REASONS, File
from cloudtrain.paths import is_inside, shown
from cloudtrain.protocols import Completed, Transport
from cloudtrain.ship import program

T = TypeVar("T")

SILENCE = 120.0
"""Seconds without a byte from a listing, a checksum or a stream: the node is then not there."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """`warnings`: what matches and cannot be landed; `unread`: what its node could not read."""

    files: tuple[File, ...]
    warnings: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def take_inventory(
    node: Node, folder: str, patterns: Sequence[str], transport: Transport
) -> Inventory:
    """Every file of the folder that a pattern means. A folder that is not there has none."""
    answer = Answer(node, f"its list of the files in {folder}", LISTED)
    listing = program("listing")
    order = _line({"folder": folder, "patterns": list(patterns)})
    done = transport.run(
        node,
        listing.command,
        stdin=listing.source + order,
        on_stdout=answer.take,
        timeout=SILENCE,
    )
    if done.exit_code != 0:
        raise failed(node, f"its files in {folder} cannot be listed", done)
    return understood(answer, parse_listing)


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
            hint="`cloudtrain ssh` shows the node as it is; is its python3 what it was?",
        ) from error


def parse_listing(data: bytes) -> Inventory:
    """What node/listing.py prints. Raises ValueError with the row that is none."""
    *rows, last, rest = [b"", *data.split(b"\n")]
    files = tuple(map(_file, rows[1:]))
    try:
        told = json.loads(last)
        warnings, unread = tuple(_warnings(told["others"])), tuple(map(shown, told["unread"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"it breaks off: {_words(last + rest)}") from None
    return Inventory(files=files, warnings=warnings, unread=unread)


def _file(row: bytes) -> File:
    try:
        path, source, size, stamp = json.loads(row)
        file = File(path, source or path, size, stamp)
        is_one = is_inside(file.path) and is_inside(file.source) and _STAMP.fullmatch(stamp)
        if is_one and type(size) is int and size >= 0:
            return file
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError(_words(row))


_STAMP = re.compile(r"-?\d+\.\d+/-?\d+\.\d+/\d+", re.ASCII)


def _words(row: bytes) -> str:
    return row.decode("ascii", "replace")[:300]


def _warnings(others: Mapping[str, tuple[int, Sequence[str]]]) -> Iterator[str]:
    """A line for each of a few names of a kind, and how many more there are: a data set that is
    linked into the work folder has hundreds of thousands."""
    for why in REASONS:
        count, names = others.get(why, (0, ()))
        for path in names[:NAMED]:
            yield f"{shown(path)} {why}: not landed"
        if count > NAMED:
            yield f"… {count - NAMED} more: {why}: not landed"


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
    names = list(sources)
    if not names:
        return {}
    answer = Answer(node, f"its checksums in {folder}", 128 * len(names) + (1 << 20))
    words = Answer(node, f"what it says of the files in {folder}", 1 << 20)
    came = 0

    def take(data: bytes) -> None:
        nonlocal came
        answer.take(data)
        came += data.count(b"\n")
        heard(came)

    def hear(data: bytes) -> None:
        stop.check()
        words.take(data.replace(b"\0", b""))

    summing = program("checksums")
    done = transport.run(
        node,
        summing.command,
        stdin=b"".join((summing.source, _line({"folder": folder}), *map(_line, names))),
        on_stdout=take,
        on_stderr=hear,
        timeout=SILENCE,
    )
    done = replace(done, stderr=words.data)
    if done.exit_code != 0:
        raise failed(node, f"its files in {folder} cannot be checked", done)
    return understood(answer, lambda data: dict(_sums(data, names)))


def _sums(data: bytes, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for row in data.splitlines():
        try:
            number, digest = json.loads(row)
            yield names[number], str(digest)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(_words(row)) from None


def _line(value: Any) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def failed(node: Node, what: str, done: Completed) -> NodeError:
    words = os.fsdecode(done.stderr.replace(b"\0", b"")).strip().splitlines()
    return NodeError(
        node.name,
        f"{what}: {shown(words[-1]) if words else f'exit code {done.exit_code}'}",
        hint="`cloudtrain ssh` shows the node as it is; what is there stays there",
    )
