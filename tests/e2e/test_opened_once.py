"""A command makes its plan once, and opens its provider and its store once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import Account
from tests.support.project import Project

COUNTING = """
import importlib, json, sys

counts = dict(plans=0, providers=0, stores=0)

def count(module, name, what):
    made = getattr(module, name)
    def counted(*given, **named):
        counts[what] += 1
        return made(*given, **named)
    setattr(module, name, counted)

import cloudtrain.cluster.plan, cloudtrain.stores
count(cloudtrain.cluster.plan, "make_plan", "plans")
count(cloudtrain.stores, "open_store", "stores")
opened = importlib.import_module(f"cloudtrain.providers.{sys.argv[1]}.provider")
count(opened, "provider", "providers")

from cloudtrain.cli.app import run
code = run(sys.argv[2:])
print(json.dumps(counts), file=sys.stderr)
sys.exit(code)
"""

ONCE = {"plans": 1, "providers": 1, "stores": 1}


def counted(project: Project, provider: str, *arguments: str | Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, provider, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=project.environment,
        cwd=project.folder,
        timeout=400,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    counts: dict[str, int] = json.loads(done.stderr.splitlines()[-1])
    return counts


def test_on_this_machine(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    config = project.config()
    try:
        assert counted(project, "local", "up", config) == ONCE
        assert counted(project, "local", "train", config) == ONCE
    finally:
        assert counted(project, "local", "down", project.name) == ONCE
    assert counted(project, "local", "run", config) == ONCE


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running("gcp", nodes=nodes) as cloud:
        project = Project(tmp_path / "project")
        project.environment.update(cloud.environment)
        yield Account(project, cloud, nodes)


def test_on_a_cloud(account: Account) -> None:
    config = account.config()
    try:
        assert counted(account.project, "gcp", "up", config, "--yes") == ONCE
        assert counted(account.project, "gcp", "up", config, "--yes") == ONCE
        assert counted(account.project, "gcp", "check", config) == ONCE
    finally:
        down = counted(account.project, "gcp", "down", account.project.name, "--yes")
        assert down == {**ONCE, "plans": 0}, "no task ever ran: there is nothing to land"
    assert account.cloud.holdings() == []
