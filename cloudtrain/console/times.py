"""Formats times and durations for users."""

from __future__ import annotations

import time


def clock(moment: float) -> str:
    """Local time of a Unix time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def exact_duration(seconds: float) -> str:
    """`1m13s`, where two durations are to be told apart."""
    whole = round(seconds)
    if whole < 60 or whole >= 3600:
        return duration(whole)
    return f"{whole // 60}m{whole % 60:02d}s"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
