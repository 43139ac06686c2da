"""Whoever may write to a store brings `down` and `run --away` to do nothing to other clusters, and
to lose nothing of this one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloudtrain import catalog
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.away.find_away import own_desk
from cloudtrain.cluster.session import Handle
from cloudtrain.commands import run_away
from cloudtrain.commands.down import down
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core.errors import CloudtrainError, LeasedError, NotLanded, UsageError
from cloudtrain.core.model import ArtifactRules, Away, ClusterConfig, Node, NodeGroup, Plan
from cloudtrain.core.owner import login
from cloudtrain.core.protocols import Provider
from cloudtrain.state import Records
from cloudtrain.state.away_record import desk_mark
from cloudtrain.stores import open_store
from tests.standins import cloud as standins
from tests.support.fakes import make_identity, make_plan, no_journal
from tests.support.landing_parts import write_manifest
from tests.support.project import Project

pytestmark = pytest.mark.sweep(2, of="hostile stores")

DESK = "20261126-163314-0123456789abcdef"


@dataclass(kw_only=True)
class Account:
    """A cloud's account in which this user has clusters, of which this machine knows nothing."""

    config: ClusterConfig
    folder: Path

    def provider(self) -> Provider:
        module = importlib.import_module(f"cloudtrain.providers.{self.config.provider}.provider")
        made: Provider = module.provider(self.config)
        return made

    def create(self, name: str, role: str = "chief", mark: str = "") -> tuple[Node, ...]:
        """One node, as another machine of the user's has created it."""
        config = replace(self.config, name=name, away=Away(mark=mark), artifacts=ArtifactRules())
        group = config.nodes["chief"]
        has = catalog.machine_type(config.provider, group.machine or "")
        (planned,) = [each for each in make_plan(name).nodes if each.role == "chief"]
        planned = replace(
            planned,
            name=f"{name}-{role}0",
            role=role,
            machine=group.machine,
            accelerator=has.accelerator if has else None,
            disk_gb=group.disk_gb,
        )
        plan = Plan(config=config, nodes=(planned,))
        keys = self.folder / f"keys of {name} {role}"
        keys.mkdir(exist_ok=True)
        self.provider().create(plan, make_identity(keys, plan), no_journal)
        return self.held()[name]

    def held(self) -> dict[str, tuple[Node, ...]]:
        return {each.cluster: each.nodes for each in self.provider().sweep()}

    def forge(self, phase: str, node: str) -> None:
        """Two small objects in the store of `small`."""
        store = open_store(self.config.artifacts.store or "")
        state = {"cluster": "small", "desk": DESK, "phase": phase, "as_of": 1e9, "began": 1e9}
        store.upload(f".away/small/desks/{DESK}", [b""])
        text = json.dumps({**state, "node": node, "exit_code": 0})
        store.upload(f".away/small/{DESK}/state.json", [text.encode()])

    def down(self, **options: Any) -> None:
        down("small", self.config, console=LoggingConsole(), **{"discard": False, **options})


