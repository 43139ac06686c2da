"""`cloudtrain cache`: what this machine keeps for later runs, and its removal."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.protocols import Console
from cloudtrain.setup.kept_here import Kept, kept_here, remove

__all__ = ["Kept", "kept_here", "prune"]


def prune(unused: Sequence[Kept], console: Console) -> dict[str, str]:
    """Delete what nothing uses, environments before the Pythons that they were made with; returns
    why something stayed, by its name."""
    stayed = {}
    for kept in sorted(unused, key=lambda each: each.kind == "Python"):
        if why := remove(kept):
            stayed[kept.name] = why
            console.warn(f"{kept.kind} {kept.name} stays: {why}")
        else:
            console.say(f"removed {kept.kind} {kept.name}")
    return stayed
