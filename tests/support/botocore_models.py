"""A fixture for whole folders: boto3's descriptions of services are read once for each process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader


@pytest.fixture(autouse=True, scope="session")
def models_are_read_once() -> Iterator[None]:
    """Every new session reads them anew, a third of the time of a test of AWS: EC2's takes 0.2 s.
    botocore itself keeps what it has read for as long as its session lives."""
    read: dict[str, Any] = {}
    load = JSONFileLoader.load_file

    def load_file(self: JSONFileLoader, path: str) -> Any:
        if (found := read.get(path)) is None and (found := load(self, path)) is not None:
            read[path] = found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", load_file)
        yield
