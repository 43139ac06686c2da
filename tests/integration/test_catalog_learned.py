"""Machine types that the packaged table lacks are looked up in their cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.catalog import learned
from cloudtrain.cli.app import cli
from cloudtrain.config import load
from cloudtrain.model import Node
from cloudtrain.playbooks import nvidia
from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.support.cloud_user import READY

MACHINES = {
    # Each with what the stand-in tells of it.
    "aws": ("g9.4xlarge", "L4:1"),
    "gcp": ("g5-standard-32", "L4:2"),
    "azure": ("Standard_NC64lds_T4_v9", "T4:4"),
}
PLACES = {"gcp": ["us-central1"]}


@pytest.fixture(params=READY)
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with running(request.param) as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        yield cloud


def cloudtrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def config(cloud: Cloud, machine: str, **more: str) -> str:
    described = DESCRIPTIONS[cloud.name]
    document = {
        "name": "mnist",
        "provider": cloud.name,
        "placement": PLACES.get(cloud.name, list(described.placement)),
        "strategy": "custom",
        "network": {"ssh_from": "192.0.2.1/32"},
        "nodes": {"worker": {"machine": machine, **more}},
        "setup": {"tensorflow": "2.21"},
        "train": {"command": "echo"},
    }
    if described.project:
        document["project"] = described.project
    Path("mnist.yaml").write_text(yaml.safe_dump(document))
    return "mnist.yaml"


def machines(done: Result) -> list[dict[str, object]]:
    return [each for each in json.loads(done.stdout)["findings"] if each["what"] == "machines"]


def test_an_unknown_machine_with_gpus_is_refused_offline_and_has_them_once_its_cloud_was_asked(
    cloud: Cloud,
) -> None:
    machine, has = MACHINES[cloud.name]
    file = config(cloud, machine)
    refused = cloudtrain("plan", file)
    assert refused.exit_code == 2
    assert f"{machine} seems to have GPUs, but this version does not know which" in refused.output
    checked = cloudtrain("check", file, "--json")
    assert all(each["ok"] for each in machines(checked)), checked.stdout
    planned = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert planned["nodes"][0]["accelerator"] == has
    node = Node(name="n", role="worker", index=0, state="running", address="", internal="")
    wanted = nvidia.wanted(load(Path(file)), node)
    assert str(wanted) == has, "the driver and the CUDA build follow"


def test_what_is_named_beside_an_unknown_machine_and_is_not_so_is_refused(cloud: Cloud) -> None:
    machine, has = MACHINES[cloud.name]
    kind, count = has.split(":")
    assert cloudtrain("plan", config(cloud, machine, accelerator=f"{kind}:{int(count) + 1}")).output
    done = cloudtrain("check", "mnist.yaml", "--json")
    assert done.exit_code == 2
    words = " ".join(str(each["text"]) for each in machines(done) if not each["ok"])
    assert f"{machine} has {has}, not {kind}:{int(count) + 1}" in words


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
def test_a_cloud_that_does_not_tell_the_kind_leaves_the_question_open(cloud: Cloud) -> None:
    """Only Azure tells how many GPUs there are, and not which."""
    done = cloudtrain("check", config(cloud, "Standard_NC80s_X99_v9"))
    assert done.exit_code == 2
    assert "add `accelerator: KIND:COUNT`" in done.output
    assert learned.learned_machines("azure") is None


def test_a_cloud_that_does_not_answer_says_so_itself(cloud: Cloud) -> None:
    actions = {"aws": "Describe*", "gcp": "zones.list", "azure": "*skus*"}
    cloud.fault("answer", action=actions[cloud.name], status=403, code="forbidden", times=999)
    done = cloudtrain("check", config(cloud, MACHINES[cloud.name][0]), "--json")
    assert done.exit_code != 0
    assert learned.learned_machines(cloud.name) is None
