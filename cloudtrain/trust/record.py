"""Facts of config files that this user has agreed to, each file's in a record of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.state import home
from cloudtrain.state.files import make_folder, named_faults, write_whole
from cloudtrain.trust.file_facts import FileFact


@dataclass(frozen=True, kw_only=True)
class TrustRecord:
    file: str
    """Absolute path of the config."""
    facts: tuple[str, ...]
    """Keys of facts: digests, as a fact may have more in it than a record should."""


def trusted_keys(file: str) -> frozenset[str]:
    """Keys of the facts that the user has agreed to for this file; none if that is not on record,
    or no longer readable."""
    try:
        record = decode(TrustRecord, json.loads(_path(file).read_bytes()))
    except (FileNotFoundError, ValueError, InvalidRecord):
        return frozenset()
    return frozenset(record.facts) if record.file == file else frozenset()


def remember(file: str, facts: Iterable[FileFact]) -> None:
    """Add these facts to those of the file, mode 0600."""
    path = _path(file)
    make_folder(path.parent)
    keys = trusted_keys(file).union(fact.key for fact in facts)
    record = TrustRecord(file=file, facts=tuple(sorted(keys)))
    write_whole(path, json.dumps(asdict(record), indent=1).encode("utf-8", "surrogateescape"))


def forget(file: str) -> None:
    path = _path(file)
    with named_faults(path):
        path.unlink(missing_ok=True)


def _path(file: str) -> Path:
    name = hashlib.sha256(file.encode("utf-8", "surrogateescape")).hexdigest()
    return home() / "trusted" / f"{name[:32]}.json"
