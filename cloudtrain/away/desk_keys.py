"""Keys that sign what a desk writes to its store.

A desk's own key is made on it and never leaves it. Its public half comes back over SSH into the
record of the machine that sends the run away, which signs it with the order key for all others. The
desk's label in the account has a hash of that key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from cloudtrain.away.signatures import DESK_KEY, SigningKey, read_signed, signed_text
from cloudtrain.away.store_paths import DESK_ID, folder_of, read_small
from cloudtrain.core.codec import decode
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state.away_record import HASHED, AwayRecord, desk_mark

LARGEST = 1 << 12
AGAIN = 60.0
"""Seconds after which an account that listed no desk is asked again."""


@dataclass(frozen=True, kw_only=True)
class _Certificate:
    cluster: str
    desk: str
    order_key: str
    desk_key: str


def publish_desk_key(store: ArtifactStore, order_key: SigningKey, record: AwayRecord) -> None:
    """Publish the desk's public key, signed with the order key."""
    found = _Certificate(
        cluster=record.cluster,
        desk=record.desk,
        order_key=order_key.public,
        desk_key=record.desk_key,
    )
    data = signed_text(order_key, DESK_KEY, json.dumps(asdict(found)))
    store.upload(_path(record.cluster, record.desk), [data])


class DeskKeys:
    """The keys of one cluster's desk, by the record here or by the desk's label."""

    def __init__(
        self, record: AwayRecord | None, marks: Callable[[], Sequence[str]] = lambda: ()
    ) -> None:
        """`marks`: labels of the cluster's desks, as the account lists them now."""
        self._record, self._marks = record, marks
        self._listed: tuple[str, ...] = ()
        self._asked = -AGAIN
        self._known: dict[str, tuple[str, ...]] = {}
        self._order_key = ""

    def count_on(self, order_key: str) -> None:
        """Trust the holder of this public order key, as the label's hash of it is trusted."""
        self._order_key = order_key

    def desk(self) -> str:
        """Id of the desk that the account lists, "" if it lists none."""
        ids = (mark[: -HASHED - 1] for mark in self._labels())
        return max(filter(DESK_ID.match, ids), default="")

    def of(self, store: ArtifactStore, cluster: str, desk: str) -> tuple[str, ...]:
        """Public keys whose signatures count; none if they are not known. Raises StoreError."""
        record = self._record
        if record is not None:
            keys = (record.public_key, record.desk_key)
            return tuple(filter(None, keys)) if record.desk == desk else ()
        if desk not in self._known and (found := self._certified(store, cluster, desk)):
            self._known[desk] = found
        return self._known.get(desk, ())

    def _certified(self, store: ArtifactStore, cluster: str, desk: str) -> tuple[str, ...]:
        labels = self._labels()
        is_known = labels or self._order_key
        data = read_small(store, _path(cluster, desk), LARGEST) if is_known else None
        if data is None:
            return ()
        try:
            found = decode(_Certificate, read_signed((), DESK_KEY, data)[0])
            _, is_whole = read_signed([found.order_key], DESK_KEY, data)
        except (ValueError, RecursionError):
            return ()
        is_this = (found.cluster, found.desk) == (cluster, desk)
        is_ours = found.order_key == self._order_key or desk_mark(desk, found.order_key) in labels
        if not is_whole or not is_this or not is_ours:
            return ()
        return (found.order_key, found.desk_key)

    def _labels(self) -> tuple[str, ...]:
        if not self._listed and time.monotonic() - self._asked >= AGAIN:
            self._asked = time.monotonic()
            self._listed = tuple(self._marks())
        return self._listed


def _path(cluster: str, desk: str) -> str:
    return f"{folder_of(cluster, desk)}/key.json"
