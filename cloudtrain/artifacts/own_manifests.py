"""Manifests that this machine has written: any other proves nothing of what has landed.

Before nodes are deleted their files are compared with the manifest, and its with the store. Whoever
may write to the store could write both. So this machine remembers what it wrote, and of a manifest
that it did not write it reads every byte that the manifest lists.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtrain.artifacts.manifest import NAME, Manifest, parsed
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state.files import make_folder, write_whole

KEPT = 4
"""Digests of a run's last manifests: one that was not stored after all leaves the one before it."""


@dataclass(frozen=True, kw_only=True)
class OwnManifests:
    """Their digests, in a folder of a cluster's record."""

    folder: Path

    def has(self, run: str, data: bytes) -> bool:
        return _digest(data) in self._known(run)

    def about_to_write(self, run: str, data: bytes) -> None:
        """Record it before the store has it. One that a full disk does not take is read whole."""
        digests = [*self._known(run), _digest(data)][-KEPT:]
        with suppress(CloudtrainError):
            make_folder(self.folder)
            write_whole(self.folder / run, "\n".join(digests).encode("ascii"))

    def _known(self, run: str) -> list[str]:
        try:
            return (self.folder / run).read_text("ascii", "replace").split()
        except OSError:
            return []


def read_to_judge(store: ArtifactStore, run: str, own: OwnManifests) -> tuple[Manifest, bool]:
    """The stored manifest, empty if there is none, and whether this machine wrote it. Another one
    says of no task that all its files have landed. Raises StoreError.
    """
    name = f"{run}/{NAME}"
    if not any(found.path == name for found in store.list(name)):
        return Manifest(run=run), True
    data = b"".join(store.download(name))
    manifest, is_own = parsed(data, store, run), own.has(run, data)
    return (manifest if is_own else replace(manifest, landed_attempts={})), is_own


def unproven(manifest: Manifest) -> Manifest:
    """The same with nothing that would save a look at the nodes' files and the store's."""
    files = {
        path: replace(each, md5="", version="", mtime=0, stamp="")
        for path, each in manifest.files.items()
    }
    return replace(manifest, files=files, complete=False, landed_attempts={})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
