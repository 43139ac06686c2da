"""Orders to a desk through the store: signed, for one life of one desk, fresh, carried out once."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from cloudtrain.away.signatures import (
    ANSWER,
    NONCE,
    ORDER,
    SigningKey,
    folder_of,
    is_signed,
    load_key,
    read_signed,
    read_small,
    signed_text,
)
from cloudtrain.core.codec import ANY_TEXT, UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, StoreError, UsageError
from cloudtrain.core.owner import login
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state.files import append_line, make_folder, named_faults, write_whole
from cloudtrain.state.folder import ORDER_KEY

Verb = Literal["stop-run", "down"]
AnswerState = Literal["received", "done", "failed", "refused"]

FRESH = 900.0
"""Seconds between an order's time and the desk's, either way, within which it is carried out."""

LARGEST = 4096
"""Limit of an order in bytes."""

LARGEST_ANSWER = 1 << 16
LONGEST_TEXT = 4000
"""Characters of an answer's text; each may take 12 bytes of JSON."""

AT_ONCE = 32
"""New orders that are looked at in one call."""

_ANSWERED = "answered"


def new_order_key(folder: Path) -> SigningKey:
    """Create the key in a cluster's record; a key that is there already is kept."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = folder / ORDER_KEY
    if path.exists():
        return load_order_key(path)
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    make_folder(folder)
    write_whole(path, text)
    return SigningKey(path, private)


def load_order_key(path: Path) -> SigningKey:
    """Read the private key. Raises CredentialsError naming the file."""
    return load_key(path, "order key")


# ── an order ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Order:
    """`stop-run` ends one run and lands it; `down` ends what is running, lands it and deletes the
    cluster. The desk deletes itself after either."""

    cluster: str
    desk: str
    verb: Verb
    run: str | None = None
    """The only run that `stop-run` may end; None for `down`."""
    nonce: str
    created: float = field(metadata=UNIX_TIME)
    user: str = ""
    machine: str = ""

    def __str__(self) -> str:
        who = " on ".join(filter(None, [self.user, self.machine]))
        return f"{self.verb}{f' {self.run}' if self.run else ''}{f' by {who}' if who else ''}"


def new_order(cluster: str, desk: str, verb: Verb, *, run: str | None = None, now: float) -> Order:
    return Order(
        cluster=cluster,
        desk=desk,
        verb=verb,
        run=run,
        nonce=secrets.token_hex(16),
        created=now,
        user=login(),
        machine=os.uname().nodename.partition(".")[0],
    )


def post_order(store: ArtifactStore, key: SigningKey, order: Order) -> None:
    """Sign the order and write it to the store. Posted again, it is still carried out once."""
    folder = folder_of(order.cluster, order.desk)
    store.upload(f"{folder}/orders/{order.nonce}.json", [signed(key, order)])


def signed(key: SigningKey, order: Order) -> bytes:
    """The order as text, and the signature of exactly this text."""
    text = _text(order)
    return json.dumps({"order": text, "signature": key.sign(ORDER, text)}).encode("ascii")


def _text(order: Order) -> str:
    return json.dumps(asdict(order), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class _Envelope:
    order: str
    signature: str


def verified(public_key: str, data: bytes) -> Order:
    """Parse an order, after its signature was verified. Raises ValueError with the reason."""
    try:
        envelope = decode(_Envelope, json.loads(data))
        envelope.order.encode("ascii")
        base64.b64decode(envelope.signature, validate=True)
    except (ValueError, RecursionError, binascii.Error):
        raise ValueError("it is not an order") from None
    if not is_signed([public_key], ORDER, envelope.order, envelope.signature):
        raise ValueError("its signature is not of the cluster's order key")
    try:
        return decode(Order, json.loads(envelope.order))
    except InvalidRecord as error:
        raise ValueError(f"this version cannot read it: {error}") from None


@dataclass(frozen=True, kw_only=True)
class OrderAnswer:
    """Answer to an order: "received", then "done" or "failed"; or "refused" at once. Its nonce is
    that of the order, so that the answer to another order is never taken for it."""

    nonce: str
    state: AnswerState = field(metadata=ANY_TEXT)
    text: str = ""
    as_of: float = field(metadata=UNIX_TIME)
    is_signed: bool = False
    """By the run's desk, as whoever reads it has found; else nothing is done on its account."""


def answer_of(
    store: ArtifactStore, order: Order, public_keys: Sequence[str] = ()
) -> OrderAnswer | None:
    """The latest answer, signed by one of these keys or not. Raises StoreError."""
    path = _answer_path(order)
    data = read_small(store, path, LARGEST_ANSWER)
    if data is None:
        return None
    try:
        value, is_by_desk = read_signed(public_keys, ANSWER, data)
        answer = replace(decode(OrderAnswer, value), is_signed=is_by_desk)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{store.uri.rstrip('/')}/{path} is not an answer: {error}") from error
    return answer if answer.nonce == order.nonce else None


def _answer_path(order: Order) -> str:
    return f"{folder_of(order.cluster, order.desk)}/answers/{order.nonce}.json"


# ── on the desk ──────────────────────────────────────────────────────────────


