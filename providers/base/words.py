"""Formats facts for users."""

from __future__ import annotations

NOT_REPORTED = "not reported by this endpoint"
"""What a finding says of a fact that nobody told."""


def lasting(seconds: float) -> str:
    """Format a duration in seconds as `30 s`, `45 min`, `48 h` or `1 h 30 min`."""
    left, parts = round(seconds), []
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts) or "0 s"


# ── Trims a VM's serial log, which shows without an SSH key why a node cannot be reached ──────


LINES = 20


def last_lines(text: str) -> str:
    """The last LINES non-empty lines, without trailing white space."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip("\x00 \r\t")]
    return "\n".join(lines[-LINES:])
