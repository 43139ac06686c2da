"""Stores for artifacts and input data: each kind of `core/store_kinds.KINDS` has a module."""

from __future__ import annotations

import importlib
import importlib.util

from cloudtrain.core.cloud import clouds
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.protocols import StoreBackend
from cloudtrain.core.store_kinds import KINDS, StoreKind, kind_of


@dataclass(frozen=True, kw_only=True)
class StoreWishes:
    """Wishes that a config has of a service, beside the objects themselves. `encryption`: of
    uploads, as `artifacts.encryption` has it. `requester_pays`: for reads of input data."""

    encryption: str | None = None
    requester_pays: bool = False


NO_WISHES = StoreWishes()


def open_store(
    uri: str,
    *,
    endpoint: str | None = None,
    project: str | None = None,
    field: str = "artifacts.store",
    wishes: StoreWishes = NO_WISHES,
) -> StoreBackend:
    """Open the store of a URI. Sends no request yet. Raises UsageError.

    `endpoint` is a custom address of the store's service, `project` the config's `project:` if the
    store is of the nodes' cloud: the AWS profile for s3, the Google project for a new gs bucket.
    `field` is the config's field with the URI."""
    kind = kind_of(uri)
    if kind is None:
        forms = ", ".join(each.form for each in KINDS)
        raise UsageError(f"{field}: {uri}: unknown kind of store", hint=f"use {forms}")
    try:
        is_missing = kind.package != "" and importlib.util.find_spec(kind.package) is None
    except ModuleNotFoundError:  # its namespace package does not exist
        is_missing = True
    if is_missing:
        raise UsageError(
            f"{field}: {uri}: needs {kind.package}, which is not installed",
            hint=install_hint(extra_of(kind)),
        )
    module = importlib.import_module(f"cloudtrain.stores.{kind.scheme}")
    store: StoreBackend = module.opened(uri, endpoint=endpoint, project=project, wishes=wishes)
    return store


def extra_of(kind: StoreKind) -> str:
    """Extra of the cloud that has this kind of store, or one named as the scheme."""
    of = (cloud.name for cloud in clouds() if cloud.store_scheme == kind.scheme)
    return next(of, kind.scheme)
