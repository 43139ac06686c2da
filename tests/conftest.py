"""Fixtures that more than one file uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import project as projects


@pytest.fixture
def project(tmp_path: Path) -> Iterator[projects.Project]:
    yield from projects.project(tmp_path / "user's project")
