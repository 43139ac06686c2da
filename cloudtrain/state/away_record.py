"""A cluster's record of being away: which desk attends to it, and where to follow it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from cloudtrain.core.codec import UNIX_TIME, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import Problem
from cloudtrain.state import Records
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.folder import AWAY

HASHED = 30
"""Digits of the hash in a label, 120 bits: with the id, a label has 63 characters, the most that
Google takes (https://cloud.google.com/compute/docs/labeling-resources#requirements)."""


@dataclass(frozen=True, kw_only=True)
class AwayRecord:
    """Written on the machine that sends a run away, before the desk is created. It stays when the
    cluster is down, until the next one of that name is created from here."""

    cluster: str
    desk: str
    """Id of the desk's life, of `new_desk_id`."""
    node: str
    """Name of the desk's own cluster, as `ls --cloud` and `gc` show it."""
    store: str
    """URI."""
    public_key: str
    """Of the order key, whose private half is beside this record."""
    desk_key: str = ""
    """Public half of the key that was made on the desk, as it came back over SSH; "" until then, or
    if an earlier version wrote this."""
    created: float = field(metadata=UNIX_TIME)


def desk_mark(desk: str, public_key: str) -> str:
    """Label of a desk: the id of its life, and a hash of the key that signs its orders."""
    return f"{desk}-{hashlib.sha256(public_key.encode('ascii', 'replace')).hexdigest()[:HASHED]}"


def mark_of(record: AwayRecord) -> str:
    return desk_mark(record.desk, record.public_key)


def save_away(records: Records, record: AwayRecord) -> None:
    make_folder(records.folder)
    write_whole(_path(records), json.dumps(asdict(record), indent=1).encode("ascii"))


def away_record(records: Records) -> AwayRecord | None:
    """The record; None if the cluster's last life was not away. Raises ConfigError."""
    path = _path(records)
    try:
        return decode(AwayRecord, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        fault = f"it cannot be read: {error}"
        raise ConfigError([Problem(file=str(path), line=None, field="", text=fault)]) from error


def _path(records: Records) -> Path:
    return records.folder / AWAY
