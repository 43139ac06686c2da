"""Finds URIs of buckets in a run's command and variables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.store_kinds import KINDS

_KINDS = {scheme: kind for kind in KINDS for scheme in kind.bucket_schemes}
_URI = re.compile(
    rf"(?<![\w+.-])(?P<scheme>{'|'.join(_KINDS)})://(?P<rest>[^\s'\"`;|&<>(),\\]*)", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class BucketUri:
    """One URI, and the config field that has it."""

    field: str
    uri: str
    scheme: str
    """In lower case; one of a kind's `bucket_schemes`."""
    rest: str
    """What follows `://`."""

    @property
    def bucket(self) -> str:
        """Name of the bucket, or of the storage account on Azure, whose URIs have three forms:
        `az://ACCOUNT/CONTAINER/…`, `az://ACCOUNT.blob.core.windows.net/CONTAINER/…` (TensorFlow
        I/O) and `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…` (Hadoop)."""
        authority = self.rest.partition("/")[0]
        in_account = _KINDS[self.scheme].in_account
        return authority.rpartition("@")[2].partition(".")[0] if in_account else authority


def uris_in(text: str, field: str) -> Iterator[BucketUri]:
    """Yield each URI in a text once, in order."""
    for uri, found in {found[0]: found for found in _URI.finditer(text)}.items():
        yield BucketUri(field=field, uri=uri, scheme=found["scheme"].lower(), rest=found["rest"])


def uris_of(config: ClusterConfig) -> tuple[BucketUri, ...]:
    """The URIs in `train.command`, then those in `train.env`."""
    found = [uri for field, line in config.train.lines().items() for uri in uris_in(line, field)]
    for name, value in config.train.env.items():
        found += uris_in(value, f"train.env.{name}")
    return tuple(found)


def own_uris(config: ClusterConfig, schemes: Collection[str]) -> tuple[BucketUri, ...]:
    """The URIs of the config with one of these schemes, one for each bucket. Without
    `artifacts.store`: nodes upload to it by requests that this machine signs."""
    found = {uri.bucket: uri for uri in reversed(uris_of(config)) if uri.scheme in schemes}
    return tuple(reversed(found.values()))
