"""Lists a task's work folder on its node: names, sizes, stamps, links, checksums."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import NodeError, NotLanded
from cloudtrain.core.model import Node
from cloudtrain.core.paths import is_inside, shown
from cloudtrain.core.protocols import Completed, Transport
from cloudtrain.core.retry import NODE_SILENT
from cloudtrain.core.shell import Command
from cloudtrain.core.ship import program
from cloudtrain.node.formats import IN_CODE, IN_HOME
from cloudtrain.node.listing import NAMED, REASONS, File, fitting

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Files of a task to land. `warnings`: files that cannot land; `unread`: files that the node
    could not read; `over`: what exceeds the limit of what lands without being named; `left_out`:
    number and bytes of what the task made or changed and the patterns do not match, by folder."""

    files: tuple[File, ...]
    warnings: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    over: tuple[File, ...] = ()
    left_out: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Files of a task that land: those that match a pattern and, with a `limit` in bytes, others
    that it made or changed. `sums`: these are counted instead. `home`: also in the node's home."""

    patterns: tuple[str, ...]
    limit: int | None = None
    sums: bool = False
    home: bool = False


def take_inventory(node: Node, folder: str, wanted: Wanted, transport: Transport) -> Inventory:
    """List the wanted files of a work folder; none if the folder does not exist."""
    answer = Answer(node, f"its list of the files in {folder}", LISTED)
    changed = "sum" if wanted.sums else "" if wanted.limit is None else "list"
    facts = {"patterns": list(wanted.patterns), "changed": changed, "home": wanted.home}
    order = json_line({"folder": folder, **facts})
    done = run_program(node, "listing", order, transport, on_stdout=answer.take)
    if done.exit_code != 0:
        raise failed(node, f"cannot list its files in {folder}", done)
    inventory = answer.parsed(parse_listing)
    fits = fitting(inventory.files, wanted.limit or 0)  # as many of the unnamed files as can
    return replace(
        inventory,
        files=tuple(file for file in inventory.files if file.named or file.path in fits),
        over=tuple(file for file in inventory.files if not file.named and file.path not in fits),
    )


LISTED = 256 << 20
"""Limit of a listing in bytes: some two million files."""


class Answer:
    """A node's answer, up to `most` bytes: a compromised node must not fill our memory."""

    def __init__(self, node: Node, what: str, most: int) -> None:
        self._node, self._what = node, what
        self._most, self._data = most, bytearray()

    def take(self, data: bytes) -> None:
        """Raises NodeError if the answer becomes too long."""
        if len(self._data) + len(data) > self._most:
            text = f"{self._what} exceeds {self._most >> 20} MB"
            raise NodeError(self._node.name, text, hint="inspect the node with `cloudtrain ssh`")
        self._data += data

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def parsed(self, parse: Callable[[bytes], T]) -> T:
        """Parse it. Raises NodeError with the node and the invalid part."""
        try:
            return parse(self.data)
        except ValueError as error:
            raise NodeError(
                self._node.name,
                f"{self._what} is invalid: {shown(str(error))[:300]}",
                hint="inspect the node with `cloudtrain ssh`: has its python3 been replaced?",
            ) from error


