"""Keeps a run's listing of a dataset, so that all its attempts and nodes use the same objects."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from cloudtrain.core.model import DataSource
from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.state.files import write_whole


def save_listing(path: Path, dataset: Dataset) -> None:
    """Write the listing, whole after a crash."""
    facts = {
        "source": dataset.source.source,
        "base": dataset.base,
        "single": dataset.single,
        "files": [
            [file.path, file.size, file.version, file.md5, file.crc32c] for file in dataset.files
        ],
    }
    write_whole(path, gzip.compress(json.dumps(facts).encode("ascii"), 6))


def load_listing(path: Path, name: str, source: DataSource) -> Dataset | None:
    """Read it; None if there is none of this source, or it is damaged."""
    try:
        facts = json.loads(gzip.decompress(path.read_bytes()))
        if facts["source"] != source.source:
            return None
        files = tuple(
            DataFile(path=path, size=size, version=version, md5=md5, crc32c=crc32c)
            for path, size, version, md5, crc32c in facts["files"]
        )
        return Dataset(
            name=name, source=source, files=files, base=facts["base"], single=facts["single"]
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError):
        return None
