"""The kinds of stores: what is true of one kind alone; and URIs of buckets in a run's command."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A kind of store. Its module in stores/ has the name of its scheme, and `opened(uri, *,
    endpoint, project, wishes)`; so have its presigner in stores/presign/ and, unless it is a
    cloud's own, its extra."""

    scheme: str
    form: str
    """Of its URIs; `HOST` in it is a host that gets this user's credentials."""
    pattern: str = r"(?![a-z0-9]{2}(/|$))[a-z0-9][a-z0-9._-]{1,220}(/|$)"
    """Of what follows `://` in the URI of a store; by default that of a bucket."""
    wrong: tuple[str, ...] = (
        r"[a-z0-9]{1,2}(/|$)",
        "must name a bucket of 3 to 63 characters: this name is too short",
    )
    """Pattern of one that does not match, with its error and hint, if the form does not say it."""
    example: str = ""
    """What a template has after the scheme, for the user to replace."""
    package: str = ""
    """Package that its module imports."""
    distribution: str = ""
    """Name of that package on the index, if it is not the package's with hyphens."""
    reader: str = ""
    """Rights that a user needs to list and read a bucket, by the service's own names."""
    holds_data: bool = False
    """True if `data:` reads from it: by its `ObjectStore`, or as files of this machine."""
    on_this_machine: bool = False
    """True if the store is on this machine, so that nodes cannot upload to it directly."""
    bucket_schemes: tuple[str, ...]
    """Schemes of URIs under which scripts name its buckets."""
    in_account: bool = False
    """True if a bucket is in an account of its own name, which is the first name of its URIs."""
    encrypts_on_request: bool = False
    """True if an upload can ask for its encryption (`artifacts.encryption`)."""
    bills_readers: bool = False
    """True if an owner can have whoever reads pay (`requester_pays`)."""
    monthly: float | None
    """$ per GB and month, standard storage in the cheapest large regions, 2026-11-23; None: not
    known."""

    @property
    def top(self) -> str:
        """Form of the URI of a whole bucket or folder."""
        return self.form.removesuffix("/prefix")


KINDS = (
    StoreKind(
        scheme="gs",
        form="gs://BUCKET/prefix",
        holds_data=True,
        example="my-bucket",
        package="google.cloud.storage",
        reader="roles/storage.objectViewer",
        bucket_schemes=("gs",),
        bills_readers=True,
        monthly=0.020,  # https://cloud.google.com/storage/pricing
    ),
    StoreKind(
        scheme="s3",
        form="s3://BUCKET/prefix",
        holds_data=True,
        example="my-bucket",
        package="boto3",
        reader="s3:ListBucket and s3:GetObject",
        bucket_schemes=("s3", "s3a"),
        encrypts_on_request=True,
        bills_readers=True,
        monthly=0.023,  # https://aws.amazon.com/s3/pricing
    ),
    StoreKind(
        scheme="az",
        form="az://ACCOUNT/CONTAINER/prefix",
        pattern=r"[a-z0-9]{3,24}/[a-z0-9$][a-z0-9-]*(/|$)",
        wrong=(r"(?!)",),
        holds_data=True,
        example="myaccount/my-container",
        package="azure.storage.blob",
        reader="Storage Blob Data Reader",
        bucket_schemes=("az", "abfs", "abfss", "wasb", "wasbs"),
        in_account=True,
        # Hot, locally redundant: https://azure.microsoft.com/pricing/details/storage/blobs
        monthly=0.0208,
    ),
    StoreKind(
        scheme="file",
        form="file:///path",
        pattern="/+[^/]",
        wrong=(
            "",
            "must be file:// and an absolute path",
            "for a folder below your home write file://${HOME}/artifacts",
        ),
        holds_data=True,
        on_this_machine=True,
        bucket_schemes=(),
        monthly=0.0,
    ),
)


def kind_of(uri: str) -> StoreKind | None:
    scheme = scheme_of(uri)
    return next((kind for kind in KINDS if kind.scheme == scheme), None)


def scheme_of(uri: str) -> str:
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def is_on_this_machine(uri: str) -> bool:
    kind = kind_of(uri)
    return kind is not None and kind.on_this_machine


# ── URIs of buckets in a run's command and variables ──────────────────────────────────────────

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