@pytest.fixture(params=[*standins.DESCRIPTIONS, "local"])
def account(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    with ExitStack() as stack:
        if request.param == "local":
            config = replace(make_plan("small").config, nodes={"chief": NodeGroup()})
        else:
            cloud = stack.enter_context(standins.start(request.param, delay=0.01))
            stack.enter_context(patch.dict(os.environ, cloud.environment))
            config = cloud.config(name="small")
        artifacts = ArtifactRules(store=(tmp_path / "store").as_uri())
        made = Account(config=replace(config, name="small", artifacts=artifacts), folder=tmp_path)
        yield made
        for name in made.held() if request.param == "local" else ():
            made.provider().destroy(name, no_journal)


def test_no_cluster_is_deleted_because_a_store_says_that_it_is_a_desk(account: Account) -> None:
    """On a machine that has the FILE alone, `prod` and a cluster of the desk's very name run."""
    account.create("prod")
    there = {**account.held(), "small-desk": account.create("small-desk")}
    attacks = [("ended", "prod", False), ("ended", "small-desk", True), ("training", "prod", False)]
    for phase, node, discard in attacks:
        account.forge(phase, node)
        account.down(discard=discard)
        assert account.held() == there
    if account.config.provider == "local":
        return
    desk = replace(account.config, name="small-desk")
    away = run_away.AwayPlan(
        config=account.config,
        desk=Handle(desk),
        id=DESK,
        code=run_away.code_playbook.NoCode(),
        secrets={},
        resume=None,
        ignore=(),
        wait=None,
    )
    with pytest.raises(UsageError, match="the name small-desk is taken"):
        run_away.clear_ended_desk(away, Records("small"), LoggingConsole())
    with pytest.raises(CloudtrainError, match="the name small-desk is taken"):
        run_away.clean_up(away, Records("small"), LoggingConsole(), CloudtrainError("before it"))
    assert account.held() == there


def test_what_a_killed_creation_left_is_deleted_once_its_owner_is_named(account: Account) -> None:
    """A network without nodes: no machine says that nobody is at work on it."""
    nodes = account.create("small")
    account.provider().remove("small", [node.name for node in nodes], no_journal)
    if account.config.provider == "local":
        account.down()  # its nodes were all of it
        return
    with pytest.raises(LeasedError, match="small is being created until ") as refused:
        account.down()
    assert f"add `--owner {login()}` to delete it now" in refused.value.hint
    assert set(account.held()) == {"small"}
    account.down(owner=login())
    assert account.held() == {}


def test_a_desk_is_known_by_its_label_on_all_that_was_created_for_it(account: Account) -> None:
    if account.config.provider == "local":
        account.create("small-desk", "desk", desk_mark(DESK, "a key"))
        assert own_desk(account.config) is None  # this machine rents none
        return
    mark = desk_mark(DESK, "a key")
    account.create("prod")
    (node,) = account.create("small-desk", "desk", mark)
    assert (node.role, node.desk) == ("desk", mark)
    held = {each.cluster: each.desks for each in account.provider().sweep()}
    assert held == {"prod": (), "small-desk": (mark,)}
    account.forge("ended", "prod")
    account.create("small")
    with pytest.raises(NotLanded, match="and the keys of small-chief0 are on its disk alone"):
        account.down()
    assert set(account.held()) == {"prod", "small", "small-desk"}
    account.down(discard=True, owner=login())  # else it waits until its creation is over
    assert set(account.held()) == {"prod"}
    account.create("small-desk", "desk", mark)  # its client was killed before it had a machine
    account.provider().remove("small-desk", [node.name], no_journal)
    assert {name: bool(nodes) for name, nodes in account.held().items()} == {
        "prod": True,
        "small-desk": False,
    }
    assert own_desk(account.config) is not None


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "user's project")
    try:
        yield made
    finally:
        made.end()


def test_down_lands_what_a_forged_manifest_says_has_landed_and_then_deletes_its_nodes(
    project: Project,
) -> None:
    """One file is replaced, with its sums; another is gone, and the manifest knows of none."""
    for words in (("up", project.config(), "--yes"), ("train", project.name)):
        done = project.cloudtrain(*words)
        assert done.returncode == 0, done.stderr
    (run,) = (record["id"] for record in project.runs())
    store = open_store(project.store.as_uri())
    manifest = read_manifest(store, run)
    assert manifest is not None
    assert manifest.complete
    replaced, removed = (f"{task}/output/{task}.txt" for task in ("chief0", "worker0"))
    true = {path: project.landed(*path.split("/", 1)) for path in (replaced, removed)}
    files = dict(manifest.files)
    store.delete(f"{run}/{files.pop(removed).at}")
    bad = bytes(files[replaced].size)
    store.upload(f"{run}/{files[replaced].at}", [bad])
    sums = {"sha256": hashlib.sha256(bad).hexdigest(), "md5": hashlib.md5(bad).hexdigest()}
    files[replaced] = replace(files[replaced], **sums)
    write_manifest(store, replace(manifest, files=files))
    down = project.cloudtrain("down", project.name, "--yes")
    assert down.returncode == 0, down.stderr
    assert project.processes() == {}
    landed = read_manifest(store, run)
    assert landed is not None
    assert landed.complete
    found = {path: b"".join(store.download(f"{run}/{landed.files[path].at}")) for path in true}
    assert found == {path: text.encode() for path, text in true.items()}
