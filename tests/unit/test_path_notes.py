"""Absolute paths that a command names: what `plan` and `check` say where nodes do not have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checks.check import noted
from cloudtrain.checks.path_notes import path_notes
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.core.model import ClusterConfig
from tests.support.offline_checks_parts import written

PS = {"chief": {}, "worker": {"count": 2}, "ps": {"count": 2}}
TWO = {"chief": {}, "worker": {"count": 1}}


def on(folder: Path, arguments: str, provider: str = "gcp", **values: Any) -> ClusterConfig:
    place = {"placement": ["us-east4-c"]} if provider == "gcp" else {}
    values.setdefault("nodes", TWO)
    values.setdefault("strategy", "multi_worker_mirrored")
    train = {"command": f"python t.py {arguments}", **values.pop("train", {})}
    return written(folder, provider=provider, train=train, **place, **values)


def test_a_file_of_this_machine_is_to_be_listed_under_data(tmp_path: Path) -> None:
    here = tmp_path / "elsewhere" / "images.csv"
    here.parent.mkdir()
    here.touch()
    (note,) = path_notes(on(tmp_path, f"--train={here}"))
    assert f"train.command: {here}: only this machine has it" in note
    assert "{data.NAME}" in note


def test_a_file_in_the_code_is_named_by_its_relative_path(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "src").mkdir(parents=True)
    (code / "labels.csv").touch()
    config = on(
        tmp_path,
        f"--labels '{code}/labels.csv'",
        code={"path": str(code)},
        train={"dir": "src"},
    )
    (note,) = path_notes(config)
    assert "write `../labels.csv`, as it is delivered with the code" in note


@pytest.mark.parametrize(
    ("path", "noted"),
    [("/opt/bin:${PATH}", True), ("/x", True), ("/x:/usr/bin:/bin", False), ("/bin", False)],
)
def test_a_path_without_the_systems_folders_is_noted(
    tmp_path: Path, path: str, noted: bool
) -> None:
    config = on(tmp_path, "", train={"env": {"PATH": path.replace("${", "$${")}})
    notes = path_notes(config)
    assert len(notes) == noted
    assert all("train.env.PATH: replaces the node's own and lacks /usr/bin" in n for n in notes)


def test_a_folder_that_extends_path_may_be_missing(tmp_path: Path) -> None:
    command = 'export PATH=/root/.local/bin:"$PATH" && python t.py --x /data/y'
    (note,) = path_notes(on(tmp_path, "", train={"command": command}))
    assert "/data/y" in note


def test_the_source_of_data_is_named_by_its_placeholder(tmp_path: Path) -> None:
    data = {"images": "file:///data/images"}
    store = {"store": "gs://bucket/x"}
    (note,) = path_notes(on(tmp_path, "--in /data/images/a", data=data, artifacts=store))
    assert "write `{data.images}`" in note
    assert path_notes(on(tmp_path, "--in /data/images/a", provider="local", data=data)) == ()


@pytest.mark.parametrize(
    "option", ["--ckpt_dir=/tmp/ck", "--job-dir /data/job", "-o x --logs /l/g"]
)
def test_what_is_written_to_a_nodes_own_folder_is_not_kept(tmp_path: Path, option: str) -> None:
    (note,) = path_notes(on(tmp_path, option))
    assert "each node has its own, and nothing of it is kept: write to `{output}`" in note


def test_a_parameter_server_job_shares_a_checkpoint_folder_by_accident_alone(
    tmp_path: Path,
) -> None:
    values: dict[str, Any] = {"nodes": PS, "strategy": "parameter_server"}
    (note,) = path_notes(on(tmp_path, "--model_dir /shared/ck", **values))
    assert "each ps writes its part of a checkpoint there to its own disk" in note
    assert "`train.checkpoints`" in note


def test_a_variable_is_named_and_an_interpreter_has_its_own_field(tmp_path: Path) -> None:
    train = {"command": "/home/me/venv/bin/python t.py", "env": {"LOG_DIR": "/scratch/logs"}}
    first, second = path_notes(on(tmp_path, "", train=train))
    assert "choose its version by `setup.python`" in first
    assert "train.env.LOG_DIR: /scratch/logs: each node has its own" in second


@pytest.mark.parametrize(
    "arguments",
    [
        "--out {output}/model --job {role}",
        "--tool /usr/bin/env --null /dev/null --lib=/opt/conda/lib",
        "--bucket gs://b/model --url https://host/model --home $HOME/model --rel a/b ./c ~/d",
        "--cache /tmp/tfhub --scratch=/dev/shm/x",
        "> /dev/null 2>&1; cat /proc/meminfo",
        "--split 1/2 --pattern 'a/b/c'",
    ],
)
def test_other_paths_are_left_in_peace(tmp_path: Path, arguments: str) -> None:
    assert path_notes(on(tmp_path, arguments)) == ()


def test_what_setup_makes_or_an_image_may_have_is_left_in_peace(tmp_path: Path) -> None:
    made = {"run": ["sudo mkdir -p /scratch && sudo chmod 777 /scratch"]}
    assert path_notes(on(tmp_path, "--in /scratch/x", setup=made)) == ()
    assert path_notes(on(tmp_path, "--in /workspace/x")) != ()


def test_lent_machines_may_share_a_disk_but_need_one_for_parameter_servers(tmp_path: Path) -> None:
    addresses = iter(["h1", "h2", "h3"])
    hosts = [{"address": next(addresses), "role": role} for role in ("chief", "worker", "ps")]
    values: dict[str, Any] = {
        "nodes": {"chief": {}, "worker": {}, "ps": {}},
        "hosts": hosts,
        "strategy": "parameter_server",
    }
    assert path_notes(on(tmp_path, "--in /data/x", provider="hosts", **values)) == ()
    (note,) = path_notes(on(tmp_path, "--ckpt /data/x", provider="hosts", **values))
    assert "each ps" in note


def test_paths_that_local_nodes_share_on_purpose_are_left_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_LOCAL_SHARED", "/big:/data")
    assert path_notes(on(tmp_path, "--ckpt /data/x", provider="local")) == ()
    assert path_notes(on(tmp_path, "--ckpt /other/x", provider="local")) != ()


def test_plan_and_check_show_the_note_offline(tmp_path: Path) -> None:
    config = on(tmp_path, "--ckpt_dir=/data/ck")
    assert any(
        "/data/ck: each node has its own" in text for text in plan_report(make_plan(config)).notes
    )
    assert any("/data/ck: each node has its own" in finding.text for finding in noted(config))
