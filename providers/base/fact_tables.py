"""Tables of facts beside a cloud's facts.py: CSV files, one fact in each row, with its source."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import cast

from cloudtrain.core.cloud import Family, TpuFamily
from cloudtrain.core.model import Market


@cache
def rows(folder: Path, name: str) -> Sequence[dict[str, str]]:
    """Read the rows of a table; lines that begin with `#` are notes."""
    lines = (folder / f"{name}.csv").read_text("utf-8").splitlines()
    return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))


def actions(folder: Path, **wanted: str) -> tuple[str, ...]:
    """List the actions of permissions.csv whose other columns are as wanted."""
    table = rows(folder, "permissions")
    return tuple(row["action"] for row in table if wanted.items() <= row.items())


def families(folder: Path) -> tuple[Family, ...]:
    """Read families.csv: `markets` is empty for machines that are no longer sold."""
    return tuple(
        Family(
            machines=row["machines"],
            shown=row["shown"],
            kind=row["kind"],
            markets=cast("tuple[Market, ...]", tuple(row["markets"].split())),
            retired=date.fromisoformat(row["retired"]) if row["retired"] else None,
            instead=row["instead"],
            unfit=row["unfit"],
            arm=row["arm"] == "yes",
            source=row["source"],
            read=date.fromisoformat(row["read"]),
        )
        for row in rows(folder, "families")
    )


def tpus(folder: Path) -> tuple[TpuFamily, ...]:
    """Read tpus.csv and tpu_prices.csv."""
    prices: dict[str, dict[str, tuple[float, float | None]]] = {}
    for row in rows(folder, "tpu_prices"):
        spot = float(row["spot"]) if row["spot"] else None
        prices.setdefault(row["prefix"], {})[row["region"]] = (float(row["on_demand"]), spot)
    return tuple(
        TpuFamily(
            prefix=row["prefix"],
            cores_per_chip=int(row["cores_per_chip"]),
            one_host=int(row["one_host"]),
            most=int(row["most"]),
            zones=tuple(row["zones"].split()),
            prices=prices.get(row["prefix"], {}),
            priced=date.fromisoformat(row["priced"]),
            runtime=row["runtime"],
            source=row["source"],
            read=date.fromisoformat(row["read"]),
        )
        for row in rows(folder, "tpus")
    )


def disk_prices(folder: Path) -> dict[str, float]:
    """Read disk_prices.csv: region → its prices as a multiple of those of the first region."""
    return {row["region"]: float(row["multiple"]) for row in rows(folder, "disk_prices")}
