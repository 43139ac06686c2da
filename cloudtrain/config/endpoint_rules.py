"""Rules on `endpoints`: what gets credentials as they are is asked by https alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.yaml_source import Path
from cloudtrain.core.cloud import Cloud, cloud_of, clouds
from cloudtrain.core.network import host_of, is_loopback

Found = Iterator[tuple[Path, str]]


def broken_endpoint_rules(file: ConfigFile) -> Found:
    for service in ("compute", "auth", "storage"):
        url = getattr(file.endpoints, service, None)
        if url is None:
            continue
        host = host_of(url)
        if host.scheme == "https" or is_loopback(host.name):
            continue
        store = file.artifacts.store if file.artifacts is not None else None
        data = [each.source for each in (file.data or {}).values() if each and each.source]
        if any(not cloud.signs_by_host for cloud in asked_at(service, file.provider, store, data)):
            yield (
                ("endpoints", service),
                "is http://, by which everybody on the way could read your credentials: use "
                "https:// (without it only this machine itself is asked)",
            )


def asked_at(
    service: str, provider: str | None, store: str | None, data: Iterable[str]
) -> list[Cloud]:
    """Clouds whose credentials go to `endpoints.SERVICE`. Of the storage service these are the
    store's, else the nodes' own, and without one those of `data`."""
    own = cloud_of(provider or "")
    if service != "storage" or (store is None and own is not None):
        return [own] if own is not None else []
    schemes = {uri.partition("://")[0].lower() for uri in ([store] if store else data)}
    return [cloud for cloud in clouds() if cloud.store_scheme in schemes]
