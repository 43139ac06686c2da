"""Dated tables of machines and prices: one in each cloud's own folder, newer ones of this user."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path

from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import Accelerator
from cloudtrain.core.paths import cache_folder
from cloudtrain.core.protocols import MachineFacts

HEAD = ("machine", "vcpus", "memory_gib", "accelerator", "count", "market")
REPORTED = ("scratch_gb", "arm")
"""Columns of what clouds reported, which tables of earlier versions lack."""


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """One machine with its accelerators on one market. `prices` are $/hour by region, `dates` the
    days of those that are not of the table's."""

    machine: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None
    spot: bool
    prices: Mapping[str, float]
    dates: Mapping[str, date] = field(default_factory=dict)
    scratch_gb: int | None = None
    """GB of its local disks; None if not known."""
    arm: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    date: date
    rows: tuple[MachineRow, ...]

    @cached_property
    def by_name(self) -> Mapping[str, tuple[MachineRow, ...]]:
        """Rows by machine type in lower case; no two of Azure's names differ only in case."""
        found: dict[str, list[MachineRow]] = {}
        for row in self.rows:
            found.setdefault(row.machine.lower(), []).append(row)
        return {name: tuple(rows) for name, rows in found.items()}

    def row(
        self, machine: str, accelerator: Accelerator | None, *, spot: bool
    ) -> MachineRow | None:
        for row in self.by_name.get(machine.lower(), ()):
            if row.accelerator == accelerator and row.spot == spot:
                return row
        return None


@lru_cache(maxsize=8)
def packaged(provider: str) -> Table:
    """The table that ships with this version."""
    cloud = cloud_of(provider)
    assert cloud is not None, f"{provider} is no cloud"
    return parse_table(cloud.machines.read_text(encoding="utf-8"))


def refreshed(provider: str) -> Table | None:
    """The table that this user fetched, if it is newer than the packaged one."""
    table = read_if_valid(refreshed_path(provider))
    return table if table is not None and table.date > packaged(provider).date else None


def read_if_valid(path: Path) -> Table | None:
    """The table in this file; None if there is no file or no valid table in it."""
    try:
        return _at(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=8)
def _at(path: Path, _changed: int) -> Table:
    return parse_table(path.read_text(encoding="utf-8"))


def refreshed_path(provider: str) -> Path:
    return cache_folder() / "prices" / f"{provider}.csv"


def save(path: Path, text: str) -> None:
    """Write a table's file atomically. Raises OSError."""
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    Path(file.name).replace(path)


def parse_table(text: str) -> Table:
    """Parse a table. Raises ValueError for any other text."""
    first, _, rest = text.partition("\n")
    found = re.match(r"# (\d{4}-\d\d-\d\d)\b", first)
    if not found:
        raise ValueError("a price table begins with its date")
    lines = csv.reader(rest.splitlines())
    head = next(lines, [])
    if tuple(head[: len(HEAD)]) != HEAD:
        raise ValueError(f"a price table has the columns {', '.join(HEAD)}")
    regions = head[len(HEAD) :]
    return Table(date=date.fromisoformat(found[1]), rows=tuple(_rows(lines, regions)))


def _rows(lines: Iterator[list[str]], regions: list[str]) -> Iterator[MachineRow]:
    for line in lines:
        machine, vcpus, memory, kind, count, market = (*line, "", "", "", "", "", "")[: len(HEAD)]
        cells = dict(zip(regions, line[len(HEAD) :], strict=False))
        scratch, arm = (cells.pop(column, "") for column in REPORTED)
        told = {region: cell.partition("@") for region, cell in cells.items() if cell}
        yield MachineRow(
            machine=machine,
            vcpus=int(float(vcpus)),
            memory_gib=float(memory),
            accelerator=Accelerator(kind=kind, count=int(count)) if kind else None,
            spot=market == "spot",
            prices={region: float(price) for region, (price, _, _) in told.items()},
            dates={r: date.fromisoformat(day) for r, (_, _, day) in told.items() if day},
            scratch_gb=int(scratch) if scratch else None,
            arm=arm == "1",
        )


def format_table(day: date, source: str, rows: tuple[MachineRow, ...]) -> str:
    """Format a table as `parse_table` parses it."""
    regions = sorted({region for row in rows for region in row.prices})
    reported = any(row.scratch_gb is not None or row.arm for row in rows)
    head = [*HEAD, *(REPORTED if reported else ()), *regions]
    lines = [f"# {day.isoformat()} {source}", ",".join(head)]
    for row in rows:
        kind = (row.accelerator.kind, str(row.accelerator.count)) if row.accelerator else ("", "")
        facts = [row.machine, f"{row.vcpus}", f"{row.memory_gib:g}", *kind]
        facts.append("spot" if row.spot else "on-demand")
        if reported:
            facts.append("" if row.scratch_gb is None else f"{row.scratch_gb}")
            facts.append("1" if row.arm else "")
        days = {region: f"@{day.isoformat()}" for region, day in row.dates.items()}
        prices = {region: f"{price:.6g}" for region, price in row.prices.items()}
        cells = [f"{prices.get(r, '')}{days.get(r, '')}" for r in regions]
        lines.append(",".join([*facts, *cells]).rstrip(","))
    return "\n".join(lines) + "\n"


# ── Machine types as their clouds reported them, which win over the packaged table ────────────
# They are kept for this user.


def learned_machines(provider: str) -> Table | None:
    """The machine types that the cloud has reported; None if none yet."""
    return read_if_valid(learned_path(provider))


def learned_row(provider: str, machine: str) -> MachineRow | None:
    """Facts that the cloud has reported of a machine type; None if nothing yet."""
    known = learned_machines(provider)
    rows = known.by_name.get(machine.lower(), ()) if known else ()
    return rows[0] if rows else None


def remember(provider: str, reported: Iterable[MachineFacts]) -> None:
    """Save reported machine types next to those already known, in the place of an earlier answer.
    An unwritable folder is no error: the next `check` or `up` queries the cloud again."""
    rows = [
        MachineRow(
            machine=facts.name,
            vcpus=facts.vcpus,
            memory_gib=float(f"{facts.memory_gib:g}"),
            accelerator=facts.accelerator,
            spot=False,
            prices={},
            scratch_gb=facts.scratch_gb,
            arm=facts.arm,
        )
        for facts in reported
    ]
    if all(learned_row(provider, row.machine) == row for row in rows):
        return
    known = learned_machines(provider)
    new = {row.machine.lower() for row in rows}
    old = [row for row in (known.rows if known else ()) if row.machine.lower() not in new]
    text = format_table(date.today(), f"told by {provider}", (*old, *rows))
    with contextlib.suppress(OSError):
        save(learned_path(provider), text)


def learned_path(provider: str) -> Path:
    return cache_folder() / "machines" / f"{provider}.csv"
