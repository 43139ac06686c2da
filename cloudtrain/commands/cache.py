"""`cloudtrain cache`, `forget` and `gc`: what is kept for later runs here and in stores, and the
records of clusters; their removal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.cluster.session import open_provider, recorded_config
from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.protocols import Console
from cloudtrain.core.store_kinds import kind_of
from cloudtrain.setup import stored
from cloudtrain.setup.kept_here import Kept, kept_here, remove
from cloudtrain.setup.programs import EnvironmentArchive
from cloudtrain.state import Records
from cloudtrain.stores import open_store

__all__ = ["Kept", "kept_here", "prune"]


def prune(unused: Sequence[Kept], console: Console) -> dict[str, str]:
    """Delete what nothing uses, layers before the environments below them, and these before their
    Pythons; returns why something stayed, by its name."""
    stayed = {}
    for kept in sorted(unused, key=lambda each: each.removal_order):
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
        if records.is_open() and (nodes := open_provider(recorded_config(records)).nodes(name)):
            raise UsageError(
                f"{name} is up: {', '.join(node.name for node in nodes)}",
                hint=f"run `cloudtrain down {name}` first: it lands what they hold",
            )
        landed = records.folder / "artifacts"  # as session.artifact_store has it
        if not discard and any(path.is_file() for path in landed.rglob("*")):
            raise UsageError(
                f"{name} has no `artifacts.store`: its artifacts are only in {landed}",
                hint=f"`cloudtrain fetch {name} DIR` copies them; --discard deletes them too",
            )
        records.remove()
    console.say(f"removed the record of {name}")


# ── archives of environments in stores (`setup.cache`) ─────────────────────────


DAY = 86400.0
ENDED = 1.0
"""Days after which an upload has ended, whatever became of it: no signed request lasts longer."""


@dataclass(frozen=True, kw_only=True)
class Environments:
    """Archives that this machine knows to be in stores, and uploads that have not ended."""

    archives: tuple[EnvironmentArchive, ...] = field(default_factory=stored.archives)
    stagings: tuple[stored.Staging, ...] = field(default_factory=stored.stagings)
    now: float = field(default_factory=moments.now)

    def unused(self, days: float) -> tuple[EnvironmentArchive | stored.Staging, ...]:
        """Archives that no cluster has used for that many days, and remains of uploads."""
        old = [each for each in self.archives if self.now - self.last_use(each) >= days * DAY]
        ended = [each for each in self.stagings if self.now - each.begun >= ENDED * DAY]
        return (*old, *ended)

    def last_use(self, archive: EnvironmentArchive) -> float:
        return max(archive.used, archive.created)

    def lines(self, days: float) -> Iterator[str]:
        """One for each archive and upload, for people."""
        if self.archives:
            yield "environments kept for later clusters (setup.cache):"
        unused = self.unused(days)
        for each in self.archives:
            ago = (self.now - self.last_use(each)) / DAY
            old = ", unused: will be deleted" if each in unused else ""
            monthly = _monthly(each)
            price = "price not known" if monthly is None else f"about {monthly:.2f} $/month"
            yield (
                f"  {each.label}  {each.size / 1e6:,.0f} MB  {price}  "
                f"used {ago:.0f} days ago  {_where(each)}{old}"
            )
        for staging in self.stagings:
            old = ": will be deleted" if staging in unused else ": may be in progress"
            yield f"  an upload that has not ended{old}  {_where(staging)}"

    def document(self) -> list[dict[str, Any]]:
        """The archives as JSON. `monthly`: estimate in $; null: not known."""
        return [
            {
                "label": each.label,
                "store": each.store.uri if each.store else "",
                "folder": each.folder,
                "bytes": each.size,
                "monthly": _monthly(each),
                "created": each.created,
                "used": self.last_use(each),
            }
            for each in self.archives
        ]


def delete_environments(
    unused: Sequence[EnvironmentArchive | stored.Staging], console: Console
) -> dict[str, CloudtrainError]:
    """Delete them in their stores and then their records; returns what failed, by its place."""
    failed: dict[str, CloudtrainError] = {}
    for each in unused:
        try:
            assert each.store is not None
            place = each.store
            store = open_store(place.uri, endpoint=place.endpoint, project=place.project)
            stored.delete(each, store)
        except CloudtrainError as error:
            failed[_where(each)] = error
        else:
            console.say(f"{_where(each)}: deleted")
    return failed


def _where(each: EnvironmentArchive | stored.Staging) -> str:
    return f"{each.store.uri.rstrip('/') if each.store else ''}/{each.folder}"


def _monthly(archive: EnvironmentArchive) -> float | None:
    kind = kind_of(archive.store.uri) if archive.store else None
    if kind is None or kind.monthly is None:
        return None
    return round(archive.size / 1e9 * kind.monthly, 4)
