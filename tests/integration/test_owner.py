"""Whose a cluster is: who each account knows us as, what labels tell, what nobody else may do."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cli.app import cli
from cloudtrain.cluster.session import open_provider, record
from cloudtrain.errors import CloudError, TransientError
from cloudtrain.model import Owner
from cloudtrain.owner import digest, is_meant, label, login, machine_id, owner_of
from cloudtrain.protocols import Principal
from cloudtrain.providers._cloud import labels
from cloudtrain.records import Records
from cloudtrain.verbs.holdings import account_of
from cloudtrain.whose import is_mine, me
from tests.standins.cloud import Cloud, start
from tests.standins.people import person
from tests.support.cloud_client import TIMING, provider
from tests.support.cloud_rig import CLOUDS, config
from tests.support.fakes import FakeProvider, make_identity, no_journal

VALUE = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?\Z")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))


# ── labels ───────────────────────────────────────────────────────────────────


@given(st.text(max_size=80), st.text(max_size=80))
def test_labels_of_any_owner_fit_every_cloud_and_are_read_as_written(who: str, name: str) -> None:
    owner = owner_of(Principal(id=who, name=name), "laptop-1")
    told = labels.of_node("mnist", "worker", 3, 5.0, owner)
    assert all(VALUE.match(value) for value in told.values())
    read = labels.read(told)
    assert read is not None
    assert read.owner == owner


def test_an_owner_is_told_by_hash_name_and_machine() -> None:
    owner = owner_of(Principal(id="Ann.B@example.com", name="Ann.B"), "laptop-1")
    assert labels.of_cluster("mnist", owner) == {
        "cloudtrain-cluster": "mnist",
        "cloudtrain-owner": digest("ann.b@example.com"),
        "cloudtrain-owner-name": "ann-b",
        "cloudtrain-machine": "laptop-1",
    }


def test_the_login_name_that_an_earlier_version_wrote_is_an_owner() -> None:
    read = labels.read({"cloudtrain-cluster": "mnist", "cloudtrain-owner": "ubuntu"})
    assert read is not None
    assert (read.owner.name, read.owner.is_login) == ("ubuntu", True)
    nobody = labels.read({"cloudtrain-cluster": "mnist"})
    assert nobody is not None
    assert nobody.owner == Owner()


def test_an_owner_is_meant_by_name_by_id_and_by_who_they_are_in_the_account() -> None:
    owner = owner_of(Principal(id="ann@example.com", name="ann"), "laptop-1")
    for words in ("ann", "ANN", owner.id, "ann@example.com", "Ann@Example.com"):
        assert is_meant(owner, words)
    for words in ("eve", "ann@example.org", "laptop-1", ""):
        assert not is_meant(owner, words)


# ── the machine ──────────────────────────────────────────────────────────────


def test_a_machine_has_one_name_and_a_copy_of_its_folder_another(tmp_path: Path) -> None:
    first = machine_id(tmp_path / "home")
    assert machine_id(tmp_path / "home") == first
    assert VALUE.match(first)
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    assert machine_id(tmp_path / "copy") != first
    (path,) = (tmp_path / "home").iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_a_disk_that_is_full_keeps_nobody_from_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    first = machine_id(tmp_path / "home")
    assert machine_id(tmp_path / "home") == first
    assert VALUE.match(first)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_name_that_is_too_long_or_odd_is_made_fit() -> None:
    assert label("Ann.Müller@example.com") == "ann-m-ller-example-com"
    assert label("x" * 100) == "x" * 63
    assert label("–") == "unknown"


# ── who we are ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arn", "id", "name"),
    [
        ("arn:aws:iam::123456789012:user/ann", "arn:aws:iam::123456789012:user/ann", "ann"),
        ("arn:aws:iam::123456789012:user/ml/eu/ann", None, "ann"),
        ("arn:aws:iam::123456789012:root", None, "root"),
        ("arn:aws-cn:sts::123456789012:federated-user/bob", None, "bob"),
        (
            "arn:aws:sts::123456789012:assumed-role/Trainer/i-0abcdef",
            "arn:aws:sts::123456789012:role/Trainer",
            "Trainer",
        ),
        (
            "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0a1b/ann@example.com",
            "arn:aws:sts::123456789012:sso/ann@example.com",
            "ann",
        ),
    ],
)
def test_an_arn_is_a_principal_without_its_session(arn: str, id: str | None, name: str) -> None:
    from cloudtrain.providers._aws.identity import of_arn

    assert of_arn(arn) == Principal(id=id or arn, name=name)


def token(**claims: object) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{part}.e30"


@pytest.mark.parametrize(
    ("text", "principal"),
    [
        (token(oid="o-1", upn="ann@example.com", appid="a"), Principal(id="o-1", name="ann")),
        (token(oid="o-2", appid="a-2"), Principal(id="o-2", name="a-2")),
        (token(oid="o-3"), Principal(id="o-3", name="o-3")),
        (token(upn="ann@example.com"), None),
        ("opaque", None),
        ("a.b.c", None),
        ("e30.WzFd.e30", None),
    ],
)
def test_azures_tokens_tell_the_object_that_signed_in(
    text: str, principal: Principal | None
) -> None:
    from cloudtrain.providers._azure.credentials import principal as told_by

    assert told_by(text) == principal


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


class Told:
    """A Console that remembers its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Silent(FakeProvider):
    def principal(self) -> Principal | None:
        raise TransientError("sts does not answer")


