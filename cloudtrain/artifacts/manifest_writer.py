"""Writes a run's manifest while files land, and checks it against what the store holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

from cloudtrain.artifacts.manifest import (
    NAME,
    Checkpoint,
    Manifest,
    OwnManifests,
    is_record,
    parsed,
    to_bytes,
    unproven,
)
from cloudtrain.core.errors import CloudtrainError, StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import shown
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.node.listing import times
from cloudtrain.stores.file import batches, most_in_batch, stored_checksums

BESIDE = "again"
"""Staging prefix of changed files while the manifest lists the old version at its own place. Never
the name of a task: those end with their index."""

LOST = "attempt "
"""Beginning of a task's warning about what was lost, which stays."""

READS = 8
"""Batches of files that are read side by side to compare them."""

SAVE_EVERY = 10.0
"""Seconds: files in a saved manifest do not have to land again after this process is killed."""


class ManifestWriter:
    """Manifest of a run that is being written. `manifest` is what has landed so far, without files
    that the store lost. For many threads, but one process: the caller holds the cluster's lock."""

    def __init__(
        self,
        store: ArtifactStore,
        run: str,
        *,
        certain: bool = False,
        own: OwnManifests | None = None,
    ) -> None:
        """`certain`: read what the store's listing does not prove to be what has landed. `own`:
        what this machine wrote; all that another manifest lists is read."""
        self.store, self._own = store, own
        held = _held(store, run)
        self._saved, self.is_own = Manifest(run=run), True
        if NAME in held:
            data = b"".join(store.download(f"{run}/{NAME}"))
            self._saved = parsed(data, store, run)
            self.is_own = own is None or own.has(run, data)
        listed = self._saved if self.is_own else unproven(self._saved)
        certain = certain or not self.is_own
        self.lost = frozenset(_not_held(store, listed, held, certain=certain))
        if self.lost:  # or landed since it was listed
            held = _held(store, run)
            self.lost = frozenset(_not_held(store, listed, held, certain=certain))
        self.manifest = listed.without(self.lost)
        self.unnamed = tuple(held[place] for place in held.keys() - _places(self._saved))
        """Other objects of the run, such as spool archives."""
        self._lock = threading.Lock()
        self._next_save = time.monotonic() + SAVE_EVERY

    def place(self, path: str) -> str:
        """Path for a new version: never one that the saved manifest uses."""
        old = self._saved.files.get(path)
        is_taken = old is not None and old.at == path and path not in self.lost
        return f"{BESIDE}/{path}" if is_taken else path

    def key(self, place: str) -> str:
        """Path in the store of a place below the run's prefix."""
        return f"{self.manifest.run}/{place}"

    def landed(self, path: str, stored: Artifact, stamp: str = "") -> Artifact:
        """Entry of `path` in the manifest, for a file stored at its place and its node's stamp."""
        mtime, _ = times(stamp)
        return replace(stored, path=path, at=self.place(path), mtime=mtime, stamp=stamp)

    def add(self, files: Iterable[Artifact], checkpoint: Checkpoint | None = None) -> None:
        """Add landed files. A checkpoint replaces its folder: other files in it are dropped."""
        with self._lock:
            new = self.manifest.with_files(files)
            if checkpoint is not None:
                new = new.with_checkpoint(checkpoint)
            self.manifest = new
            if time.monotonic() >= self._next_save:
                self._save()

    def warn(self, task: str, warnings: Iterable[str]) -> tuple[str, ...]:
        """Replace a task's warnings; returns those that are new."""
        with self._lock:
            of_task = tuple(f"{task}/{warning}" for warning in warnings)
            kept = f"{task}/{LOST}"
            others = (
                w
                for w in self.manifest.warnings
                if w.startswith(kept) or not w.startswith(f"{task}/")
            )
            old = frozenset(self.manifest.warnings)
            new = tuple(warning for warning in of_task if warning not in old)
            self.manifest = replace(self.manifest, warnings=(*others, *of_task))
            return new

    def lose(self, task: str, attempt: int, what: str) -> str:
        """Record what ended with an attempt's node; returns the warning, if there is one."""
        with self._lock:
            start = f"{task}/{LOST}{attempt}: "
            others = tuple(w for w in self.manifest.warnings if not w.startswith(start))
            new = (f"{start}{what}: lost with its node",) if what else ()
            self.manifest = replace(self.manifest, warnings=(*others, *new))
            return "".join(new)

    def landed_all(self, task: str, attempt: int) -> None:
        """Record that all files of a task have landed after the end of this attempt."""
        with self._lock:
            landed = {**self.manifest.landed_attempts, task: attempt}
            self.manifest = replace(self.manifest, landed_attempts=landed)

    def save(self) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        if self.manifest != self._saved:
            data = to_bytes(self.manifest)
            if self._own is not None:
                self._own.about_to_write(self.manifest.run, data)
            self.store.upload(f"{self.manifest.run}/{NAME}", [data])
            old, self._saved = self._saved, self.manifest
            self._clear(_places(old) - _places(self.manifest))
        self._next_save = time.monotonic() + SAVE_EVERY

    def _clear(self, places: Iterable[str]) -> None:
        """Delete files of ours that no manifest lists any more: they would be billed forever."""
        for place in places:
            with suppress(CloudtrainError):  # without the right to delete, it stays
                self.store.delete(self.key(place))

    def settle(self, pool: ThreadPoolExecutor, *, complete: bool = False) -> None:
        """Promote every file to its own place, check them, and save. `complete`: nothing more is to
        land. Raises StoreError."""
        held = self._promote(pool)
        before = _places(self._saved)
        self.manifest = replace(self.manifest, complete=complete or self.manifest.complete)
        self.save()
        self._clear(self._left_over(held) - before)

    def _promote(self, pool: ThreadPoolExecutor) -> Mapping[str, Artifact]:
        """Copy staged files to their own places; returns the store's files by place."""
        aside = [each for each in self.manifest.files.values() if each.at != each.path]
        if aside:  # never overwrite a place that a saved manifest lists
            self.save()
            self.add(pool.map(self._promoted, aside))
        held = _held(self.store, self.manifest.run)
        lost = _not_held(self.store, self.manifest, held)
        if lost:
            raise StoreError(
                f"{self.store.uri}: uploaded files are missing, or were altered: "
                + ", ".join(shown(path) for path in lost[:5]),
                hint="check who deletes or writes them; run the command again to upload them again",
            )
        self.add(_with_versions(self.manifest, held))
        return held

    def _left_over(self, held: Iterable[str]) -> set[str]:
        """Files that a killed process left behind in folders to which only we write."""
        folders = [BESIDE]
        if self.manifest.checkpoint is not None:
            folders.append(f"{self.manifest.checkpoint.task}/{self.manifest.checkpoint.folder}")
        found = {
            place for place in held if any(place.startswith(f"{folder}/") for folder in folders)
        }
        return found - _places(self.manifest)

    def _promoted(self, landed: Artifact) -> Artifact:
        self.store.copy(self.key(landed.at), self.key(landed.path))
        return replace(landed, at=landed.path, version="")


