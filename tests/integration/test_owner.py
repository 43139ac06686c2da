"""Owners on each cloud's stand-in: who these credentials are, and what they may change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster.ownership import current_owner
from cloudtrain.cluster.session import open_provider, record_cluster
from cloudtrain.commands.accounts import account_of
from cloudtrain.core.errors import CloudError
from cloudtrain.core.protocols import Principal
from cloudtrain.state import Records
from tests.standins.cloud import Cloud, start
from tests.standins.people import person
from tests.support.cloud_client import TIMING, provider
from tests.support.cloud_rig import CLOUDS, config
from tests.support.fakes import make_identity, no_journal

pytestmark = pytest.mark.usefixtures("own_home")


# ── who we are ───────────────────────────────────────────────────────────────


@contextmanager
def clouds(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with start(name, thread=True, delay=0.0) as cloud:
        for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
            monkeypatch.delenv(variable.lower(), raising=False)
        for variable, value in cloud.environment.items():
            monkeypatch.setenv(variable, value)
        yield cloud


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with clouds(request.param, monkeypatch) as cloud:
        yield cloud


def be(person: dict[str, str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Their credentials, on their own machine."""
    for variable, value in person.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(home))


def test_each_cloud_tells_who_these_credentials_are_and_another_is_another(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = provider(cloud.name, config(cloud), TIMING)
    first = asked.principal()
    cloud.forget_calls()
    assert asked.principal() == first
    assert cloud.calls() == [], "asked once"
    be(person(cloud, "ann", tmp_path), monkeypatch, tmp_path / "ann")
    ann = provider(cloud.name, config(cloud), TIMING).principal()
    assert ann is not None
    assert first not in (ann, None)
    assert provider(cloud.name, config(cloud), TIMING).principal() == ann
    if cloud.name != "azure":  # where a service principal has no name but its id
        assert ann.name == "ann"


def test_an_endpoint_without_sts_does_not_tell_and_that_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with clouds("aws", monkeypatch) as cloud:
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", cloud.url)
        assert provider("aws", config(cloud), TIMING).principal() is None


@pytest.mark.parametrize("allowed", [True, False])
def test_a_person_at_google_is_known_by_the_address_where_the_credentials_may_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """Not where they are of `gcloud auth application-default login --scopes=…cloud-platform`."""
    with clouds("gcp", monkeypatch) as cloud:
        file = cloud.app.authority.person(tmp_path, cloud.url, "ann@example.com")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        if not allowed:
            cloud.fault("answer", status=400, action="token", times=9)
        asked = provider("gcp", config(cloud, endpoints=cloud.told_endpoints()), TIMING)
        ann = Principal(id="ann@example.com", name="ann")
        assert asked.principal() == (ann if allowed else None)


# ── two people, one name, one account ────────────────────────────────────────


def cloudtrain(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def file_of(cloud: Cloud, folder: Path) -> Path:
    made = config(cloud)
    folder.mkdir(exist_ok=True)
    path = folder / "mnist.yaml"
    machine = made.nodes["chief"].machine
    path.write_text(
        yaml.safe_dump(
            {
                "name": made.name,
                "provider": cloud.name,
                "project": made.project,
                "placement": list(made.placement),
                "network": {"ssh_from": "203.0.113.7/32"},
                "strategy": "multi_worker_mirrored",
                "nodes": {"chief": {"machine": machine}, "worker": {"machine": machine}},
                "code": {"path": str(folder)},
                "train": {"command": "echo"},
                "artifacts": {"store": (folder / "store").as_uri()},
            }
        )
    )
    return path


def created(cloud: Cloud, folder: Path) -> None:
    """What `up` makes before it logs in: the nodes of a stand-in have no SSH here."""
    from cloudtrain.cluster.plan import make_plan

    making = provider(cloud.name, config(cloud), TIMING)
    plan = replace(make_plan(config(cloud)), owner=current_owner(making))
    record_cluster(plan.config, Records("mnist"))
    keys = Records("mnist").folder
    making.create(plan, make_identity(keys, plan), no_journal)
    (keys / "id_ed25519").rename(keys / "key")


def test_nothing_of_one_person_is_changed_by_another_and_all_of_it_can_be_seen(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = person(cloud, "eve", tmp_path)
    ann = person(cloud, "ann", tmp_path)
    be(ann, monkeypatch, tmp_path / "of ann")
    created(cloud, tmp_path)
    held = cloud.holdings()
    owner = current_owner(provider(cloud.name, config(cloud), TIMING))
    (whole,) = open_provider(account_of("any", cloud.name, config(cloud).project)).sweep()  # type: ignore[arg-type]
    assert whole.owners == (owner,), "every one of the nodes and all that they stand on"

    be(eve, monkeypatch, tmp_path / "of eve")
    path = file_of(cloud, tmp_path / "eve")
    account = ("--provider", cloud.name, "--project", str(config(cloud).project or ""))
    account = account if config(cloud).project else account[:2]
    for words in (
        ("up", path, "--yes", "--ignore", "permissions,quota,machines,gpus,price"),
        ("train", path),
        ("run", path, "--ignore", "permissions,quota,machines,gpus,price"),
        ("down", path, "--yes"),
        ("down", path, "--discard", "--yes"),
        ("down", "mnist", *account, "--discard", "--yes"),
        ("down", "mnist", *account, "--discard", "--owner", "bob", "--yes"),
    ):
        done = cloudtrain(*words)
        assert done.exit_code == 2, (words, done.stderr, done.exception)
        for word in (str(owner), owner.id, owner.machine, "2 of 2 nodes running", "ends 20"):
            assert word in done.stderr, (words, done.stderr)
        assert "--discard" not in done.stderr
    for words in (("gc", "--running"), ("gc", "mnist", "--running")):
        done = cloudtrain(*words, *account, "--yes", "--json")
        assert (done.exit_code, json.loads(done.stdout)["collected"]) == (0, [])
    assert cloud.holdings() == held
    seen = json.loads(cloudtrain("ls", "--cloud", *account, "--json").stdout)
    (cluster,) = seen["accounts"][0]["clusters"]
    assert (cluster["mine"], cluster["known"], cluster["owner_ids"]) == (False, False, [owner.id])

    be(ann, monkeypatch, tmp_path / "another machine of ann")
    assert cloudtrain("gc", *account, "--yes").exit_code == 0
    assert cloud.holdings() == held, "it runs, and has time left"
    refused = cloudtrain("up", file_of(cloud, tmp_path / "ann"), "--yes", "--ignore", "quota")
    assert refused.exit_code == 2
    assert f"they are on the machine that created it ({owner.machine})" in refused.stderr

    be(eve, monkeypatch, tmp_path / "of eve")
    done = cloudtrain("down", "mnist", *account, "--owner", str(owner), "--discard", "--yes")
    assert done.exit_code == 0, done.stderr
    assert cloud.holdings() == []


def test_what_one_person_is_just_making_is_not_built_upon_by_another(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is there, and no node yet."""
    from cloudtrain.cluster.plan import make_plan

    def making() -> Any:
        plan = make_plan(config(cloud))
        clouds = provider(cloud.name, config(cloud), TIMING)
        return (
            clouds,
            replace(plan, owner=current_owner(clouds)),
            make_identity(tmp_path / "keys", plan),
        )

    (tmp_path / "keys").mkdir()
    ann, eve = (person(cloud, name, tmp_path) for name in ("ann", "eve"))
    be(ann, monkeypatch, tmp_path / "of ann")
    clouds, plan, identity = making()
    place = clouds._account.places(plan)[0]
    clouds._account.create_network(plan, place, "203.0.113.7/32", no_journal)
    held = cloud.holdings()
    be(eve, monkeypatch, tmp_path / "of eve")
    clouds, plan, identity = making()
    with pytest.raises(CloudError, match="belongs to a cluster of"):
        clouds.create(plan, identity, no_journal)
    path = file_of(cloud, tmp_path / "eve")
    for _ in range(2):
        done = cloudtrain("down", path, "--discard", "--yes")
        assert (done.exit_code, "is not yours" in done.stderr) == (2, True), done.stderr
        assert cloud.holdings() == held
        Records("mnist").create()
        (Records("mnist").folder / "key").touch()  # as `run` leaves it that met the network
