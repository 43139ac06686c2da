"""State and log of a desk in the store: written there by the desk, read by any machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from cloudtrain.away import signatures
from cloudtrain.core.codec import ANY_TEXT, UNIX_TIME, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, StoreError
from cloudtrain.core.paths import shown
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state import Records
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.folder import ORDER_KEY

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


Phase = Literal["starting", "creating", "waiting", "training", "landing", "deleting", "ended"]

REPORTS_EVERY = 30.0
"""Seconds within which a desk writes its state again, also if nothing has changed."""

STALE = 5 * 60.0
"""Seconds after which a desk that has not reported counts as silent."""

PIECE = 1 << 18
"""Bytes of the log in one object. The last one is written again until it is full, so that a quiet
log of a day is one object: services limit how often an object is replaced (Cloud Storage: once a
second, https://cloud.google.com/storage/quotas#objects)."""

LARGEST = 1 << 16
"""Limit of a state in bytes."""

LONGEST_TEXT, LONGEST_ERROR = 300, 4000
"""Characters; each may take 12 bytes of JSON."""

AT_ONCE = 16
"""Pieces of the log that are read in one call."""


@dataclass(frozen=True, kw_only=True)
class AwayState:
    """Last report of a desk."""

    cluster: str
    desk: str
    phase: Phase = field(metadata=ANY_TEXT)
    text: str = ""
    """What it does, in a few words."""
    run: str | None = None
    exit_code: int | None = None
    """Of the command that it ran; only once it has ended."""
    as_of: float = field(metadata=UNIX_TIME)
    """Unix time of this report, by the desk's clock."""
    began: float = field(metadata=UNIX_TIME)
    expires: float | None = field(default=None, metadata=UNIX_TIME)
    """When the desk is deleted at the latest, Unix time."""
    node: str = ""
    """Name of the desk's own cluster, as `ls --cloud` and `gc` show it."""
    place: str | None = None
    """Zone or region of the desk, after its cloud: `gcp us-east4-c`."""
    price_per_hour: float | None = None
    """Of the desk alone, in dollars."""
    error: str | None = None
    """Why the command failed, once it has ended."""
    sequence: int = 0
    """Of the desk's reports; a replayed one has a lower number than one that was read before."""
    unsigned: str = ""
    """Why it is only shown and nothing is done on its account, as whoever reads it has found; "" if
    the run's desk has signed it."""

    def is_silent(self, now: float) -> bool:
        """True if it should have reported since."""
        return self.phase != "ended" and now - self.as_of > STALE


def write_state(store: ArtifactStore, state: AwayState, key: signatures.SigningKey | None) -> None:
    """Write the state, with the beginning of long texts, signed if there is a key."""
    error = None if state.error is None else state.error[:LONGEST_ERROR]
    state = replace(state, text=state.text[:LONGEST_TEXT], error=error)
    path = f"{signatures.folder_of(state.cluster, state.desk)}/state.json"
    fields = asdict(state)
    del fields["unsigned"]
    store.upload(path, [signatures.signed_text(key, signatures.STATE, json.dumps(fields))])


class Publisher:
    """Writes to the store for one desk. A failing store is one warning until it answers again."""

    def __init__(
        self,
        store: ArtifactStore,
        cluster: str,
        desk: str,
        *,
        log_file: Path,
        warn: Callable[[str], None],
        key: signatures.SigningKey | None = None,
    ) -> None:
        """`key` signs the state. `log_file` keeps the whole log on this machine: what the store did
        not take is sent later, also by the next process."""
        self._store, self._log_file, self._warn = store, log_file, warn
        self._signing_key = key
        self._folder = signatures.folder_of(cluster, desk)
        self._index, self._key = (
            f"{signatures.desks_in(cluster)}{desk}",
            Records(cluster).folder / ORDER_KEY,
        )
        self._sent: int | None = None
        self._failing, self._indexed = set[str](), False
        self._file_lock, self._send_lock = threading.Lock(), threading.Lock()

    def log(self, data: bytes) -> None:
        """Append to the log on this machine; `send_log` sends it. Waits for no network, and a full
        disk is a warning: the run matters more."""

        def write() -> None:
            with self._file_lock:
                make_folder(self._log_file.parent)
                with self._log_file.open("ab") as file:
                    file.write(data)

        self._tried("log", write)

    def send_log(self) -> bool:
        """Send what is new, not more than once in 2 s (PIECE); False if not all was taken."""
        with self._send_lock:
            return self._tried("store", self._send_log)

    def state(self, state: AwayState) -> bool:
        """Write the state; the last one after the whole log. False if the store did not take it."""

        def write() -> None:
            if not self._indexed and self._key.exists():  # known, and where its order key is
                place = f"{os.uname().nodename.partition('.')[0]}:{self._key}"
                self._store.upload(self._index, [place.encode("utf-8", "replace")])
            elif not self._indexed:
                listed = self._store.list(self._index)
                if not any(found.path == self._index for found in listed):
                    self._store.upload(self._index, [b""])
            self._indexed = True
            write_state(self._store, state, self._signing_key)

        if state.phase == "ended" and not self.send_log():
            return False
        return self._tried("store", write)

    def _send_log(self) -> None:
        if not self._log_file.exists():
            return
        with self._log_file.open("rb") as file:
            os.fsync(file.fileno())  # the store never has what a crash takes away here
            end = os.fstat(file.fileno()).st_size
            if self._sent is None:
                # What an earlier process has sent.
                listed = self._store.list(f"{self._folder}/log/")
                sizes = {found.path: found.size for found in listed}
                self._sent = (len(sizes) - 1) * PIECE + sizes[max(sizes)] if sizes else 0
            while self._sent < end:
                number = self._sent // PIECE
                data = os.pread(file.fileno(), min(PIECE, end - number * PIECE), number * PIECE)
                self._store.upload(_piece(self._folder, number), [data])
                self._sent = number * PIECE + len(data)

    def _tried(self, where: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except (CloudtrainError, OSError) as error:
            if where not in self._failing:
                self._failing.add(where)
                self._warn(f"what this run reports does not reach its {where}: {error}")
            return False
        self._failing.discard(where)
        return True


class Published:
    """Files that a cluster's desk has written: the desk with that id, or the one that the account
    lists, or the latest. Others may write to a store too. Raises StoreError."""

    def __init__(
        self,
        store: ArtifactStore,
        cluster: str,
        desk: str | None = None,
        *,
        keys: signatures.DeskKeys | None = None,
        seen_file: Path | None = None,
    ) -> None:
        """`keys` sign what counts; without them nothing does. `seen_file` keeps the number of the
        last report that was read, for the next process."""
        self.cluster = cluster
        self._store, self._desk = store, desk
        self._keys, self._seen_file = keys or signatures.DeskKeys(None), seen_file
        self._seen = 0

    @property
    def desk(self) -> str | None:
        """Id of the desk; None if none has reported."""
        if self._desk is None:
            prefix = signatures.desks_in(self.cluster)
            names = (found.path[len(prefix) :] for found in self._store.list(prefix))
            if latest := max(filter(signatures.DESK_ID.match, names), default=None):
                self._desk = self._keys.desk() or latest
        return self._desk

    def public_keys(self) -> tuple[str, ...]:
        """Keys of which one has signed what counts; none if they are not known here."""
        return self._keys.of(self._store, self.cluster, self.desk) if self.desk else ()

    def count_on(self, order_key: str) -> None:
        """Have what is signed by this public order key count, or by the desk that it names."""
        self._keys.count_on(order_key)

    def state(self) -> AwayState | None:
        """The last report; None if there is none."""
        if self.desk is None:
            return None
        path = f"{signatures.folder_of(self.cluster, self.desk)}/state.json"
        data = signatures.read_small(self._store, path, LARGEST)
        if data is None:
            return None
        try:
            value, is_by_desk = signatures.read_signed(self.public_keys(), signatures.STATE, data)
            state = decode(AwayState, value)
            if (state.cluster, state.desk) != (self.cluster, self.desk):
                raise ValueError(f"it is the state of {state.desk} of {state.cluster}")
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self._store.uri.rstrip('/')}/{path} is not a state that this version can read: "
                f"{shown(error)}"
            ) from error
        counts = is_by_desk and self._is_newest(state)
        return replace(state, unsigned="" if counts else signatures.NOT_SIGNED)

    def _is_newest(self, state: AwayState) -> bool:
        """True unless a later report was read before, here or by an earlier process."""
        if self._seen_file is not None and not self._seen:
            with contextlib.suppress(OSError, ValueError):
                desk, number = self._seen_file.read_text("ascii").split()
                self._seen = int(number) if desk == state.desk else 0
        if state.sequence < self._seen:
            return False
        if self._seen_file is not None and state.sequence > self._seen:
            with contextlib.suppress(CloudtrainError):  # a full disk, or a record that is gone
                write_whole(self._seen_file, f"{state.desk} {state.sequence}".encode("ascii"))
        self._seen = state.sequence
        return True

    def log(self, offset: int = 0) -> bytes:
        """Bytes of the log from `offset` on, at most a few MB; b"" if there are no more yet."""
        if self.desk is None:
            return b""
        read = b""
        for _ in range(AT_ONCE):
            number, skipped = divmod(offset + len(read), PIECE)
            path = _piece(signatures.folder_of(self.cluster, self.desk), number)
            piece = signatures.read_small(self._store, path, PIECE, least=skipped + 1)
            if piece is None:
                break
            read += piece[skipped:]
        return read

    def key_place(self) -> str:
        """Place of the private order key: `laptop:/home/me/…/order_key.pem`; "" if not known."""
        if self.desk is None:
            return ""
        data = signatures.read_small(
            self._store, f"{signatures.desks_in(self.cluster)}{self.desk}", LARGEST
        )
        text = (data or b"").decode("utf-8", "replace")
        return text if text.isprintable() else ""


def _piece(folder: str, number: int) -> str:
    return f"{folder}/log/{number:09d}"


# ── the log ────────────────────────────────────────────────────────────────────


def log_stream(append: Callable[[bytes], None]) -> TextIO:
    """The stream of an `EventStream`, of which every line is given to `append`.
    `EventStream(console, log_stream(publisher.log))` is the desk's console."""
    raw = io.BufferedWriter(_Appended(append))
    return io.TextIOWrapper(raw, encoding="utf-8", newline="\n")


class _Appended(io.RawIOBase):
    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        written = bytes(data)
        self._append(written)
        return len(written)


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """One line; docs/events.schema.json has the keys of each kind of event."""

    time: float = field(metadata=UNIX_TIME)
    event: str
    text: str = ""
    stage: str = ""
    seconds: float = 0.0
    task: str = ""
    line: str = ""


class EventReader:
    """Splits the log, in pieces as they are read, into events; other lines are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[LoggedEvent, ...]:
        """Events that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                events.append(decode(LoggedEvent, json.loads(line)))
        return tuple(events)
