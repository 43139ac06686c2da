"""What a task makes or changes lands, wherever it saves: in its work folder, its code, its home."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.core import paths
from cloudtrain.core.model import ArtifactRules, Train
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import Command
from cloudtrain.node import changes
from cloudtrain.node.listing import Listing
from cloudtrain.runs.landing_steps import only_on_nodes
from cloudtrain.runs.start import prepare_work, set_work_aside
from tests.support.fakes import make_plan
from tests.support.landing_parts import RUN, Cluster

LATER = "20261121-070000-m4g0"


class Node(Cluster):
    """One node that has the code of a run, and whose home is its own."""

    def __init__(self, folder: Path, dir: str = ".") -> None:
        super().__init__(folder, workers=0)
        config = make_plan(workers=0).config
        self.config = replace(config, train=Train(command="python t.py", dir=dir))
        self.run = replace(self.run, code="c0de")
        self.home = self.transport.home(self.nodes["chief0"])
        self.code = self.home / paths.code_folder("mnist", "c0de")
        shutil.rmtree(self.work("chief0"))
        for name in ("t.py", "data/train.csv", "src/t.py"):
            self.deliver(name, "delivered")

    def deliver(self, name: str, text: str) -> None:
        place = self.code / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def begin(self, run: Run | None = None) -> None:
        run = run or self.run
        self.on_node(prepare_work(self.config, run, run.tasks[0]))

    def on_node(self, command: Command) -> None:
        done = self.transport.run(self.nodes["chief0"], command)
        assert done.exit_code == 0, done.stderr

    def make(self, name: str, text: str = "made") -> Path:
        place = Path(os.path.normpath(self.home / name))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def landed_files(self, run: Run | None = None) -> set[str]:
        manifest = self.finish(run)
        return {path.removeprefix("chief0/") for path in manifest.files if "/" in path}

    def finish(self, run: Run | None = None) -> Manifest:
        if run is not None:
            return Cluster.land(self.of(run), home=True)
        return self.land(home=True)

    def of(self, run: Run) -> Cluster:
        other = Cluster.__new__(Cluster)
        other.__dict__.update(self.__dict__, run=run)
        return other

    def left(self) -> set[str]:
        return set(self.unlanded(home=True))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


WORK = paths.work_folder("mnist", RUN, "chief0")


@pytest.mark.parametrize(
    ("saved", "landed"),
    [
        (f"{WORK}/model/weights.h5", "model/weights.h5"),
        (f"{WORK}/saved_models/1/variables/v", "saved_models/1/variables/v"),
        (f"{WORK}/{{ouput}}/model.keras", "{ouput}/model.keras"),
        (f"{WORK}/.hidden/state", ".hidden/state"),
        (f"{WORK}/core", "core"),
        (f"{WORK}/t.py", "t.py"),
        (f"{WORK}/data/train.csv", "data/train.csv"),
        ("best.ckpt", "_home/best.ckpt"),
        ("models/mnist/1/saved_model.pb", "_home/models/mnist/1/saved_model.pb"),
        (".mnist/checkpoint", "_home/.mnist/checkpoint"),
    ],
)
def test_a_file_lands_wherever_the_script_saves_it(node: Node, saved: str, landed: str) -> None:
    node.begin()
    node.make(saved)
    assert node.left() == {f"{RUN}/chief0/{landed}"}
    assert node.landed_files() == {landed}
    assert (node.folder / RUN / "chief0" / landed).read_text() == "made"
    assert node.left() == set()


def test_a_file_beside_the_folder_in_which_the_script_starts_lands_as_code(tmp_path: Path) -> None:
    node = Node(tmp_path, dir="src")
    node.begin()
    node.make(f"{WORK}/../code/model/m.h5")
    node.make(f"{WORK}/../code/src/x.h5")
    assert node.landed_files() == {"_code/model/m.h5", "x.h5"}
    assert node.left() == set()


def test_what_was_delivered_or_can_be_made_again_does_not_land(node: Node) -> None:
    node.make("notes.txt", "before the run")
    node.make(".bashrc", "before the run")
    node.begin()
    for name in (
        f"{WORK}/__pycache__/t.cpython-311.pyc",
        f"{WORK}/src/__pycache__/t.cpython-311.pyc",
        f"{WORK}/.git/index",
        f"{WORK}/env/pyvenv.cfg",
        f"{WORK}/env/lib/huge.so",
        f"{WORK}/dist/mine-1.0-py3-none-any.whl",
        f"{WORK}/mine.egg-info/PKG-INFO",
        ".cache/huggingface/model.bin",
        ".keras/datasets/mnist.npz",
        ".local/lib/python3.11/site-packages/x.py",
        ".bash_history",
        "tensorflow_datasets/mnist/x",
    ):
        node.make(name)
    assert node.left() == set()
    assert node.landed_files() == set()


KEYS = {
    "id_ed25519": "x",
    "prod.pem": "x",
    ".env": "x",
    "my-service-account.json": "x",
    "kaggle.json": "x",
    "settings.json": '{"type": "service_account", "private_key": "x"}',
    "deploy": "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
    "aws.ini": "[default]\naws_secret_access_key = x",
}


@pytest.mark.parametrize("folder", [f"{WORK}/", f"{WORK}/model/", "", "keep/"])
def test_what_looks_like_a_key_never_lands_and_is_named(node: Node, folder: str) -> None:
    node.begin()
    for name, text in KEYS.items():
        node.make(folder + name, text)
    assert node.left() == set()
    assert node.landed_files() == set()
    assert len(node.console.warned) == len(KEYS)
    for name in KEYS:
        assert any(f"{name} looks like a key: not landed" in each for each in node.console.warned)


def test_what_only_sounds_like_a_key_lands(node: Node) -> None:
    node.begin()
    names = {"added_tokens.json", "vocab.txt", "public.pub", "config.json", "keyboard.py"}
    for name in names:
        node.make(f"{WORK}/{name}", '{"type": "model"}')
    assert node.landed_files() == names


def test_links_land_as_files_or_are_named(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x")
    node.begin()
    node.make(f"{WORK}/model/step-9.h5")
    (node.home / WORK / "latest.h5").symlink_to("model/step-9.h5")
    (node.home / WORK / "newest").symlink_to("model")
    (node.home / WORK / "outside").symlink_to(tmp_path / "elsewhere")
    assert node.landed_files() == {"model/step-9.h5", "latest.h5"}
    assert node.console.warned == ["chief0/outside is a link out of the work folder: not landed"]
    assert node.left() == set()


def test_more_than_the_limit_stays_on_the_node_and_as_many_files_land_as_fit(node: Node) -> None:
    node.rules = ArtifactRules(limit=1000)
    node.begin()
    node.make(f"{WORK}/small", "x" * 400)
    node.make(f"{WORK}/large/a", "x" * 700)
    node.make(f"{WORK}/large/b", "x" * 800)
    node.make(f"{WORK}/output/named", "x" * 5000)
    first = node.finish()
    assert first.files.keys() >= {"chief0/small", "chief0/output/named"}
    assert first.landed_attempts == {}, "not all of the task"
    assert node.left() == {f"{RUN}/chief0/large/a", f"{RUN}/chief0/large/b"}
    assert node.console.warned == ["chief0/large/ (1.5 kB): more than artifacts.limit: not landed"]
    node.rules = ArtifactRules(limit=2000)
    assert node.landed_files() == {"small", "large/a", "large/b", "output/named"}
    assert node.finish().landed_attempts == {"chief0": 0}
    assert node.left() == set()


def test_the_error_names_three_ways_out(node: Node) -> None:
    from cloudtrain.artifacts.land import Pending

    config = replace(node.config, artifacts=ArtifactRules(limit=1_000_000), source="")
    error = only_on_nodes(config, [Pending(f"{RUN}/chief0/model/w.h5", 5_000_000)])
    assert error.exit_code == 5
    assert error.message == (
        "not landed: more than artifacts.limit (1.0 MB for each task): chief0/model/ (5.0 MB); "
        "the nodes are kept"
    )
    assert error.hint is not None
    for way in ("artifacts.paths", "fetch mnist --from-nodes", "down mnist --discard"):
        assert way in error.hint


def test_with_paths_of_the_users_own_what_they_leave_out_is_named_once(node: Node) -> None:
    node.rules = ArtifactRules(paths=("model",))
    node.begin()
    node.make(f"{WORK}/model/w.h5", "x")
    node.make(f"{WORK}/logs/events", "x" * 3000)
    node.make("best.ckpt", "x" * 10)
    assert node.landed_files() == {"model/w.h5"}
    assert node.console.warned == [
        "chief0/logs/ (3.0 kB), _home/best.ckpt (10 B): made or changed, but not in "
        "artifacts.paths: not landed"
    ]
    node.landed_files()
    assert len(node.console.warned) == 1
    assert node.left() == set()


def test_auto_may_stand_beside_globs_that_have_no_limit(node: Node) -> None:
    node.rules = ArtifactRules(paths=("auto", "model/**"), limit=100)
    node.begin()
    node.make(f"{WORK}/model/w.h5", "x" * 5000)
    node.make(f"{WORK}/train.log", "x" * 50)
    assert node.landed_files() == {"model/w.h5", "train.log"}


def test_nothing_is_uploaded_twice(node: Node) -> None:
    node.begin()
    node.make(f"{WORK}/model/w.h5")
    node.make("best.ckpt")
    node.land(final=False, home=True)
    uploads = list(node.store.uploaded)
    node.landed_files()
    assert [path for path in node.store.uploaded if "chief0/" in path] == [
        path for path in uploads if "chief0/" in path
    ]


def test_a_run_has_what_was_made_in_the_home_until_the_next_one_began(node: Node) -> None:
    later = replace(node.run, id=LATER)
    node.begin()
    node.make("first.ckpt")
    node.begin(later)
    node.make("second.ckpt")
    assert node.landed_files() == {"_home/first.ckpt"}
    assert node.landed_files(later) == {"_home/second.ckpt"}
    assert node.left() == set()


def test_what_a_run_could_not_land_is_still_its_own_after_the_next_one(node: Node) -> None:
    node.rules = ArtifactRules(limit=10)
    node.begin()
    node.make("huge.ckpt", "x" * 100)
    assert node.landed_files() == set()
    node.begin(replace(node.run, id=LATER))
    node.begin(replace(node.run, id=LATER))  # a start that is repeated is one start
    assert node.left() == {f"{RUN}/chief0/_home/huge.ckpt"}


def test_an_attempt_that_begins_anew_keeps_the_records_of_the_home(node: Node) -> None:
    node.begin()
    node.make("best.ckpt")
    node.make(f"{WORK}/model/w.h5", "first")
    node.landed_files()
    again = replace(node.run.tasks[0], attempt=2)
    node.on_node(set_work_aside(node.run, again))
    node.begin()
    node.make("last.ckpt")
    node.make(f"{WORK}/model/v.h5", "second")
    assert node.landed_files() == {"_home/best.ckpt", "_home/last.ckpt", "model/w.h5", "model/v.h5"}


def test_a_checkpoint_that_was_put_there_lands_only_once_it_has_changed(node: Node) -> None:
    from cloudtrain.core import ship
    from cloudtrain.core.shell import script

    node.begin()
    node.make(f"{WORK}/output/ckpt/a", "from the chief")
    node.make(f"{WORK}/output/ckpt/b", "from the chief")
    place = WORK.rpartition("/")[0]
    node.on_node(script(ship.START, ship.inline("changes"), "restored", place, "output/ckpt"))
    assert node.left() == set()
    node.make(f"{WORK}/output/ckpt/b", "of its own")
    assert node.landed_files() == {"output/ckpt/b"}


def test_on_machines_of_ones_own_only_the_work_folder_counts(node: Node) -> None:
    node.config = replace(node.config, provider="hosts")
    node.begin()
    node.make("private.txt")
    node.make(f"{WORK}/model/w.h5")
    manifest = node.land(home=False)
    assert [path for path in manifest.files if "/" in path] == ["chief0/model/w.h5"]


def test_a_task_of_an_earlier_version_lands_what_its_patterns_match(node: Node) -> None:
    node.write("chief0", "output/x", "x")
    node.write("chief0", "model/w.h5", "x")
    assert node.landed_files() == {"output/x"}


def test_a_change_is_noticed_whatever_its_times_say(node: Node) -> None:
    """The node's clock was set back, or the file given its old time again."""
    node.begin()
    place = node.home / WORK / "t.py"
    before = place.stat()
    place.write_text("delivereD")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert node.landed_files() == {"t.py"}


