"""Owners as labels and names: written, read, compared."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cluster.ownership import current_owner, is_mine
from cloudtrain.core.errors import TransientError
from cloudtrain.core.model import Owner
from cloudtrain.core.owner import digest, label, login, machine_id, matches_owner, owner_of
from cloudtrain.core.protocols import Principal
from cloudtrain.core.task_id import TaskId
from cloudtrain.providers.base import labels
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider

pytestmark = pytest.mark.usefixtures("own_home")
VALUE = re.compile(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?\Z")


# ── labels ───────────────────────────────────────────────────────────────────


@given(st.text(max_size=80), st.text(max_size=80))
def test_labels_of_any_owner_fit_every_cloud_and_are_read_as_written(who: str, name: str) -> None:
    owner = owner_of(Principal(id=who, name=name), "laptop-1")
    told = labels.of_node("mnist", TaskId(role="worker", index=3), 5.0, owner)
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
        assert matches_owner(owner, words)
    for words in ("eve", "ann@example.org", "laptop-1", ""):
        assert not matches_owner(owner, words)


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
    from cloudtrain.providers.aws.identity import of_arn

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
    from cloudtrain.identities.azure import principal as told_by

    assert told_by(text) == principal


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
    owner = current_owner(Silent(name="aws"), console)
    assert (owner.name, owner.id) == (login(), digest(f"{login()} on {owner.machine}"))
    assert "aws does not report your identity: sts does not answer" in console.warnings[0]
    assert current_owner(FakeProvider(name="local"), console) == owner
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
