"""`shared:` in a file, in a task's launch, in `plan`, and in the notes that propose it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.checks.commands import command_problems, launched
from cloudtrain.checks.notes import notes
from cloudtrain.cli.plan import as_document, shared_text
from cloudtrain.cli.status_rows import drawn
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.commands.status import ClusterStatus
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Node, SharedFolder
from cloudtrain.rehearsal.fault_trial import local_config

LOCAL = """provider: local
strategy: parameter_server
nodes: {chief: {}, worker: {count: 1}, ps: {count: 2}}
"""
HOSTS = """provider: hosts
strategy: custom
hosts: [{address: a.example.org, role: chief}, {address: b.example.org, role: ps}]
"""
TRAIN = "train: {command: 'python t.py --job-dir {shared}', env: {AT: '{shared}/x'}}\n"


def read(folder: Path, text: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(text)
    return load(path, {})


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [str(each).removeprefix(f"{os.fspath(folder)}/") for each in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("job", SharedFolder(folder="job")),
        ("out/job", SharedFolder(folder="out/job")),
        ("./out//job/", SharedFolder(folder="out/job")),
        ("{folder: job}", SharedFolder(folder="job")),
    ],
)
def test_it_is_a_folder_and_takes_the_place_of_the_checkpoints(
    tmp_path: Path, text: str, wanted: SharedFolder
) -> None:
    config = read(tmp_path, f"{LOCAL}shared: {text}\n")
    assert config.shared == wanted
    assert config.train.checkpoints == wanted.folder
    assert from_json(to_json(config)) == config


def test_hosts_name_a_path_and_a_rehearsal_has_a_folder_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, f"{HOSTS}shared: {{path: /mnt/nfs/team/}}\n")
    assert config.shared == SharedFolder(folder="shared", path="/mnt/nfs/team")
    local = local_config(config, "file:///tmp/store", setup_run=False)
    assert local.shared == SharedFolder(folder="shared")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{LOCAL}shared: /abs\n", "shared: must be a relative path"),
        (f"{LOCAL}shared: output\n", "shared.folder: is the task's own output folder"),
        (f"{LOCAL}shared: {{path: /mnt/x}}\n", "shared.path: provider local shares a folder of"),
        (f"{LOCAL}shared: {{pth: x}}\n", "shared.pth: unknown field: did you mean 'path'?"),
        (f"{HOSTS}shared: job\n", "shared.path: is missing: a folder that all hosts share"),
        (f"{HOSTS}shared: {{path: mnt/x}}\n", "shared.path: must be an absolute path on the"),
        (f"{HOSTS}shared: {{path: /a/../b}}\n", "shared.path: must be an absolute path on the"),
        (
            f"{LOCAL}shared: job\ntrain: {{command: x, checkpoints: ckpt}}\n",
            "train.checkpoints: leave it out: `shared` lands and comes back as a whole",
        ),
        (f"{LOCAL}{TRAIN}", "train.command: names {shared}: add `shared: job`"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    found = problems(tmp_path, text)
    assert any(problem in each for each in found), found
    assert all(each.startswith("c.yaml:") for each in found)


def test_each_task_gets_its_path_in_the_command_and_as_a_variable(tmp_path: Path) -> None:
    config = read(tmp_path, f"{LOCAL}shared: job\n{TRAIN}")
    for launch in launched(make_plan(config)):
        assert launch.command.endswith("python t.py --job-dir '<shared folder>'")
        assert launch.environment["CLOUDTRAIN_SHARED"] == "<shared folder>"
        assert launch.environment["AT"] == "<shared folder>/x"


def test_without_it_there_is_no_variable_and_with_it_a_misspelt_name_is_told(
    tmp_path: Path,
) -> None:
    config = read(tmp_path, f"{LOCAL}train: {{command: x}}\n")
    assert "CLOUDTRAIN_SHARED" not in launched(make_plan(config))[0].environment
    config = read(tmp_path, f"{LOCAL}shared: job\ntrain: {{command: 'x {{shared_dir}}'}}\n")
    (problem,) = command_problems(config)
    assert "did you mean {shared}?" in problem.text


def test_a_folder_that_the_code_has_is_refused_before_a_node_exists(tmp_path: Path) -> None:
    (tmp_path / "code/src/job/events").mkdir(parents=True)
    (tmp_path / "code/src/job/events/one").write_text("of a run on this machine")
    train = "code: {path: code}\ntrain: {command: x, dir: src}\n"
    (problem,) = command_problems(read(tmp_path, f"{LOCAL}shared: job\n{train}"))
    assert problem.field == "shared"
    assert problem.text.startswith("the code has src/job/events/one: choose another name")
    assert command_problems(read(tmp_path, f"{LOCAL}shared: jobs\n{train}")) == ()


CLOUD = """provider: gcp
project: p
placement: [us-east4-c]
strategy: parameter_server
nodes: {chief: {machine: n1-standard-4}, worker: {machine: n1-standard-4}, ps: {}}
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"{LOCAL}shared: job\n", "on this machine"),
        (f"{HOSTS}shared: {{folder: job, path: /mnt/x}}\n", "in /mnt/x of every node"),
        (
            f"{CLOUD}shared: job\n",
            "on the disk of c-chief0, with which all is lost that has not landed",
        ),
    ],
)
def test_plan_says_where_it_is_and_what_its_loss_means(
    tmp_path: Path, text: str, where: str
) -> None:
    shared = as_document(plan_report(make_plan(read(tmp_path, f"{text}{TRAIN}"))))["shared"]
    told = shared_text(shared)
    assert told == f"job/ in every work folder, {where}; lands from c-chief0"


SAVES = """
import tensorflow as tf
tf.keras.callbacks.ModelCheckpoint("ckpt", save_weights_only=True)
"""


def test_it_is_proposed_where_a_ps_saves_and_not_once_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.py").write_text(SAVES)
    text = f"{LOCAL}code: {{path: code}}\ntrain: {{command: python t.py}}\n"
    said = "\n".join(notes(read(tmp_path, text)))
    assert "name its folder in `shared` (`shared: job`), which all nodes share" in said
    said = "\n".join(notes(read(tmp_path, f"{text}shared: ckpt\n")))
    assert "its own disk" not in said


def test_status_says_whose_disk_it_is_on_and_what_is_left_of_one_that_is_gone() -> None:
    worker = Node(
        name="m-worker0", role="worker", index=0, state="running", address="", internal=""
    )
    names = ("m-chief0", "m-worker0")
    there = (replace(worker, name="m-chief0", role="chief"), worker)
    status = ClusterStatus(name="m", planned=names, nodes=there, shared="job")
    assert "  shared folder job/ on m-chief0" in drawn("text", status, 0.0)
    status = replace(status, nodes=(worker,))
    assert (
        "  shared folder job/ is gone with m-chief0: what had landed of it comes back"
    ) in drawn("text", status, 0.0)
