"""Stores for artifacts: each kind of store has a module and a row in KINDS."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from cloudtrain.core.cloud import clouds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.stores.wishes import NO_WISHES, Wishes


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A kind of store; its module in stores/ has `opened(uri, *, endpoint, project)`,
    with `takes_wishes` also `wishes`.
    """

    scheme: str
    form: str
    module: str
    package: str = ""
    """Package that the module imports; `extra` installs it."""
    on_this_machine: bool = False
    """True if the store is on this machine, so that nodes cannot upload to it directly."""
    takes_wishes: bool = False
    monthly: float | None = None
    """$ per GB and month, standard storage in the cheapest large regions, 2026-11-23; None: not
    known."""

    @property
    def extra(self) -> str:
        """Extra of the cloud that has this kind of store, or one named as the scheme."""
        of = (cloud.name for cloud in clouds() if cloud.store_scheme == self.scheme)
        return next(of, self.scheme)


KINDS = (
    StoreKind(
        scheme="file",
        form="file:///absolute/path",
        module="file",
        on_this_machine=True,
        monthly=0.0,
    ),
    StoreKind(
        scheme="gs",
        form="gs://BUCKET/prefix",
        module="gs",
        package="google.cloud.storage",
        takes_wishes=True,
        monthly=0.020,  # https://cloud.google.com/storage/pricing
    ),
    StoreKind(
        scheme="s3",
        form="s3://BUCKET/prefix",
        module="s3",
        package="boto3",
        takes_wishes=True,
        monthly=0.023,  # https://aws.amazon.com/s3/pricing
    ),
    StoreKind(
        scheme="az",
        form="az://ACCOUNT/CONTAINER/prefix",
        module="az",
        package="azure.storage.blob",
        # Hot, locally redundant: https://azure.microsoft.com/pricing/details/storage/blobs
        monthly=0.0208,
    ),
)


def open_store(
    uri: str,
    *,
    endpoint: str | None = None,
    project: str | None = None,
    field: str = "artifacts.store",
    wishes: Wishes = NO_WISHES,
) -> StoreBackend:
    """Open the store of a URI. Sends no request yet. Raises UsageError.

    `endpoint` is a custom address of the store's service, `project` the config's `project:` if the
    store is of the nodes' cloud: the AWS profile for s3, the Google project for a new gs bucket.
    `field` is the config's field with the URI.
    """
    kind = kind_of(uri)
    if kind is None:
        forms = ", ".join(each.form for each in KINDS)
        raise UsageError(f"{field}: {uri}: unknown kind of store", hint=f"use {forms}")
    if kind.package:
        _refuse_missing(uri, kind, field)
    module = importlib.import_module(f"cloudtrain.stores.{kind.module}")
    given = {"wishes": wishes} if kind.takes_wishes else {}
    store: StoreBackend = module.opened(uri, endpoint=endpoint, project=project, **given)
    return store


def kind_of(uri: str) -> StoreKind | None:
    scheme = scheme_of(uri)
    return next((kind for kind in KINDS if kind.scheme == scheme), None)


def scheme_of(uri: str) -> str:
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def is_on_this_machine(uri: str) -> bool:
    kind = kind_of(uri)
    return kind is not None and kind.on_this_machine


def _refuse_missing(uri: str, kind: StoreKind, field: str) -> None:
    try:
        found = importlib.util.find_spec(kind.package)
    except ModuleNotFoundError:  # its namespace package does not exist
        found = None
    if found is None:
        raise UsageError(
            f"{field}: {uri}: needs {kind.package}, which is not installed",
            hint=install_hint(kind.extra),
        )
