"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice


def some(names: Collection[str], limit: int = 3) -> str:
    """`a, b, c and 125 more`: the first `limit` names, and how many there are besides."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(islice(names, limit)) + more
