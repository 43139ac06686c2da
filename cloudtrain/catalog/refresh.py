"""Downloads today's prices from gpuhunt's catalog into this user's cache folder."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from cloudtrain.catalog import gpus, region_of, table
from cloudtrain.catalog.gpus import canonical_name
from cloudtrain.core.cloud import clouds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.model import Accelerator

TIMEOUT = 30.0
"""Seconds without an answer; gpuhunt sets none."""


def refresh(today: date) -> dict[str, Path]:
    """Fetch the clouds' prices and write a table for each; cloud → its file. Raises UsageError if
    gpuhunt is not installed or its catalog cannot be downloaded."""
    try:
        import gpuhunt
    except ImportError:
        raise UsageError(
            "gpuhunt is not installed: current prices are fetched with it",
            hint=install_hint("prices"),
        ) from None
    catalog = gpuhunt.Catalog(auto_reload=False)
    names = {cloud.name: cloud.gpuhunt for cloud in clouds() if cloud.gpuhunt}
    with _held_back():
        try:
            catalog.load()
        except gpuhunt.GPUHuntError as error:
            raise _offline(error.__cause__ or error) from error
        items = {cloud: catalog.query(provider=name) for cloud, name in names.items()}
    missing = [cloud for cloud, found in items.items() if not found]
    if missing:
        raise _offline(f"gpuhunt's catalog has no prices of {', '.join(missing)}")
    return {
        cloud: save(cloud, _version(catalog, names[cloud]) or today, found)
        for cloud, found in items.items()
    }


def _version(catalog: Any, name: str) -> date | None:
    """Date of the catalog: catalogs are named after the day on which they were collected,
    `20261120`."""
    version = str(getattr(catalog.catalog.get(name), "version", ""))
    found = re.match(r"(\d{4})(\d\d)(\d\d)", version)
    return date(int(found[1]), int(found[2]), int(found[3])) if found else None


def save(cloud: str, today: date, items: Iterable[Any]) -> Path:
    """Write the table of these gpuhunt items atomically."""
    text = table.format_table(today, "from gpuhunt's catalog", rows_of(cloud, items))
    path = table.refreshed_path(cloud)
    try:
        table.save(path, text)
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror}", hint="set CLOUDTRAIN_CACHE to another folder"
        ) from error
    return path


def rows_of(cloud: str, items: Iterable[Any]) -> tuple[table.MachineRow, ...]:
    """Rows of the machines in the packaged table, and of GPU machines that it lacks, at the price
    of each region's most expensive zone."""
    known = {name: rows[0] for name, rows in table.packaged(cloud).by_name.items()}
    prices: dict[tuple[str, Accelerator | None, bool], dict[str, float]] = {}
    for item in items:
        name = item.instance_name.lower()
        if name not in known and item.gpu_count and gpus.gpu(str(item.gpu_name)) is not None:
            known[name] = table.MachineRow(
                machine=item.instance_name,
                vcpus=int(item.cpu),
                memory_gib=float(item.memory),
                accelerator=_accelerator(item),
                spot=False,
                prices={},
            )
        # GCP's calendar mode: booked ahead, cheaper than on demand; cloudtrain does not rent it.
        is_reserved = (item.provider_data or {}).get("is_dws_calendar_mode")
        if name not in known or is_reserved or item.price <= 0:
            continue
        region = region_of(cloud, item.location)
        there = prices.setdefault((item.instance_name, _accelerator(item), item.spot), {})
        there[region] = max(item.price, there.get(region, 0.0))
    return tuple(
        replace(known[machine.lower()], accelerator=accelerator, spot=spot, prices=there, dates={})
        for (machine, accelerator, spot), there in prices.items()
    )


def _accelerator(item: Any) -> Accelerator | None:
    if not item.gpu_count:
        return None
    memory = round(item.gpu_memory or 0)
    kind = f"{item.gpu_name}-{memory}GB" if item.gpu_name in ("A100", "V100") else item.gpu_name
    return Accelerator(kind=canonical_name(kind.replace("H100NVL", "H100")), count=item.gpu_count)


def _offline(why: object) -> UsageError:
    return UsageError(
        f"cannot fetch current prices: {why}",
        hint="omit --refresh-prices to use the prices on this machine",
    )


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Limit gpuhunt's waits, and silence its log: a traceback for each provider that fails."""
    logger = logging.getLogger("gpuhunt")
    level, seconds = logger.level, socket.getdefaulttimeout()
    logger.setLevel(logging.CRITICAL + 1)
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    finally:
        logger.setLevel(level)
        socket.setdefaulttimeout(seconds)