class OrderInbox:
    """The desk's orders. Nothing that others write to the store stops it: what is not a valid order
    is ignored with one warning."""

    def __init__(
        self,
        store: ArtifactStore,
        cluster: str,
        desk: str,
        public_key: str,
        seen_file: Path,
        *,
        warn: Callable[[str], None],
        key: SigningKey | None = None,
    ) -> None:
        """`key` signs the answers. `seen_file` has each order that was taken; the next process of
        the same desk goes on with it. Raises UsageError if it cannot be read."""
        self._store, self._cluster, self._desk = store, cluster, desk
        self._public_key, self._seen_file = public_key, seen_file
        self._key = key
        self._warn, self._warned = warn, set[str]()
        self._ignored = set[str]()
        self._seen, self._unfinished = _recorded(seen_file)

    def take(self, now: float) -> tuple[Order, ...]:
        """New orders, oldest first. Each is recorded as taken before it is returned, and answered
        "received"; it is never returned again.

        A `down` that an earlier process of the desk has taken and not answered comes first, once:
        its cluster is not to be created again by a desk that was restarted."""
        unfinished, self._unfinished = self._unfinished, ()
        folder = f"{folder_of(self._cluster, self._desk)}/orders/"
        try:
            listed = [each for each in self._store.list(folder) if each.path not in self._ignored]
        except CloudtrainError as error:
            self._warn_once("list", f"orders cannot be read: {error.message}")
            return unfinished
        self._warned.discard("list")
        new = (self._taken(each.path, each.size, now) for each in listed[:AT_ONCE])
        return (*unfinished, *sorted(filter(None, new), key=lambda order: order.created))

    def answer(self, order: Order, state: AnswerState, text: str = "", *, now: float) -> None:
        """Publish what became of an order. A store that fails is a warning."""
        answer = OrderAnswer(nonce=order.nonce, state=state, text=text[:LONGEST_TEXT], as_of=now)
        fields = asdict(answer)
        del fields["is_signed"]
        data = signed_text(self._key, ANSWER, json.dumps(fields))
        try:
            if state != "received" and order.nonce in self._seen:
                append_line(self._seen_file, f"{order.nonce} {_ANSWERED}".encode("ascii"))
            self._store.upload(_answer_path(order), [data])
        except CloudtrainError as error:
            self._warn(f"the order {order} was not answered: {error.message}")

    def _taken(self, path: str, size: int, now: float) -> Order | None:
        """The order at that path if it is to be carried out."""
        try:
            order = self._read(path, size)
        except ValueError as error:
            self._ignore(path, str(error))
            return None
        except CloudtrainError as error:  # the store does not answer: the next call tries again
            self._warn_once(path, f"the order {path} cannot be read: {error.message}")
            return None
        if order.nonce in self._seen:
            self._ignore(path, "it was carried out before")
            return None
        if abs(now - order.created) > FRESH:
            minutes = abs(now - order.created) / 60
            age = "from {:.0f} min ahead" if order.created >= now else "{:.0f} min old"
            most = f"at most {FRESH / 60:.0f} min are accepted"
            text = f"it is {age.format(minutes)} by the controller's clock, and {most}"
            self.answer(order, "refused", text, now=now)
            self._ignore(path, text)
            return None
        try:
            append_line(self._seen_file, f"{order.nonce} {_text(order)}".encode("ascii"))
        except UsageError as error:  # its own disk: the next call tries again
            self._warn_once(path, f"the order {order} cannot be recorded: {error.message}")
            return None
        self._seen.add(order.nonce)
        self.answer(order, "received", now=now)
        try:  # so that it is not listed for ever, and a copy shows
            self._store.delete(path)
        except CloudtrainError:
            self._ignored.add(path)
        return order

    def _read(self, path: str, size: int) -> Order:
        """Raises ValueError for what is not an order to this desk, StoreError."""
        name = path.rpartition("/")[2]
        if not NONCE.match(name.removesuffix(".json")) or not name.endswith(".json"):
            raise ValueError("it has not the name of an order")
        if size > LARGEST:
            raise ValueError(f"it has {size} bytes")
        data = read_small(self._store, path, LARGEST)
        if data is None:
            raise ValueError("it was deleted")
        order = verified(self._public_key, data)
        if (order.cluster, order.desk) != (self._cluster, self._desk):
            raise ValueError(f"it is for controller {order.desk} of {order.cluster}")
        if f"{order.nonce}.json" != name:
            raise ValueError("it is a copy of another order")
        return order

    def _ignore(self, path: str, why: str) -> None:
        self._ignored.add(path)
        self._warn(f"ignored {path}: {why}")

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._warn(text)


def _recorded(path: Path) -> tuple[set[str], tuple[Order, ...]]:
    """Nonces of all orders that were taken, and the `down` orders among them without an answer."""
    seen, unfinished, lines = set[str](), dict[str, Order](), list[str]()
    with named_faults(path), contextlib.suppress(FileNotFoundError):
        lines = path.read_text("ascii", "replace").splitlines()
    for line in lines:
        nonce, _, rest = line.partition(" ")
        seen.add(nonce)
        if rest == _ANSWERED:
            unfinished.pop(nonce, None)
            continue
        with contextlib.suppress(ValueError, RecursionError):  # torn by a crash: never returned
            order = decode(Order, json.loads(rest))
            if order.verb == "down":
                unfinished[nonce] = order
    return seen, tuple(unfinished.values())