def parse_listing(data: bytes) -> Inventory:
    """Parse the output of node/listing.py. Raises ValueError with an invalid row."""
    *rows, last, rest = [b"", *data.split(b"\n")]
    files = tuple(map(_file, rows[1:]))
    try:
        facts = json.loads(last)
        warnings, unread = tuple(_warnings(facts["others"])), tuple(map(shown, facts["unread"]))
        left_out = {name: (int(n), int(size)) for name, (n, size) in facts["left_out"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"truncated after {_words(last + rest)}") from None
    return Inventory(files=files, warnings=warnings, unread=unread, left_out=left_out)


def _file(row: bytes) -> File:
    try:
        # As text: of bytes, json would find out the encoding first.
        path, source, size, stamp, *unnamed = json.loads(row.decode("ascii"))
        file = File(path, source or path, size, stamp, not unnamed)
        # Only what is not named may be outside of the work folder.
        outside = not file.named and file.path.startswith((IN_HOME, IN_CODE))
        inside = is_inside(file.source.removeprefix("/") if outside else file.source)
        is_one = is_inside(file.path) and inside and _STAMP.fullmatch(stamp)
        if is_one and type(size) is int and size >= 0 and unnamed in ([], [0]):
            return file
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError(_words(row))


_STAMP = re.compile(r"-?\d+\.\d+/-?\d+\.\d+/\d+", re.ASCII)


def _words(row: bytes) -> str:
    return row.decode("ascii", "replace")[:300]


def _warnings(others: Mapping[str, tuple[int, Sequence[str]]]) -> Iterator[str]:
    """A line for each of the first names of a kind, and the number of others: a data set that is
    linked into the work folder has hundreds of thousands."""
    for why in REASONS:
        count, names = others.get(why, (0, ()))
        for path in names[:NAMED]:
            yield f"{shown(path)} {why}: not landed"
        if count > NAMED:
            yield f"… {count - NAMED} more: {why}: not landed"


class Stop:
    """Cancels long work from another thread; the work checks it with each piece."""

    def __init__(self, above: Stop | None = None) -> None:
        self._event = threading.Event()
        self._above = above

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises NotLanded once this one, or the one above it, is set."""
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
    """Current SHA-256 of each file on the node, without files that cannot be read. `heard` is
    called with the number of checksums so far."""
    names = list(sources)
    if not names:
        return {}
    answer = Answer(node, f"its checksums in {folder}", 128 * len(names) + (1 << 20))
    errors = Answer(node, f"its error output for {folder}", 1 << 20)
    came = 0

    def take(data: bytes) -> None:
        nonlocal came
        answer.take(data)
        came += data.count(b"\n")
        heard(came)

    def hear(data: bytes) -> None:
        stop.check()
        errors.take(data.replace(b"\0", b""))

    orders = b"".join(map(json_line, ({"folder": folder}, *names)))
    done = run_program(node, "checksums", orders, transport, on_stdout=take, on_stderr=hear)
    if done.exit_code != 0:
        what = f"cannot compute checksums in {folder}"
        raise failed(node, what, replace(done, stderr=errors.data))
    return answer.parsed(lambda data: dict(_sums(data, names)))


def _sums(data: bytes, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for row in data.splitlines():
        try:
            number, digest = json.loads(row)
            yield names[number], str(digest)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(_words(row)) from None


# ── our programs on a node, and what they answer ───────────────────────────────


def json_line(value: Any) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def run_program(
    node: Node,
    module: str,
    orders: bytes | Iterable[bytes],
    transport: Transport,
    *arguments: str,
    on_stdout: Callable[[bytes], None] | None = None,
    on_stderr: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run a program of node/ with `orders` on its stdin."""
    started = program(module, *arguments)
    own = started.source
    return transport.run(
        node,
        started.command,
        stdin=own + orders if isinstance(orders, bytes) else chain((own,), orders),
        on_stdout=on_stdout,
        on_stderr=on_stderr,
        timeout=NODE_SILENT,
    )


def run_checked(
    node: Node,
    command: Command,
    transport: Transport,
    what: str,
    *,
    stdin: bytes | Iterable[bytes] = b"",
    on_stdout: Callable[[bytes], None] | None = None,
) -> Completed:
    """Run a command. Raises NodeError if it fails: `what` did not succeed, and why."""
    done = transport.run(node, command, stdin=stdin, on_stdout=on_stdout, timeout=NODE_SILENT)
    if done.exit_code != 0:
        raise failed(node, what, done)
    return done


def failed(node: Node, what: str, done: Completed) -> NodeError:
    hint = "inspect the node with `cloudtrain ssh`; its files are kept"
    return NodeError(node.name, f"{what}: {last_line(done.stderr, done.exit_code)}", hint=hint)


def last_line(output: bytes, exit_code: int) -> str:
    """Reason why a program ended without an answer: its last line, or its exit code."""
    lines = os.fsdecode(output.replace(b"\0", b"")).strip().splitlines()
    return shown(lines[-1]) if lines else f"exit code {exit_code}"


KEPT = 4096
"""Bytes kept, from the end, of a program's output besides its answers."""

LONGEST = 16 << 20
"""Limit of one answer in bytes: an upload of ten thousand parts has 2 MB."""


class AnswerLines:
    """Passes each answer to `take`, which raises ValueError, LookupError or TypeError for a line
    that is none, such as a shell's greeting. `hear` takes the program's stdout, `overhear` its
    stderr; both raise what `stop` raises."""

    def __init__(self, take: Callable[[dict[str, Any]], None], stop: Stop) -> None:
        self._take, self._stop = take, stop
        self._rest = b""
        self._words = b""

    def hear(self, data: bytes) -> None:
        self._stop.check()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest[-KEPT:]], b""
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError):
                self.overhear(line + b"\n")

    def overhear(self, data: bytes) -> None:
        self._stop.check()
        self._words = (self._words + data.replace(b"\0", b""))[-KEPT:]

    def run(
        self,
        node: Node,
        module: str,
        orders: bytes | Iterable[bytes],
        transport: Transport,
        *arguments: str,
    ) -> int:
        """Run a program of node/ and take its answers; returns its exit code."""
        hear, overhear = self.hear, self.overhear
        return run_program(
            node, module, orders, transport, *arguments, on_stdout=hear, on_stderr=overhear
        ).exit_code

    def last_words(self, exit_code: int) -> str:
        return last_line(self._words, exit_code)
