"""A fourth cloud is its folder, its stand-in and a config: no line of the core names it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import toy_cloud
from tests.standins.nodes import Nodes, unavailable
from tests.support.project import ROOT, Project
from tests.toy_cloud.standin import ROOM, ToyStandIn, running

HERE = Path(toy_cloud.__file__).parent


@dataclass
class Child:
    """A user of the toy cloud."""

    project: Project
    toy: ToyStandIn

    def config(self, **sections: Any) -> Path:
        small = {"machine": "toy.small"}
        sections.setdefault("nodes", {"chief": small, "worker": {**small, "count": 1}})
        return self.project.config(
            **{
                "provider": "toy",
                "placement": ["attic-1", "playroom"],
                "limits": {"max_price": 0.5},
                "setup": {"run": ["echo ready >made"]},
                **sections,
            }
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.project.cloudtrain(*arguments, timeout=400.0)

    def do(self, *arguments: str | Path) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def told(self, *arguments: str | Path) -> Any:
        return json.loads(self.do(*arguments, "--json"))


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running(nodes) as toy:
        project = Project(tmp_path / "toys")
        project.environment |= {
            "PYTHONPATH": f"{HERE / 'site'}:{ROOT}",
            "TOY_ENDPOINT": toy.url,
            "TOY_ROOM": ROOM,
        }
        yield Child(project, toy)


def test_a_cloud_that_the_core_has_never_heard_of(child: Child) -> None:
    name, file = child.project.name, child.config()
    names = [f"{name}-{task}" for task in ("chief0", "worker0")]

    plan = child.told("plan", file)
    assert [node["name"] for node in plan["nodes"]] == names
    assert [node["price_per_hour"] for node in plan["nodes"]] == [0.2, 0.2], "the dearest place"
    assert "the room nursery" in child.do("check", file)
    assert child.toy.holdings() == []

    child.do("up", file, "--yes")
    assert child.toy.holdings() == sorted([name, *names])
    assert child.do("exec", name, "--role", "chief", "--", "cat", "made").endswith("ready\n")
    (cluster,) = child.told("status", name)["clusters"]
    assert [node["state"] for node in cluster["nodes"]] == ["running", "running"]
    (account,) = child.told("ls", "--cloud", "--provider", "toy", "--project", ROOM)["accounts"]
    assert [held["name"] for held in account["clusters"]] == [name]

    labels = {"cloudtrain-cluster": "orphan", "cloudtrain-expires": f"{time.time() - 60:.0f}"}
    orphan = {"token": "x", "name": "orphan-chief0", "machine": "toy.small", "zone": "attic-1"}
    child.toy.make({**orphan, "labels": labels}, boots=False)
    child.do("gc", "--yes", "--provider", "toy", "--project", ROOM)
    assert child.toy.holdings() == sorted([name, *names]), "the orphan alone is gone"

    child.do("down", name, "--yes")
    assert child.toy.holdings() == []
    assert child.toy.nodes.running() == []


def test_what_the_toys_row_says_is_told_to_its_users(child: Child) -> None:
    usage = child.do("gc", "--help")
    assert "[toy|gcp|aws|azure|local]" in usage
    assert "toy: room; gcp: project" in usage
    unknown = child.run("plan", child.config(nodes={"chief": {"accelerator": "H100:1"}}))
    assert "toy has no accelerator H100; it has T4" in unknown.stdout + unknown.stderr
    misspelt = child.run("plan", child.config(placement=["playrom"]))
    assert "did you mean 'playroom'?" in misspelt.stdout + misspelt.stderr
    child.project.environment["TOY_ROOM"] = "kitchen"
    refused = child.run("check", child.config())
    assert refused.returncode != 0
    assert "no such room" in refused.stdout + refused.stderr
