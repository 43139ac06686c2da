"""Two projects whose files have the same name have different clusters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster.session import record_cluster, recorded_config, refuse_other_folder
from cloudtrain.commands.init import cluster_name
from cloudtrain.config import load, to_json
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.state import Records, known_clusters
from tests.support.fakes import FakeProvider, make_plan

pytestmark = pytest.mark.usefixtures("own_home")
WRITTEN = "provider: local\nstrategy: one_device\ncode: {path: .}\ntrain: {command: echo}\n"


def file_in(folder: Path, name: str = "same.yaml") -> ClusterConfig:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(WRITTEN)
    return load(folder / name)


def refused(config: ClusterConfig, *, adopt: bool = False) -> bool:
    try:
        refuse_other_folder(config, Records("same"), adopt=adopt)
    except UsageError:
        return True
    return False


def test_a_file_in_another_folder_is_another_project(tmp_path: Path) -> None:
    first, second = file_in(tmp_path / "pa"), file_in(tmp_path / "pb")
    assert not refused(first)
    record_cluster(first, Records("same"))
    with pytest.raises(UsageError) as raised:
        refuse_other_folder(second, Records("same"), adopt=False)
    assert str(raised.value) == (
        f"same was created from {tmp_path}/pa/same.yaml, not from {tmp_path}/pb/same.yaml"
    )
    assert "`name:`" in str(raised.value.hint)
    assert not refused(first)
    assert not refused(second, adopt=True)


def test_a_record_and_its_file_are_one_config_whatever_the_version_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was written without a project has the environment's, as the file has."""
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    path = tmp_path / "same.yaml"
    path.write_text(WRITTEN.replace("provider: local", "provider: gcp\nplacement: [us-east1]"))
    record_cluster(load(path), Records("same"))
    assert Records("same").config()["project"] is None
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "theirs")
    assert recorded_config(Records("same")) == load(path)
    assert load(path).project == "theirs"


def test_a_folder_that_was_moved_keeps_its_cluster(tmp_path: Path) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    (tmp_path / "pa").rename(tmp_path / "pb")
    assert not refused(load(tmp_path / "pb" / "same.yaml"))


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    (tmp_path / "link").symlink_to(tmp_path / "pa")
    assert not refused(load(tmp_path / "link" / "same.yaml"))


def test_what_is_down_may_be_made_anew_from_anywhere(tmp_path: Path) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    Records("same").close()
    assert not refused(file_in(tmp_path / "pb"))


def test_a_record_without_a_file_and_a_name_without_a_file_are_nobodys_folder(
    tmp_path: Path,
) -> None:
    bare = to_json(file_in(tmp_path / "pa"))
    del bare["source"]
    Records("same").create()
    Records("same").save_config(bare)
    assert not refused(file_in(tmp_path / "pb"))
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    assert not refused(ClusterConfig(name="same", provider="local", strategy="custom", nodes={}))


# ── init ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("folder", "start"),
    [
        ("digits", "digits-"),
        ("My Project (2)", "my-project-2-"),
        ("2026-runs", "runs-"),
        ("数字", "cluster-"),
        ("x" * 80, f"{'x' * 25}-"),
        ("---", "cluster-"),
    ],
)
def test_init_names_a_cluster_after_its_folder(tmp_path: Path, folder: str, start: str) -> None:
    name = cluster_name(tmp_path / folder)
    assert name.startswith(start)
    assert len(name) == len(start) + 4
    Records(name)  # a cluster may have it


def test_init_writes_a_name_of_its_own_each_time(tmp_path: Path) -> None:
    names = set()
    for number in range(3):
        path = tmp_path / f"{number}.yaml"
        assert run("init", "gcp", "--output", str(path)).exit_code == 0
        names.add(yaml.safe_load(path.read_text())["name"])
        assert load(path).name in names
    assert len(names) == 3


# ── forget ───────────────────────────────────────────────────────────────────


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_a_cluster_that_is_down_is_forgotten(tmp_path: Path) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    Records("same").close()
    done = run("forget", "same", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"name": "same"})
    assert known_clusters() == ()
    assert run("forget", "same").exit_code == 2


def test_one_that_its_provider_still_has_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    cloud = FakeProvider()
    monkeypatch.setattr("cloudtrain.commands.cache.open_provider", lambda config: cloud)
    plan = make_plan("same", workers=0)
    cloud.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    done = run("forget", "same")
    assert done.exit_code == 2
    assert "same is up: same-chief0\nhint: run `cloudtrain down same` first" in done.stderr
    assert known_clusters() == ("same",)
    cloud.cloud.clear()
    assert run("forget", "same").exit_code == 0, "the cloud says that it is gone"
    assert known_clusters() == ()


def test_artifacts_that_are_only_in_the_record_are_not_lost_by_the_way(tmp_path: Path) -> None:
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    Records("same").close()
    only = Records("same").folder / "artifacts" / "run" / "model"
    only.parent.mkdir(parents=True)
    only.write_text("weights")
    done = run("forget", "same")
    assert done.exit_code == 2
    assert str(only.parent.parent) in done.stderr
    assert only.exists()
    assert run("forget", "same", "--discard").exit_code == 0
    assert known_clusters() == ()


def test_a_forget_that_was_cut_off_leaves_nothing_for_good(tmp_path: Path) -> None:
    hidden = tmp_path / "home" / "clusters" / ".forgotten-same"
    hidden.mkdir(parents=True)
    (hidden / "events.jsonl").touch()
    record_cluster(file_in(tmp_path / "pa"), Records("same"))
    Records("same").close()
    assert run("forget", "same").exit_code == 0
    assert [path.name for path in (tmp_path / "home" / "clusters").iterdir()] == []
    shutil.rmtree(tmp_path / "home")
