"""A private repository's token and its user."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig
from tests.support.code_parts import config

TOKEN = "tok3n-" + "of-the-tests"  # so that no file of the tests' own holds it whole


def private(tmp_path: Path, **section: str) -> ClusterConfig:
    made = config(tmp_path, token="GIT_TOKEN", **section)
    return replace(made, secrets={"GIT_TOKEN": "MY_TOKEN", "OTHER": "MY_OTHER"})


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any git configuration, whose shell has the token."""
    home = tmp_path / "user"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("GIT_", "SSH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("MY_OTHER", "other")
    return home
