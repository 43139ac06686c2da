"""`cloudtrain cache` and `forget`: remove what this machine keeps: for later runs, of clusters."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.cluster.session import open_provider, recorded_config
from cloudtrain.core.errors import UsageError
from cloudtrain.core.protocols import Console
from cloudtrain.setup.kept_here import Kept, kept_here, remove
from cloudtrain.state import Records

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


def forget(name: str, *, discard: bool, console: Console) -> None:
    """Delete the cluster's record. Artifacts in a store stay there. Raises UsageError while it is
    up, or if its artifacts are only in the record."""
    records = Records(name)
    with records.lock("forget"):
        if records.is_open():
            refuse_existing(records)
        landed = records.folder / "artifacts"  # as session.artifact_store has it
        if not discard and any(path.is_file() for path in landed.rglob("*")):
            raise UsageError(
                f"{name} has no `artifacts.store`: its artifacts are only in {landed}",
                hint=f"`cloudtrain fetch {name} DIR` copies them; --discard deletes them too",
            )
        records.remove()
    console.say(f"removed the record of {name}")


def refuse_existing(records: Records) -> None:
    """Refuse a cluster that is up by its record, unless its provider lists nothing of it."""
    config = recorded_config(records)
    nodes = open_provider(config).nodes(records.name)
    if nodes:
        raise UsageError(
            f"{records.name} is up: {', '.join(node.name for node in nodes)}",
            hint=f"run `cloudtrain down {records.name}` first: it lands what they hold",
        )
