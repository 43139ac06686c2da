"""Lists of names, and sizes, in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice

from cloudtrain.core.paths import shown


def size_text(size: float) -> str:
    """Bytes in decimal units, as disks and networks count: `3.2 GB`."""
    units = iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 999.5 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def sizes(found: Counter[str]) -> str:
    """`model/ (3.2 GB), logs/ (12 kB)`, the largest first; "" for nothing."""
    names = [f"{shown(name)} ({size_text(size)})" for name, size in found.most_common()]
    return some(names, 10)


def some(names: Collection[str], limit: int = 3) -> str:
    """`a, b, c and 125 more`: the first `limit` names, and how many there are besides."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(islice(names, limit)) + more
