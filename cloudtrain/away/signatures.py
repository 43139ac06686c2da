"""Files of a desk in its store, signed by Ed25519: only bytes with a valid signature are used."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.core.codec import decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CredentialsError, StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.retry import Retry
from cloudtrain.state.away_record import HASHED, AwayRecord, desk_mark

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ORDER = b"cloudtrain order 1\n"
STATE = b"cloudtrain desk state 1\n"
ANSWER = b"cloudtrain desk answer 1\n"
DESK_KEY = b"cloudtrain desk key 1\n"
"""Before what is signed: no signature for one purpose means anything for another."""

NOT_SIGNED = "not signed by this run's controller"


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key pair; `path` is the file of the private half (PEM, mode 0600)."""

    path: Path
    _private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> str:
        """`ssh-ed25519 AAAA…`"""
        from cryptography.hazmat.primitives import serialization

        return (
            self._private.public_key()
            .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            .decode("ascii")
        )

    def sign(self, purpose: bytes, text: str) -> str:
        """The signature in base64. Raises UnicodeEncodeError for text that is not ASCII."""
        return base64.b64encode(self._private.sign(purpose + text.encode("ascii"))).decode("ascii")


def load_key(path: Path, what: str) -> SigningKey:
    """Read the private key, of PKCS 8 or OpenSSH. Raises CredentialsError naming the file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_ssh_private_key,
    )

    try:
        data = path.read_bytes()
        read = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
        private = read(data, password=None)
        if isinstance(private, Ed25519PrivateKey):
            return SigningKey(path, private)
        fault = "it is not an Ed25519 key"
    except OSError as error:
        fault = error.strerror or str(error)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        fault = "it is not an unencrypted private key in PEM"
    raise CredentialsError(f"the {what} {path} cannot be read: {fault}")


def is_signed(public_keys: Sequence[str], purpose: bytes, text: str, signature: str) -> bool:
    """True if one of the keys has signed exactly this text for this purpose."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    for each in public_keys:
        try:
            public = load_ssh_public_key(each.encode("ascii"))
            if isinstance(public, Ed25519PublicKey):
                message = purpose + text.encode("ascii")
                public.verify(base64.b64decode(signature, validate=True), message)
                return True
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, binascii.Error):
            continue
    return False


@dataclass(frozen=True, kw_only=True)
class _Signed:
    signed: str
    signature: str


def signed_text(key: SigningKey | None, purpose: bytes, text: str) -> bytes:
    """The text with its signature, as JSON; without a key the bare text."""
    if key is None:
        return text.encode("ascii")
    document = _Signed(signed=text, signature=key.sign(purpose, text))
    return json.dumps(asdict(document)).encode("ascii")


def read_signed(public_keys: Sequence[str], purpose: bytes, data: bytes) -> tuple[object, bool]:
    """The JSON value in the text, and whether one of the keys has signed it. Earlier versions wrote
    it without a signature. Raises ValueError, RecursionError."""
    found = json.loads(data)
    if not isinstance(found, dict) or "signed" not in found:
        return found, False
    whole = decode(_Signed, found)
    return json.loads(whole.signed), is_signed(public_keys, purpose, whole.signed, whole.signature)


# ── paths in the store ─────────────────────────────────────────────────────────
#     .away/CLUSTER/desks/DESK               one for each life of a desk, with the place of its
#                                            order key; the last is the current one
#     .away/CLUSTER/DESK/key.json            the desk's public key, signed with the order key
#     .away/CLUSTER/DESK/state.json          written by the desk, signed by it
#     .away/CLUSTER/DESK/log/000000000       written by the desk, in pieces
#     .away/CLUSTER/DESK/orders/NONCE.json   written by whoever has the order key
#     .away/CLUSTER/DESK/answers/NONCE.json  written by the desk, signed by it
#
# A training node gets presigned uploads of single objects below its own run, and no run has such an
# id: it can write none of these.


ROOT = ".away"
DESK_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{16}\Z")
NONCE = re.compile(r"[0-9a-f]{32}\Z")

REPLACED = Retry(pause=0.05, tries=3)
"""For a file that was replaced between the two requests of its reader: Cloud Storage no longer has
the generation that it described."""


def new_desk_id(now: float) -> str:
    """Id of one life of a desk: sorts by time (UTC), and ends in 64 random bits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(8)}"


def desks_in(cluster: str) -> str:
    return f"{ROOT}/{cluster}/desks/"


def folder_of(cluster: str, desk: str) -> str:
    return f"{ROOT}/{cluster}/{desk}"


def read_small(store: ArtifactStore, path: str, largest: int, *, least: int = 0) -> bytes | None:
    """A file of the store; None if it does not exist or has less than `least` bytes. Raises
    StoreError, also if it has more than `largest`."""
    if not any(found.path == path and found.size >= least for found in store.list(path)):
        return None

    def read() -> bytes:
        data = b""
        for chunk in store.download(path):
            data += chunk
            if len(data) > largest:
                break
        return data

    data = REPLACED.call(read, on=StoreError)
    if len(data) > largest:
        raise StoreError(f"{store.uri.rstrip('/')}/{path} has more than {largest} bytes")
    return data


# ── the desk's keys ────────────────────────────────────────────────────────────
# A desk's own key is made on it and never leaves it. Its public half comes back over SSH into the
# record of the machine that sends the run away, which signs it with the order key for all others.
# The desk's label in the account has a hash of that key.


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