def test_where_the_account_does_not_tell_it_is_the_user_of_this_machine_and_that_is_said() -> None:
    console: Any = Told()
    owner = me(Silent(name="aws"), console)
    assert (owner.name, owner.id) == (login(), digest(f"{login()} on {owner.machine}"))
    assert "aws does not tell who you are: sts does not answer" in console.warnings[0]
    assert me(FakeProvider(name="local"), console) == owner
    assert len(console.warnings) == 1, "elsewhere nobody expects it"
    known = FakeProvider(name="aws", who=Principal(id="ann", name="ann"))
    assert is_mine(owner, known, Records("mnist")), "also once the account tells"


def test_a_machine_that_was_renamed_still_has_its_keys() -> None:
    """Where no account tells who we are: on hosts, and at an endpoint without STS."""
    before = owner_of(None, "laptop-1")
    assert not is_mine(before, FakeProvider(name="hosts"), Records("mnist"))
    Records("mnist").create()
    (Records("mnist").folder / "key").touch()
    assert is_mine(before, FakeProvider(name="hosts"), Records("mnist"))
    assert is_mine(before, Silent(name="aws"), Records("mnist"))
    known = FakeProvider(name="aws", who=Principal(id="eve", name="eve"))
    assert not is_mine(before, known, Records("mnist"))
    other = replace(before, name="somebody else")
    assert not is_mine(other, FakeProvider(name="hosts"), Records("mnist"))


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
    plan = replace(make_plan(config(cloud)), owner=me(making))
    record(plan.config, Records("mnist"))
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
    owner = me(provider(cloud.name, config(cloud), TIMING))
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
    assert f"they are where it was made ({owner.machine})" in refused.stderr

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
        return clouds, replace(plan, owner=me(clouds)), make_identity(tmp_path / "keys", plan)

    (tmp_path / "keys").mkdir()
    ann, eve = (person(cloud, name, tmp_path) for name in ("ann", "eve"))
    be(ann, monkeypatch, tmp_path / "of ann")
    clouds, plan, identity = making()
    place = clouds._account.places(plan)[0]
    clouds._account.ground(plan, place, "203.0.113.7/32", no_journal)
    held = cloud.holdings()
    be(eve, monkeypatch, tmp_path / "of eve")
    clouds, plan, identity = making()
    with pytest.raises(CloudError, match="is of a cluster of"):
        clouds.create(plan, identity, no_journal)
    path = file_of(cloud, tmp_path / "eve")
    for _ in range(2):
        done = cloudtrain("down", path, "--discard", "--yes")
        assert (done.exit_code, "is not yours" in done.stderr) == (2, True), done.stderr
        assert cloud.holdings() == held
        Records("mnist").create()
        (Records("mnist").folder / "key").touch()  # as `run` leaves it that met the network
