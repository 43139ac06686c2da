"""Somebody with one file and a cloud in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster import lease, provision, session
from cloudtrain.commands import accounts, up
from cloudtrain.runs import idle
from tests.support.fakes import FakeProvider

FIRST: dict[str, Any] = {
    "name": "deep",
    "provider": "gcp",
    "project": "p",
    "placement": ["us-east4-c"],
    "strategy": "custom",
    "nodes": {"worker": {"count": 2, "machine": "n1-standard-2", "disk_gb": 60}},
    "image": "ubuntu-22.04",
    "train": {"command": "echo"},
}


class User:
    """Somebody with one file, and a cloud in memory."""

    def __init__(self, cloud: FakeProvider) -> None:
        self.cloud = cloud
        self.values = FIRST
        self.background: list[str] = []
        """Commands that were to run in the background: none is, as nothing would end it."""

    def write(self, **changes: Any) -> str:
        self.values = {**self.values, **changes}
        Path("deep.yaml").write_text(yaml.safe_dump(self.values, sort_keys=False))
        return "deep.yaml"

    def line(self, text: str) -> int:
        lines = Path("deep.yaml").read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if text in line)

    def up(self, *flags: str) -> Result:
        return cloudtrain("up", "deep.yaml", "--yes", *flags)

    def names(self) -> list[str]:
        return [node.name for node in self.cloud.nodes("deep")]


def cloudtrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    cloud = FakeProvider(place="us-east4-c")
    for module in (session, accounts, lease):
        monkeypatch.setattr(module, "open_provider", lambda config: cloud)
    monkeypatch.setattr(provision, "await_first_login", lambda *given, **named: None)
    monkeypatch.setattr(up, "prepare_nodes", lambda session: "")
    user = User(cloud)
    monkeypatch.setattr(
        idle, "start_process", lambda records, command: user.background.append(command)
    )
    user.write()
    assert user.up().exit_code == 0
    return user


def worker(**changes: Any) -> Mapping[str, Any]:
    return {"nodes": {"worker": {**FIRST["nodes"]["worker"], **changes}}}
