"""Tells whether a config may be used: it uses no right of the user, or the user agreed to it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path

from cloudtrain.config.location import location_of
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UntrustedError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.network import is_of_the_user
from cloudtrain.state import home
from cloudtrain.state.files import make_folder, named_faults, write_whole
from cloudtrain.trust.file_facts import FileFact, file_facts


def open_facts(config: ClusterConfig, hosts: Collection[str] = ()) -> tuple[FileFact, ...]:
    """The facts that the user has not agreed to; none of a config that is not of a file. `hosts`:
    those of `--trust-endpoint`. Raises UsageError for one that is none."""
    found = file_facts(config) if config.source else ()
    if not found:
        return ()
    known = trusted_keys(config.source)
    try:
        return tuple(
            fact
            for fact in found
            if fact.key not in known
            and not (fact.host is not None and is_of_the_user(fact.host, hosts))
        )
    except ValueError as error:
        raise UsageError(
            f"a trusted endpoint {error}", hint="for example login.example.org"
        ) from None


def refuse_untrusted(config: ClusterConfig) -> None:
    """Raise UntrustedError for a config with such facts."""
    found = open_facts(config)
    if found:
        raise untrusted(config, found)


def untrusted(config: ClusterConfig, facts: Iterable[FileFact]) -> UntrustedError:
    lines = tuple(fact_lines(config, facts))
    return UntrustedError(
        f"{config.source} is not trusted, and\n" + "\n".join(f"  {line}" for line in lines),
        hint=f"if you want that, `cloudtrain trust {config.source}` asks once; in a script, pass "
        "--trust",
        facts=lines,
    )


def fact_lines(config: ClusterConfig, facts: Iterable[FileFact]) -> Iterable[str]:
    """`gcp.yaml:9: endpoints.auth: sends your Google Cloud credentials to x.example`."""
    for fact in facts:
        place = location_of(config, fact.field)
        yield f"{place}: {fact.field}: {fact.text}" if place else f"{fact.field}: {fact.text}"


# ── the record of facts that this user has agreed to ─────────────────────────


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
    import hashlib  # slow to import, and `plan` needs none

    name = hashlib.sha256(file.encode("utf-8", "surrogateescape")).hexdigest()
    return home() / "trusted" / f"{name[:32]}.json"
