"""Values: an archive of an environment, its parts, and the nodes that can use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudtrain.core.codec import UNIX_TIME
from cloudtrain.core.model import DataSource
from cloudtrain.datasets.dataset import DataFile, Dataset

FORMAT = 1
"""Version of the archives and of what they are made from. Others are not used."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of an archive. `size` in bytes, `sha256` in hex, as its builder computed it.
    `object` and `version` are its key in the store and that object's ETag or generation; "" while
    it is on its builder alone."""

    name: str
    size: int
    sha256: str
    object: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A store, and how it is opened: the endpoint and the project of the config, None if unset."""

    uri: str
    endpoint: str | None = None
    project: str | None = None


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An environment packed by one node, for nodes whose `key` is the same.

    `python` is its minor version ("3.12"), `bases` the Python that it was created from and links to
    it, relative to the folder of the environments, if it lies there. `store` and `folder` say where
    it is kept; None and "" if it is not. Times are Unix times.
    """

    key: str
    label: str
    parts: tuple[Part, ...]
    python: str
    bases: tuple[str, ...] = ()
    store: StorePlace | None = None
    folder: str = ""
    created: float = field(default=0.0, metadata=UNIX_TIME)
    used: float = field(default=0.0, metadata=UNIX_TIME)
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def sha256(self) -> str:
        """SHA-256 of the parts' names and checksums: of the whole content."""
        text = "".join(f"{part.sha256} {part.name}\n" for part in self.parts)
        return hashlib.sha256(text.encode()).hexdigest()

    def dataset(self) -> Dataset:
        """The parts as files for the downloader, which computes no MD5 of them."""
        files = [
            DataFile(path=part.name, size=part.size, version=part.version) for part in self.parts
        ]
        source = DataSource(source=f"environment {self.key} {self.sha256}")
        return Dataset(name=self.label, source=source, files=tuple(files))


# One line each, of what an environment depends on besides its recipe.
PROBE = """\
(. /etc/os-release && printf '%s\\n%s\\n' "$ID" "$VERSION_ID") 2>/dev/null || printf '\\n\\n'
uname -m
getconf GNU_LIBC_VERSION 2>/dev/null || echo
command -v zstd >/dev/null 2>&1 && echo zstd || echo gzip
cd && pwd -P
"""


def key_of(facts: Sequence[str], folder: str) -> str:
    """Digest of everything that an environment is made from, by a node's answer to `PROBE`.

    That is the recipe, whose digest is in the name of the folder (playbooks/tensorflow), the
    absolute path, which scripts of the environment name, the system, its C library and the tool
    that unpacks. Whether its Python is there is tried on each node once it is unpacked.
    """
    *system, home = facts
    place = folder if folder.startswith("/") else f"{home}/{folder}"
    text = json.dumps([FORMAT, place, *system])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
