"""Values of `data:` as listed: files with their versions, and datasets of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import DataSource


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """One object of a dataset. `size` in bytes. `path` is relative to the dataset's folder on a
    node; `version` is the store's ETag or generation when it was listed. Checksums are in hex, ""
    where the listing has none."""

    path: str
    size: int
    version: str
    md5: str = ""
    crc32c: str = ""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One dataset with all its files, sorted by path. `base` is the start of its objects' keys in
    the store, or the key of its `single` object."""

    name: str
    source: DataSource
    files: tuple[DataFile, ...]
    base: str = ""
    single: bool = False

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of the source and of every file's path, size and version."""
        import hashlib  # slow to import, and `plan` needs none

        digest = hashlib.sha256(f"{self.source.source}\n".encode())
        for file in self.files:
            line = f"{file.path}\0{file.size}\0{file.version}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def key(self, file: DataFile) -> str:
        """Key of a file's object in the store."""
        return self.base if self.single else self.base + file.path

    def shard(self, rank: int, ranks: int) -> tuple[DataFile, ...]:
        """Files of one of `ranks` nodes, in equal counts: the files beyond them are left out."""
        return self.files[: len(self.files) // ranks * ranks][rank::ranks]


def is_for(source: DataSource, role: str) -> bool:
    """True if nodes of the role get files; shards without a role are for chief and workers."""
    if source.role is None:
        return not source.shard or role in ("chief", "worker")
    return role == source.role


def parts(dataset: Dataset, roles: Sequence[str]) -> tuple[tuple[DataFile, ...], ...]:
    """Files of each node, by the nodes' roles in the plan's order; empty for one that gets none.
    Ranks of shards are the chief and the workers, or the nodes of `role`. Raises UsageError if
    there are not enough files, or some are left over that may not be dropped."""
    source = dataset.source
    if not source.shard:
        return tuple(dataset.files if source.role in (None, role) else () for role in roles)
    wanted = (source.role,) if source.role else ("chief", "worker")
    ranks = [number for number, role in enumerate(roles) if role in wanted]
    count, over = len(dataset.files), len(dataset.files) % max(1, len(ranks))
    if count < len(ranks) or (over and source.rest == "refuse"):
        drop = f"set `data.{dataset.name}.rest: drop` to leave {over} out"
        way = drop if count >= len(ranks) else "use fewer nodes"
        text = f"{count:,} files cannot be divided into {len(ranks)} equal shards"
        raise UsageError(text, what=f"data.{dataset.name}", hint=f"write more files, or {way}")
    rank_of = {number: rank for rank, number in enumerate(ranks)}
    return tuple(
        dataset.shard(rank_of[number], len(ranks)) if number in rank_of else ()
        for number in range(len(roles))
    )
