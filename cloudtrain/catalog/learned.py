"""Machine types as their clouds reported them, which win over the packaged table; kept for this
user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from cloudtrain.catalog import table
from cloudtrain.core.paths import cache_folder
from cloudtrain.core.protocols import MachineFacts


def learned_machines(provider: str) -> table.Table | None:
    """The machine types that the cloud has reported; None if none yet."""
    return table.read_if_valid(path(provider))


def learned_row(provider: str, machine: str) -> table.Row | None:
    """Facts that the cloud has reported of a machine type; None if nothing yet."""
    known = learned_machines(provider)
    rows = known.by_name.get(machine.lower(), ()) if known else ()
    return rows[0] if rows else None


def remember(provider: str, reported: Iterable[MachineFacts]) -> None:
    """Save reported machine types next to those already known, in the place of an earlier answer.
    An unwritable folder is no error: the next `check` or `up` queries the cloud again."""
    rows = [_row(facts) for facts in reported]
    if all(learned_row(provider, row.machine) == row for row in rows):
        return
    known = learned_machines(provider)
    new = {row.machine.lower() for row in rows}
    old = [row for row in (known.rows if known else ()) if row.machine.lower() not in new]
    text = table.format_table(date.today(), f"told by {provider}", (*old, *rows))
    with contextlib.suppress(OSError):
        table.save(path(provider), text)


def _row(facts: MachineFacts) -> table.Row:
    return table.Row(
        machine=facts.name,
        vcpus=facts.vcpus,
        memory_gib=float(f"{facts.memory_gib:g}"),
        accelerator=facts.accelerator,
        spot=False,
        prices={},
        scratch_gb=facts.scratch_gb,
        arm=facts.arm,
    )


def path(provider: str) -> Path:
    return cache_folder() / "machines" / f"{provider}.csv"
