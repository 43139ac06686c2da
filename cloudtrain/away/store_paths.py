"""Paths of a desk's reports and orders in the store, and the reading of these small files.

    .away/CLUSTER/desks/DESK               one for each life of a desk, with the place of its order
                                           key; the last is the current one
    .away/CLUSTER/DESK/key.json            the desk's public key, signed with the order key
    .away/CLUSTER/DESK/state.json          written by the desk, signed by it
    .away/CLUSTER/DESK/log/000000000       written by the desk, in pieces
    .away/CLUSTER/DESK/orders/NONCE.json   written by whoever has the order key
    .away/CLUSTER/DESK/answers/NONCE.json  written by the desk, signed by it

A training node gets presigned uploads of single objects below its own run, and no run has such an
id: it can write none of these.
"""

from __future__ import annotations

import re
import secrets
import time

from cloudtrain.core.errors import StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.retry import Retry

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
    StoreError, also if it has more than `largest`.
    """
    if not any(found.path == path and found.size >= least for found in store.list(path)):
        return None
    data = REPLACED.call(lambda: _read(store, path, largest), on=StoreError)
    if len(data) > largest:
        raise StoreError(f"{store.uri.rstrip('/')}/{path} has more than {largest} bytes")
    return data


def _read(store: ArtifactStore, path: str, largest: int) -> bytes:
    data = b""
    for chunk in store.download(path):
        data += chunk
        if len(data) > largest:
            break
    return data
