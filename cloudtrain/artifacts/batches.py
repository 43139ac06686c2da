"""Batches of small files: a store in a folder handles one faster than its files one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from cloudtrain.core.model import Artifact
from cloudtrain.core.protocols import ArtifactStore, BatchStore

SMALL = 1 << 17
"""Bytes that make a batch full; a larger file is one of its own."""

BATCH = 32
"""Most files in a batch."""


def most_in_batch(store: ArtifactStore) -> int:
    return BATCH if isinstance(store, BatchStore) else 1


def batches(files: Iterable[Artifact], most: int) -> Iterator[list[Artifact]]:
    """Split files, in their order, into batches of at most `most`."""
    batch, size = list[Artifact](), 0
    for file in files:
        if batch and (len(batch) == most or size + file.size > SMALL):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def stored_checksums(store: ArtifactStore, paths: Sequence[str]) -> list[str]:
    """SHA-256 of what the store returns for each path. Raises StoreError."""
    if isinstance(store, BatchStore):
        sums = store.checksums(paths)
        return [sums[path] for path in paths]
    return [_digest(store.download(path)) for path in paths]


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
