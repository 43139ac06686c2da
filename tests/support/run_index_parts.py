"""A store in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.stores import open_store


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store((tmp_path / "store").as_uri())
