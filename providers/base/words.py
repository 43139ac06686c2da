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
