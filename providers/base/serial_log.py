"""Trims a VM's serial log, which shows without an SSH key why a node cannot be reached."""

from __future__ import annotations

LINES = 20


def last_lines(text: str) -> str:
    """The last LINES non-empty lines, without trailing white space."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip("\x00 \r\t")]
    return "\n".join(lines[-LINES:])
