"""gpuhunt's catalog as its publisher lays it out, written by its own storage module."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import gpuhunt

T4 = {"gpu_count": 1, "gpu_name": "T4", "gpu_memory": 16.0}


def item(machine: str, place: str, price: float, **more: object) -> gpuhunt.CatalogItem:
    """A machine of EC2 with 4 vCPUs and 16 GiB on demand, unless `more` says otherwise."""
    facts: dict[str, object] = {
        "cpu": 4,
        "memory": 16.0,
        "gpu_count": 0,
        "gpu_name": None,
        "gpu_memory": None,
    }
    facts |= {"spot": False, "disk_size": None, "provider": "aws"}
    if more.get("gpu_count"):
        facts["gpu_vendor"] = gpuhunt.AcceleratorVendor.NVIDIA
    return gpuhunt.CatalogItem(
        instance_name=machine, location=place, price=price, **{**facts, **more}
    )


def publish(
    folder: Path, items: Mapping[str, Sequence[gpuhunt.CatalogItem]], version: str = "20261120"
) -> Path:
    """Write the catalog of these clouds; returns the folder for GPUHUNT_CATALOG_URL."""
    from gpuhunt._internal import storage

    root = folder / "v3"
    for cloud, own in items.items():
        storage.dump(own, str(folder / f"{cloud}.csv"))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.write(folder / f"{cloud}.csv", f"{cloud}.csv")
        there = root / cloud / version
        there.mkdir(parents=True)
        (root / cloud / "version").write_text(f"{version}\n")
        (there / "catalog.zip").write_bytes(packed.getvalue())
    return root