def _places(manifest: Manifest) -> set[str]:
    return {each.at for each in manifest.files.values()}


def _held(store: ArtifactStore, run: str) -> dict[str, Artifact]:
    """The store's current files of a run, by place."""
    prefix = f"{run}/"
    return {found.path[len(prefix) :]: found for found in store.list(prefix)}


def _with_versions(manifest: Manifest, held: Mapping[str, Artifact]) -> list[Artifact]:
    """Files with the version that the store lists, where it lists nothing better to compare."""
    return [
        replace(each, version=held[each.at].version)
        for path, each in manifest.files.items()
        if not (each.version or is_record(path) or (each.md5 and held[each.at].md5))
        and held[each.at].version
    ]


def _not_held(
    store: ArtifactStore, manifest: Manifest, held: Mapping[str, Artifact], *, certain: bool = False
) -> list[str]:
    """Paths in the manifest that the store lacks, or has in a different state."""
    lost, to_read = [], []
    for path, each in manifest.files.items():
        same = _is_listed(each, held.get(each.at))
        if same is None and (certain or each.version) and not is_record(path):
            to_read.append(each)
        elif same is False:
            lost.append(path)
        elif same is None and each.md5 and held[each.at].md5:
            to_read.append(each)
    if to_read:
        to_read.sort(key=lambda each: each.at)
        with ThreadPoolExecutor(READS) as pool:
            groups = batches(to_read, most_in_batch(store))
            lost += chain.from_iterable(pool.map(partial(_altered, store, manifest.run), groups))
    return lost


def _is_listed(landed: Artifact, held: Artifact | None) -> bool | None:
    """True if the listing shows that it is what has landed, None if only its bytes can. The MD5
    that a store lists may be something else, as for S3 objects encrypted with a key of the user's
    own; a version also changes with another description of the same bytes."""
    if held is None or held.size != landed.size:
        return False
    if landed.version and landed.version == held.version:
        return True
    return True if landed.md5 and landed.md5 == held.md5 else None


def _altered(store: ArtifactStore, run: str, files: Sequence[Artifact]) -> list[str]:
    """Paths of files whose bytes in the store are not what has landed."""
    sums = stored_checksums(store, [f"{run}/{landed.at}" for landed in files])
    return [each.path for each, found in zip(files, sums, strict=True) if found != each.sha256]
