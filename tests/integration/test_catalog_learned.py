"""Machine types are looked up in their cloud, whose answer wins over the packaged table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain import catalog
from cloudtrain.catalog import table
from cloudtrain.cli.app import cli
from cloudtrain.cluster.session import Session
from cloudtrain.config import load
from cloudtrain.core.model import Accelerator, Node, Plan
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
    assert table.learned_machines("azure") is None


def test_a_cloud_that_does_not_answer_says_so_itself(cloud: Cloud) -> None:
    actions = {"aws": "Describe*", "gcp": "zones.list", "azure": "*skus*"}
    cloud.fault("answer", action=actions[cloud.name], status=403, code="forbidden", times=999)
    done = cloudtrain("check", config(cloud, MACHINES[cloud.name][0]), "--json")
    assert done.exit_code != 0
    assert table.learned_machines(cloud.name) is None


WRONG = {
    # Known machines, with what a wrong table says of them and what the stand-in does.
    "aws": ("g5.12xlarge", "A10G:1", "A10G:4"),
    "gcp": ("g2-standard-24", "L4:1", "L4:2"),
    "azure": ("Standard_NC64as_T4_v3", "T4:1", "T4:4"),
}


@pytest.fixture
def wrong_table(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """One machine of the packaged table has fewer GPUs there than its cloud says."""
    machine, said, _ = WRONG[cloud.name]
    true = table.packaged(cloud.name)
    kind, count = said.split(":")
    rows = tuple(
        replace(row, accelerator=Accelerator(kind=kind, count=int(count)))
        if row.machine == machine
        else row
        for row in true.rows
    )
    wrong = table.Table(date=true.date, rows=rows)
    packaged = table.packaged
    monkeypatch.setattr(
        table, "packaged", lambda name: wrong if name == cloud.name else packaged(name)
    )
    return machine


def test_a_cloud_that_says_otherwise_than_the_table_is_right(
    cloud: Cloud, wrong_table: str
) -> None:
    _, said, has = WRONG[cloud.name]
    file = config(cloud, wrong_table)
    before = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert before["nodes"][0]["accelerator"] == said
    checked = cloudtrain("check", file, "--json")
    assert all(each["ok"] for each in machines(checked)), checked.stdout
    told = [e for e in json.loads(checked.stdout)["findings"] if e["what"] == "machine facts"]
    (text,) = (str(each["text"]) for each in told)
    day = table.packaged(cloud.name).date
    title = {"aws": "AWS", "gcp": "GCP", "azure": "Azure"}[cloud.name]
    assert text == f"{wrong_table}: {title} says {has}; the table of {day} said {said}"
    after = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert after["nodes"][0]["accelerator"] == has
    again = json.loads(cloudtrain("check", file, "--json").stdout)["findings"]
    assert not [each for each in again if each["what"] == "machine facts"]


def test_an_up_of_a_wrong_table_creates_what_the_cloud_says(
    cloud: Cloud, wrong_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Plan] = []

    def stop(session: Session, settled: object) -> Session:
        created.append(session.plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("cloudtrain.commands.up.create_cluster", stop)
    done = cloudtrain("up", config(cloud, wrong_table), "--yes", "--ignore", "quota")
    assert done.exit_code == 130, done.output
    assert str(created[0].nodes[0].accelerator) == WRONG[cloud.name][2]


ARM = {"aws": "m6g.xlarge", "gcp": "t2a-standard-4", "azure": "Standard_D4ps_v5"}


@pytest.mark.parametrize("command", ["check", "up"])
def test_an_arm_machine_is_refused_before_anything_is_created(cloud: Cloud, command: str) -> None:
    more = ["--yes"] if command == "up" else []
    done = cloudtrain(command, config(cloud, ARM[cloud.name]), *more)
    assert done.exit_code == 2, done.output
    text = f"{ARM[cloud.name]} is an ARM machine, but cloudtrain's images are x86-64"
    assert text in " ".join(done.output.split())


SCRATCH = {
    "aws": ("g4dn.xlarge", 125),
    "gcp": ("a2-ultragpu-1g", 402),
    "azure": ("Standard_NC24ads_A100_v4", 1028),
}


def test_the_local_disks_of_a_machine_are_known_after_a_check(cloud: Cloud) -> None:
    machine, size = SCRATCH[cloud.name]
    cloudtrain("check", config(cloud, machine))
    known = catalog.machine_type(cloud.name, machine)
    assert known
    assert known.scratch_gb == size


def test_the_comparison_sends_no_request_of_its_own(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config(cloud, SCRATCH[cloud.name][0])
    cloudtrain("check", file)  # signs in
    cloud.forget_calls()
    cloudtrain("check", file)
    whole = len(cloud.calls())
    assert catalog.machine_type(cloud.name, SCRATCH[cloud.name][0])
    monkeypatch.setattr("cloudtrain.checks.check.compare_machines", lambda *_: ((), False))
    cloud.forget_calls()
    cloudtrain("check", file)
    assert whole == len(cloud.calls()) > 0
