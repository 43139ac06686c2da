"""`--record PATH`: what a cloud answers, as a file without names that answers the same again."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import open_provider
from cloudtrain.core import recorder
from cloudtrain.core.errors import CapacityError, CloudtrainError
from cloudtrain.core.model import Node, Owner
from cloudtrain.state.recording import recorded_to
from tests.standins.cloud import DESCRIPTIONS, Cloud, start
from tests.standins.refusals import CLOUDS, Recorded
from tests.support.fakes import make_identity, no_journal
from tests.support.recorded import Replay, answers, classified, entries, refusals

USER, HOST = "ann.bergmann", "annes-laptop.corp.example.org"
FULL = {"gcp": {"*": 0}, "azure": {"*": 0}, "aws": {"g4dn.xlarge us-east-1a": 0}}


@pytest.fixture(params=CLOUDS)
def cloud(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Cloud]:
    with start(request.param, thread=True, delay=0.0) as cloud:
        own = {"USER": USER, "LOGNAME": USER, "CLOUDTRAIN_HOME": str(tmp_path / "home")}
        for name, value in {**cloud.environment, **own}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("socket.gethostname", lambda: HOST)
        yield cloud


def names_in(text: str, cloud: Cloud) -> list[str]:
    """Keys, and names of account, user and machine, that a text has."""
    secret = re.compile("KEY|SECRET|TOKEN|PASSWORD")
    keys = [value for name, value in cloud.environment.items() if secret.search(name)]
    project = DESCRIPTIONS[cloud.name].project
    own = [*keys, USER, "ann-bergmann", HOST, "annes-laptop", "PRIVATE KEY", project or "\0"]
    return [name for name in [*own, "203.0.113.7"] if name in text]


def seen(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    return sorted((n.name, n.state, n.placement, n.internal, n.machine) for n in nodes)


def test_what_was_answered_is_recorded_without_names_and_read_the_same_again(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    whole, listed, full = (tmp_path / f"{name}.jsonl" for name in ("whole", "listed", "full"))
    config = cloud.config(placement=cloud.placement[:1])
    plan = replace(make_plan(config), owner=Owner(id="f00dfeed0001", name="ann-bergmann"))
    identity = make_identity(tmp_path, plan)
    provider = open_provider(config)
    with recorded_to(whole, said.append):
        provider.create(plan, identity, no_journal)
        with recorded_to(listed, said.append):
            nodes = open_provider(config).nodes("mnist")
        provider.destroy("mnist", no_journal)
    cloud.set(capacity=FULL[cloud.name])
    with recorded_to(full, said.append), pytest.raises(CloudtrainError) as refused:
        open_provider(config).create(plan, identity, no_journal)
    assert said == []
    for path in (whole, listed, full):
        assert names_in(path.read_text(), cloud) == []
        assert not [node for node in nodes if f'"{node.address}"' in path.read_text()]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    # The driver reads the same of it, without a cloud.
    text = listed.read_text()
    project = re.search(r"project-[0-9a-f]{8}|0{8}-0{4}-0{4}-0{4}-[0-9a-f]{12}", text)
    replay = Replay(answers(listed))
    monkeypatch.setattr(recorder, "recorded", lambda *_: replay.send)
    own = config.project and replace(config, project=project and project[0])
    assert seen(open_provider(own or config).nodes("mnist")) == seen(nodes)
    assert len(replay.asked) == len(replay.found)

    # What was refused is read as it was then, and can go into the corpus.
    errors = [classified(*each) for each in refusals(answers(full))]
    lacks = [error for error in errors if isinstance(error, CapacityError)]
    assert lacks, (refused.value, errors)
    for entry in yaml.safe_load(entries(answers(full))).values():
        assert type(classified(cloud.name, Recorded(**entry))).__name__ == entry["means"]["error"]


def test_check_and_ls_record_by_flag_and_by_variable_into_one_file(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name has the same placeholder in each; a line that was cut off is ended."""
    described, path = DESCRIPTIONS[cloud.name], tmp_path / "record.jsonl"
    file = tmp_path / "mnist.yaml"
    nodes = {"chief": {"machine": described.machine}}
    fields = {
        "provider": cloud.name,
        "placement": list(described.placement),
        "nodes": nodes,
        "strategy": "one_device",
    }
    account = {"project": described.project} if described.project else {}
    train = {"command": "python x.py"}
    file.write_text(yaml.safe_dump({"name": "mnist", **fields, **account, "train": train}))
    check = ["check", str(file), "--record", str(path), "--ignore", "quota"]
    done = CliRunner().invoke(cli, check)
    begun = len(answers(path))
    assert begun > 3, done.output
    with path.open("ab") as killed:
        killed.write(b'{"format": 1, "ti')
    monkeypatch.setenv("CLOUDTRAIN_RECORD", str(path))
    done = CliRunner().invoke(cli, ["ls", "--cloud", str(file)])
    assert done.exit_code == 0, done.output
    assert len(answers(path)) > begun
    text = path.read_text()
    assert names_in(text, cloud) == []
    if cloud.name != "aws":
        shape = {"gcp": "projects/(project-.{8})/", "azure": "subscriptions/(0{8}-.{27})[/?]"}
        assert len(set(re.findall(shape[cloud.name], text))) == 1


def test_a_file_that_cannot_be_written_is_a_warning_once(cloud: Cloud, tmp_path: Path) -> None:
    said: list[str] = []
    for path in (tmp_path, tmp_path / "no folder" / "x.jsonl", Path("/dev/full")):
        with recorded_to(path, said.append):
            assert open_provider(cloud.config()).nodes("mnist") == ()
    assert len(said) == 3, said
    assert all(line.endswith("; the command goes on without it") for line in said)
