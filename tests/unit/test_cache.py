"""`cloudtrain cache` lists what is kept here, and never removes what something uses."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load
from cloudtrain.core.model import ClusterConfig, Node, Setup
from cloudtrain.playbooks import tensorflow
from cloudtrain.setup import kept_here
from cloudtrain.state import Records

pytestmark = pytest.mark.usefixtures("own_home")
WRITTEN = (
    "name: mine\nprovider: local\nstrategy: one_device\ncode: {path: .}\ntrain: {command: echo}\n"
    'setup: {tensorflow: "2.21"}\n'
)
NODE = Node(
    name="chief0", role="chief", index=0, state="running", address="127.0.0.2", internal="127.0.0.2"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, on a machine without other processes."""
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_here, "PROC", tmp_path / "proc")
    return tmp_path / "cache"


def environment(folder: Path, name: str, base: str = "/usr/bin") -> Path:
    path = folder / "venvs" / name
    (path / "lib").mkdir(parents=True)
    (path / "pyvenv.cfg").write_text(f"home = {base}\n")
    (path / "lib" / "module.py").write_text("x" * 10_000)
    (path / "lib").chmod(0o500)
    path.with_name(f"{name}.lock").touch()
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cache", *arguments], catch_exceptions=False)


def listed() -> dict[str, str | None]:
    kept = json.loads(run("--json").stdout)["kept"]
    return {each["name"]: each["used_by"] for each in kept}


def config_in(folder: Path) -> ClusterConfig:
    path = folder / "mine.yaml"
    path.write_text(WRITTEN)
    return load(path)


def needed_by(config: ClusterConfig) -> str:
    found = tensorflow.environment_folder(config, NODE)
    assert found
    return Path(found).name


class OneNode:
    def nodes(self, cluster: str) -> tuple[Node, ...]:
        return (NODE,)


def test_it_lists_size_and_last_use_and_prunes_what_nothing_uses(folder: Path) -> None:
    assert "nothing is kept here" in run().stdout
    path = environment(folder, "tf2.21-cpu-a")
    (folder / "data" / "d1").mkdir(parents=True)
    (folder / "prices").mkdir()
    head, first, *_ = run().stdout.splitlines()
    assert head.split() == ["kind", "name", "size", "last", "use"]
    assert first.startswith("environment  tf2.21-cpu-a  ")
    assert set(listed()) == {"tf2.21-cpu-a", "d1"}
    done = run("prune", "--yes")
    assert "removed environment tf2.21-cpu-a" in done.stderr
    assert not path.exists()
    assert listed() == {}
    assert (folder / "prices").exists()


def test_it_asks_first(folder: Path) -> None:
    path = environment(folder, "tf2.21-cpu-a")
    done = run("prune")
    assert done.exit_code == 2 or isinstance(done.exception, SystemExit)
    assert path.exists()


def test_what_is_locked_or_needed_by_an_open_cluster_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    monkeypatch.setattr(kept_here, "open_provider", lambda config: OneNode())
    record_cluster(config, Records("mine"))
    needed, other = needed_by(config), "tf2.16-cpu-b"
    environment(folder, needed)
    environment(folder, "tf2.15-cpu-c")
    with environment(folder, other).with_name(f"{other}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert listed() == {
            needed: "cluster mine, which is up",
            other: "another process has it locked",
            "tf2.15-cpu-c": None,
        }
        assert run("prune", "--yes").exit_code == 0
    assert set(listed()) == {needed, other}
    Records("mine").close()
    assert listed() == {needed: None, other: None}


def test_what_a_process_uses_stays(folder: Path, tmp_path: Path) -> None:
    """Also of a local cluster that another state folder has on record."""
    used = environment(folder, "tf2.21-cpu-a")
    process = tmp_path / "proc" / "12345"
    process.mkdir(parents=True)
    (process / "maps").write_text(f"7f00-7f01 r-xp 0 0 0 {used}/lib/x.so\n")
    assert listed() == {"tf2.21-cpu-a": "process 12345"}
    (process / "maps").unlink()
    (process / "environ").write_bytes(b"A=1\0CLOUDTRAIN_NODE=abc/theirs/chief0\0")
    assert listed() == {"tf2.21-cpu-a": "local cluster theirs, which has no record here"}


def test_a_python_stays_as_long_as_an_environment_is_made_with_it(
    folder: Path, tmp_path: Path
) -> None:
    base = folder / "venvs" / "uv" / "pythons" / "3.12" / "bin"
    base.mkdir(parents=True)
    used = environment(folder, "tf2.21-cpu-a", str(base))
    process = tmp_path / "proc" / "1"
    process.mkdir(parents=True)
    (process / "cmdline").write_text(f"{used}/bin/python")
    assert listed() == {"tf2.21-cpu-a": "process 1", "uv": "environment tf2.21-cpu-a"}
    assert run("prune", "--yes").stderr.endswith("all of it is in use\n") or base.exists()
    (process / "cmdline").unlink()
    run("prune", "--yes")
    assert listed() == {}


def test_an_environment_stays_as_long_as_a_layer_over_it_is_used(
    folder: Path, tmp_path: Path
) -> None:
    below = environment(folder, "tf2.21-cpu-a")
    over = environment(folder, "tf2.21-cpu-packages-b")
    (over / ".below").write_text(str(below))
    process = tmp_path / "proc" / "1"
    process.mkdir(parents=True)
    (process / "cmdline").write_text(f"{over}/bin/python")
    why = "environment tf2.21-cpu-packages-b, which lies over it"
    assert listed() == {"tf2.21-cpu-packages-b": "process 1", "tf2.21-cpu-a": why}
    (kept,) = (each for each in kept_here.kept_here() if each.path == below)
    assert kept_here.remove(kept) == why
    (process / "cmdline").unlink()
    run("prune", "--yes")
    assert listed() == {}, "layers go first"


def test_images_stay_while_a_cluster_that_runs_in_one_is_up(folder: Path, tmp_path: Path) -> None:
    images = folder / "own" / "0123456789ab" / "images"
    images.mkdir(parents=True)
    (images / "engine").write_text("podman crun\n")
    assert listed() == {"images-0123456789ab": None}
    config = config_in(tmp_path)
    record_cluster(replace(config, setup=Setup(image="it:1")), Records("mine"))
    assert listed() == {"images-0123456789ab": "cluster mine, which is up"}
    record_cluster(config, Records("mine"))
    assert listed() == {"images-0123456789ab": None}
    assert run("prune", "--yes").exit_code == 0
    assert not images.exists()


def test_folders_of_nodes_stay_while_their_cluster_is_up(folder: Path, tmp_path: Path) -> None:
    for name in ("mine", "gone"):
        (kept_here.home() / "local" / name / "chief0").mkdir(parents=True)
    record_cluster(config_in(tmp_path), Records("mine"))
    assert listed() == {"mine": "cluster mine: `cloudtrain down mine`", "gone": None}
    run("prune", "--yes")
    assert set(listed()) == {"mine"}
