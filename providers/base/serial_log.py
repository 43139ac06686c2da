"""End of a VM's serial log, which a cloud returns without a key: shows why a node cannot be
reached.
"""

from __future__ import annotations

LINES = 20


def last_lines(text: str) -> str:
    """Last LINES that are not empty, without control characters at their ends."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip("\x00 \r\t")]
    return "\n".join(lines[-LINES:])
