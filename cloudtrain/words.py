"""Lists of names, and sizes, in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice

from cloudtrain.paths import shown


def size_text(size: float) -> str:
    """Bytes in decimal units: `3.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def sizes(found: Counter[str]) -> str:
    """`model/ (3.2 GB), logs/ (12 kB)`, the largest first; "" for nothing."""
    names = [f"{shown(name)} ({size_text(size)})" for name, size in found.most_common()]
    return some(names, 10)


def some(names: Collection[str], limit: int = 3) -> str:
    """`a, b, c and 125 more`: the first `limit` names, and how many there are besides."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(islice(names, limit)) + more


def size(count: int) -> str:
    """`812 B`, `1.2 kB`, `14 MB`, `3.1 GB`: as disks and networks count."""
    if count < 1000:
        return f"{count} B"
    amount, units = count / 1000, iter(("kB", "MB", "GB"))
    unit = next(units)
    while amount >= 999.5 and unit != "GB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
