"""Machine types that the packaged table lacks, as clouds reported them; kept for this user."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from cloudtrain.catalog import table
from cloudtrain.protocols import MachineFacts


def learned_machines(provider: str) -> table.Table | None:
    """Return the machine types that the cloud has reported; None if none yet."""
    return table.read_if_valid(path(provider))


def remember(provider: str, reported: Iterable[MachineFacts]) -> None:
    """Save reported machine types next to those already known.

    An unwritable folder is no error: the next `check` or `up` queries the cloud again.
    """
    rows = [_row(facts) for facts in reported]
    known = learned_machines(provider)
    new = {row.machine.lower() for row in rows}
    old = [row for row in (known.rows if known else ()) if row.machine.lower() not in new]
    text = table.format_table(date.today(), f"told by {provider}", (*old, *rows))
    place = path(provider)
    if not rows:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, prefix=f".{place.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, place)  # noqa: PTH105


def _row(facts: MachineFacts) -> table.Row:
    return table.Row(
        machine=facts.name,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        accelerator=facts.accelerator,
        spot=False,
        prices={},
    )


def path(provider: str) -> Path:
    return table.cache() / "machines" / f"{provider}.csv"