def test_a_folder_that_cannot_be_read_blocks_only_what_the_task_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads everything, so the refusal is pretended."""
    refused = {b"before", b"made"}
    scandir = os.scandir

    def refusing(path: bytes) -> Any:
        if os.fsencode(path).rpartition(b"/")[2] in refused:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    (tmp_path / "home/before").mkdir(parents=True)
    (tmp_path / "task/code").mkdir(parents=True)
    (tmp_path / "task/work").symlink_to("code")
    task, home = os.fsencode(tmp_path / "task"), os.fsencode(tmp_path / "home")
    changes.keep(task + b"/before.home", home)
    (tmp_path / "home/made").mkdir()
    listing = Listing(task + b"/work", [], home)
    assert list(listing.changed()) == []
    assert listing.unread == [f"{tmp_path}/home/made: Permission denied"]


def test_many_files_are_listed_in_one_pass(node: Node) -> None:
    for number in range(300):
        node.deliver(f"data/{number}", "x")
    node.begin()
    node.make(f"{WORK}/data/7", "changed")
    commands = len(node.transport.commands)
    assert node.left() == {f"{RUN}/chief0/data/7"}
    assert len(node.transport.commands) == commands + 2  # its runs, its files


def test_the_bytes_that_land_are_those_on_the_node(node: Node) -> None:
    node.begin()
    node.make("best.ckpt", "x" * 300_000)
    manifest = node.finish()
    known = manifest.files["chief0/_home/best.ckpt"]
    assert known.sha256 == hashlib.sha256(b"x" * 300_000).hexdigest()
    stored = subprocess.run(
        ["sha256sum", node.folder / RUN / "chief0/_home/best.ckpt"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert stored.stdout.startswith(known.sha256)
