"""Formats times and durations for users."""

from __future__ import annotations

import time


def clock(moment: float) -> str:
    """Local time of a Unix time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
