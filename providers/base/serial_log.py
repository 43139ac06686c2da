"""End of a VM's serial log: shows why a node cannot be reached, and needs no SSH key."""

from __future__ import annotations

LINES = 20


def last_lines(text: str) -> str:
    """Last LINES lines that are not empty, without trailing white space."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip("\x00 \r\t")]
    return "\n".join(lines[-LINES:])
