"""Moments and lengths of time, as they are shown to people."""

from __future__ import annotations

import time


def clock(moment: float) -> str:
    """Of Unix time, as the clocks here show it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds) // 60
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
