"""The end of a VM's serial log, which a cloud shows without a key: why a node lets nobody in."""

from __future__ import annotations

LINES = 20


def last_lines(text: str) -> str:
    """The last LINES that say something, without what a terminal would act on at their ends."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip("\x00 \r\t")]
    return "\n".join(lines[-LINES:])
