"""The shared folder (`shared:`) lands once, from the first task, and comes back whole."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtrain.artifacts.checkpoints import StoredCheckpoint, fill_folder, stored_checkpoint
from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import NodeError, PreflightError
from cloudtrain.core.model import Node, Plan, SharedFolder, Train
from cloudtrain.core.run_record import Run, RunAttempt
from cloudtrain.core.shell import Command
from cloudtrain.node import archiver
from cloudtrain.node.formats import SHARED, SHARED_BY_OTHER
from cloudtrain.runs import task_commands
from cloudtrain.runs.start import prepare_work
from cloudtrain.setup.shared_folder import prove_shared, share_run_folder
from tests.support.fakes import make_plan
from tests.support.landing_parts import RUN, Cluster, FolderTransport

STATE = 'model_checkpoint_path: "ckpt-7"\nall_model_checkpoint_paths: "ckpt-7"\n'
SAVED = {"ckpt-7.index": "index", "ckpt-7.data-00000-of-00001": "data", "checkpoint": STATE}


class Sharing(Cluster):
    """A chief and two workers, whose work folders have a link to one folder of this machine."""

    def __init__(self, folder: Path, name: str = "job") -> None:
        super().__init__(folder, workers=2)
        (folder / "served").mkdir()
        self.root = folder / "served/mnist"
        self.place = self.root / RUN
        self.name = name
        self.config = replace(
            make_plan().config,
            provider="hosts",
            train=Train(command="python t.py", checkpoints=name),
            shared=SharedFolder(folder=name, path=str(folder / "served")),
        )
        self.run = replace(self.run, code="none")

    def begin_all(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        for task in self.run.tasks:
            if not self.work(task.name).is_symlink():
                shutil.rmtree(self.work(task.name))
            record = SHARED if task.name == "chief0" else SHARED_BY_OTHER
            link = (self.name, str(self.place), record)
            command = prepare_work(self.config, self.run, task, link=link)
            done = self.transport.run(self.nodes[task.name], command)
            assert done.exit_code == 0, done.stderr

    def save(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        for name, text in SAVED.items():
            (self.place / name).write_text(text)

    @property
    def session(self) -> Session:
        nodes = tuple(self.nodes.values())
        plan = SimpleNamespace(nodes=[SimpleNamespace(name=each.name) for each in nodes])
        found = SimpleNamespace(
            config=self.config,
            plan=cast(Plan, plan),
            nodes=nodes,
            node=lambda name: next((each for each in nodes if each.name == name), None),
            transport=self.transport,
            store=self.store,
            console=self.console,
        )
        return cast(Session, found)


@pytest.fixture
def cluster(tmp_path: Path) -> Sharing:
    return Sharing(tmp_path)


@pytest.mark.parametrize("name", ["job", "out/model dir"])
def test_what_any_task_writes_there_lands_once_from_the_first(tmp_path: Path, name: str) -> None:
    cluster = Sharing(tmp_path, name)
    cluster.begin_all()
    cluster.write("worker0", f"{name}/events/one", "of worker0")
    cluster.write("chief0", f"{name}/two", "of chief0")
    cluster.write("worker1", "own", "beside it")
    assert cluster.unlanded(name) != ()
    manifest = cluster.land(checkpoints=name, final=False)
    wanted = {f"chief0/{name}/events/one": b"of worker0", f"chief0/{name}/two": b"of chief0"}
    assert {path: cluster.landed()[path] for path in wanted} == wanted
    assert manifest.checkpoint is not None
    assert set(manifest.checkpoint.paths) == set(wanted)
    assert set(cluster.land(checkpoints=name).files) == {*wanted, "worker1/own"}
    assert cluster.unlanded(name) == ()
    assert cluster.console.warned == []


def test_with_every_file_named_no_other_task_lands_it_or_is_warned_of(cluster: Sharing) -> None:
    cluster.rules = replace(cluster.rules, paths=("**",))
    cluster.begin_all()
    cluster.save()
    landed = set(cluster.land(checkpoints="job").files)
    assert landed == {f"chief0/job/{name}" for name in SAVED}
    assert cluster.console.warned == []


def test_links_inside_it_are_followed_and_those_out_of_it_told(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    (cluster.place / "latest").symlink_to("ckpt-7.index")
    (cluster.place / "absolute").symlink_to(cluster.place / "ckpt-7.index")
    (cluster.place / "itself").symlink_to(cluster.place)
    (cluster.place / "out").symlink_to("/etc/hostname")
    landed = cluster.land(checkpoints="job").files
    assert landed["chief0/job/latest"].sha256 == landed["chief0/job/ckpt-7.index"].sha256
    assert "chief0/job/absolute" in landed
    assert not [path for path in landed if "itself" in path or "out" in path.split("/")]
    assert any(
        "job/out is a link out of the work folder" in each for each in cluster.console.warned
    )


def test_a_task_whose_server_is_gone_is_listed_without_it(cluster: Sharing) -> None:
    """NFS waits for its server: what follows the link would never end."""
    cluster.begin_all()
    shutil.rmtree(cluster.root)
    cluster.write("worker0", "own", "text")
    assert cluster.unlanded("job") == (f"{RUN}/worker0/own",)


def test_an_agent_finds_it_beside_the_first_task_alone(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    found = archiver.listed(os.fsencode(cluster.work("chief0")), ["job/**"], changed=True)
    assert {path: Path(each.source).read_text() for path, each in found.items()} == {
        f"job/{name}": text for name, text in SAVED.items()
    }
    assert archiver.listed(os.fsencode(cluster.work("worker0")), ["job/**"], changed=True) == {}


def test_a_folder_of_that_name_in_the_code_is_refused(cluster: Sharing) -> None:
    home = cluster.transport.home(cluster.nodes["chief0"])
    (home / ".cloudtrain/mnist/code/c0de/job").mkdir(parents=True)
    shutil.rmtree(cluster.work("chief0"))
    run = replace(cluster.run, code="c0de")
    link = ("job", str(cluster.place), SHARED)
    command = prepare_work(cluster.config, run, run.tasks[0], link=link)
    done = cluster.transport.run(cluster.nodes["chief0"], command)
    assert done.exit_code == 3
    assert b"shared: the code has a job of its own: choose another name" in done.stderr


def test_what_changes_there_is_progress_of_the_first_task(cluster: Sharing) -> None:
    cluster.begin_all()
    work = f".cloudtrain/mnist/runs/{RUN}/chief0/work"
    for path in [*cluster.work("chief0").rglob("*"), cluster.root]:
        os.utime(path, (0, 0))
    node, command = cluster.nodes["chief0"], task_commands.changed_file(work, 5)
    assert cluster.transport.run(node, command).stdout == b""
    cluster.save()
    assert cluster.transport.run(node, command).stdout.startswith(b"changed ")


# ── a run's part of it, created and filled ─────────────────────────────────────


def no_source() -> StoredCheckpoint | None:
    return None


def attempts(run: Run, count: int) -> Run:
    each = [RunAttempt(number=number, started=1.0) for number in range(1, count + 1)]
    return replace(run, attempts=tuple(each))


def content(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir()}


def test_a_first_attempt_begins_with_an_empty_folder(cluster: Sharing) -> None:
    run = attempts(cluster.run, 1)
    assert share_run_folder(cluster.session, run, no_source) == str(cluster.place)
    assert content(cluster.place) == {}
    assert cluster.console.warned == []


def test_a_restart_finds_the_folder_as_it_was(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    cluster.land(checkpoints="job", final=False)
    (cluster.place / "ckpt-8.index").write_text("not landed")
    before = content(cluster.place)
    share_run_folder(cluster.session, attempts(cluster.run, 2), no_source)
    assert content(cluster.place) == before
    assert cluster.console.warned == []


def test_a_lost_folder_begins_with_what_has_landed_and_it_is_said(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    cluster.land(checkpoints="job", final=False)
    shutil.rmtree(cluster.root)
    share_run_folder(cluster.session, attempts(cluster.run, 2), no_source)
    assert content(cluster.place) == SAVED
    assert cluster.console.warned == [
        f"{cluster.place} is not on mnist-chief0 any more: the shared folder begins with "
        "job/ckpt-7; what was written later is lost"
    ]
    assert {path.name for path in cluster.root.iterdir()} == {RUN, ".filling"}


def test_what_landed_without_a_whole_checkpoint_comes_back_too(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    (cluster.place / "ckpt-7.index").unlink()
    cluster.land(checkpoints="job", final=False)
    there = content(cluster.place)
    shutil.rmtree(cluster.root)
    share_run_folder(cluster.session, attempts(cluster.run, 2), no_source)
    assert content(cluster.place) == there


def test_of_a_lost_folder_nothing_may_have_landed(cluster: Sharing) -> None:
    share_run_folder(cluster.session, attempts(cluster.run, 2), no_source)
    assert content(cluster.place) == {}
    (warning,) = cluster.console.warned
    assert "begins with nothing, as none of it has landed" in warning


class Killed(Exception):
    pass


def test_a_path_that_no_host_has_is_named_and_not_made(cluster: Sharing) -> None:
    (cluster.root.parent).rmdir()
    with pytest.raises(NodeError, match=f"shared.path: there is no folder {cluster.root.parent}"):
        share_run_folder(cluster.session, cluster.run, no_source)
    assert not cluster.root.parent.exists()


def test_killed_on_its_way_it_is_whole_or_not_there(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    cluster.land(checkpoints="job", final=False)
    shutil.rmtree(cluster.root)
    run, number = attempts(cluster.run, 2), 0
    while True:
        cluster.transport.commands.clear()
        number += 1

        def kill(line: str, at: int = number) -> None:
            if len(cluster.transport.commands) == at:
                raise Killed

        cluster.transport.before = kill
        try:
            share_run_folder(cluster.session, run, no_source)
        except Killed:
            assert not cluster.place.exists() or content(cluster.place) == SAVED
            continue
        break
    assert number > 4
    assert content(cluster.place) == SAVED


def test_what_was_damaged_on_its_way_is_no_folder(cluster: Sharing) -> None:
    cluster.begin_all()
    cluster.save()
    cluster.land(checkpoints="job", final=False)
    shutil.rmtree(cluster.root)

    def damage(line: str) -> None:
        for path in cluster.root.glob(f".filling/{RUN}/work/filled/*.index"):
            path.write_text("other")

    cluster.transport.before = damage
    with pytest.raises(NodeError, match="what landed of job was damaged on its way"):
        share_run_folder(cluster.session, attempts(cluster.run, 2), no_source)
    assert not cluster.place.exists()


def test_a_resumed_run_begins_with_the_others_folder(cluster: Sharing, tmp_path: Path) -> None:
    cluster.begin_all()
    cluster.save()
    (cluster.place / "checkpoint").write_text(f'model_checkpoint_path: "{cluster.place}/ckpt-7"\n')
    cluster.land(checkpoints="job")
    later = replace(attempts(cluster.run, 1), id="20261122-000000-aaaa")
    place = cluster.root / later.id
    found = fill_folder(
        later,
        cluster.nodes["chief0"],
        str(place),
        "job",
        cluster.transport,
        cluster.store,
        source=lambda: stored_checkpoint(RUN, cluster.store),
        say=cluster.console.say,
    )
    assert found == "job/ckpt-7"
    assert (place / "checkpoint").read_text() == 'model_checkpoint_path: "ckpt-7"\n'


# ── write here, read there ─────────────────────────────────────────────────────


class OtherDisk(FolderTransport):
    """The same path is another folder on one node."""

    def __init__(self, folder: Path, served: Path, name: str) -> None:
        super().__init__(folder)
        self.served, self.name = str(served), name

    def run(self, node: Node, command: Command, **more: Any) -> Any:
        if node.name == self.name:
            own = (
                each.replace(self.served, f"{self.served}-of-its-own") for each in command.arguments
            )
            command = replace(command, arguments=tuple(own))
        return super().run(node, command, **more)


class OneWay(FolderTransport):
    """The first node never sees what one of the others wrote."""

    def run(self, node: Node, command: Command, **more: Any) -> Any:
        done = super().run(node, command, **more)
        return replace(done, stdout=done.stdout.replace(b"mnist-worker1", b""))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain.setup import shared_folder

    monkeypatch.setattr(shared_folder, "ANSWER", shared_folder.ANSWER.replace("0 1 2 4", "0 0"))


@pytest.mark.usefixtures("impatient")
def test_nodes_that_share_the_folder_pass_and_leave_nothing(cluster: Sharing) -> None:
    prove_shared(cluster.session, cluster.run)
    assert [path for path in cluster.root.rglob("*") if path.name != ".proofs"] == []


@pytest.mark.usefixtures("impatient")
def test_a_node_that_does_not_share_it_is_named(cluster: Sharing, tmp_path: Path) -> None:
    served = tmp_path / "served"
    cluster.transport = OtherDisk(tmp_path / "nodes", served, "mnist-worker1")
    with pytest.raises(PreflightError) as caught:
        prove_shared(cluster.session, cluster.run)
    assert "mnist-worker0" not in str(caught.value)
    assert f"mnist-worker1: it does not share {cluster.root} with mnist-chief0: " in str(
        caught.value
    )
    assert "No such file or directory" in str(caught.value)


@pytest.mark.usefixtures("impatient")
def test_a_node_whose_files_the_first_does_not_see_is_named(
    cluster: Sharing, tmp_path: Path
) -> None:
    cluster.transport = OneWay(tmp_path / "nodes")
    with pytest.raises(PreflightError) as caught:
        prove_shared(cluster.session, cluster.run)
    assert "mnist-chief0 does not see what it wrote" in str(caught.value)
    assert "mnist-worker0" not in str(caught.value)
