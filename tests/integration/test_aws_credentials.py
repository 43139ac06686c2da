"""AWS's credentials: sessions with a second factor, processes, a wrong clock."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.cluster.session import Handle
from cloudtrain.config import load
from cloudtrain.core.errors import CloudtrainError, CredentialsError
from cloudtrain.core.moments import Moments
from cloudtrain.identities.aws import AwsIdentity, identity
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import Schedules
from cloudtrain.stores import open_store
from cloudtrain.stores.data import open_data
from tests.standins.cloud import Cloud
from tests.support.aws_credentials import (
    KEYS,
    ROLE,
    SECRET,
    STATES,
    AwsDesk,
    State,
    account,
    process,
    profile,
)
from tests.support.aws_parts import FAST
from tests.support.credential_desk import prepare, typed


@pytest.fixture(scope="module")
def aws() -> Iterator[Cloud]:
    with account() as aws:
        yield aws


@pytest.fixture
def own() -> Iterator[Cloud]:
    """An account for one test."""
    with account() as aws:
        yield aws


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, aws: Cloud, monkeypatch: pytest.MonkeyPatch) -> AwsDesk:
    prepare(monkeypatch, tmp_path, "aws")
    return AwsDesk(tmp_path, aws, monkeypatch)


MFA = State(
    config=profile(f"{ROLE}source_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/ann\n"),
    keys=f"[keys]\n{KEYS.format(secret=SECRET)}",
    says="",
    cure="",
)


def test_a_code_is_asked_for_once_and_the_session_is_the_command_lines_own(
    desk: AwsDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's code is taken once, and a session that has ended is renewed beside a command
    that goes on, by the AWS CLI.
    """
    asked: list[str] = []
    desk.be_in(MFA)
    desk.cloud.app.mfa_codes[:] = ["111111", "222222"]
    monkeypatch.setattr("getpass.getpass", lambda text: asked.append(text) or "111111")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    file = desk.file(artifacts={"store": "s3://bucket/x"})
    handle = Handle(load(file))
    handle.provider.principal()
    with pytest.raises(CloudtrainError, match="bucket"):
        handle.store.check()
    assert len(asked) == 1, "the store signs with the driver's session"
    (kept,) = (desk.folder / "user/.aws/cli/cache").iterdir()
    assert kept.stat().st_mode & 0o77 == 0
    its = AwsIdentity("work")  # another command's
    its.ask_ahead()
    assert its.credentials().access_key == handle.provider._account._ec2.identity.credentials()[0]  # type: ignore[attr-defined]
    assert len(asked) == 1
    its._found._expiry_time = its._found._time_fetcher() - timedelta(hours=1)
    kept.unlink()
    with pytest.raises(CredentialsError) as raised:
        its.credentials()
    assert "aws sts get-caller-identity --profile work" in str(raised.value.hint)
    assert len(asked) == 1, "not while lines are drawn"
    monkeypatch.setattr("getpass.getpass", lambda text: "222222")
    AwsIdentity("work").ask_ahead()  # as the CLI does it
    assert its.credentials().access_key


def test_a_wrong_code_is_said_to_be_one(desk: AwsDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.be_in(MFA)
    monkeypatch.setattr("getpass.getpass", lambda text: "000000")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(CredentialsError, match="invalid MFA one time pass code") as raised:
        AwsIdentity("work").ask_ahead()
    assert "next code" in str(raised.value.hint)


def test_a_wrong_clock_is_said_to_be_it(desk: AwsDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.be_in(STATES["keys that are not valid"])
    ahead = Moments(lambda: time.time() + 7200.0)
    monkeypatch.setattr("cloudtrain.core.moments.MOMENTS", ahead)
    monkeypatch.setattr("cloudtrain.core.moments.hear", ahead.hear)
    with pytest.raises(CredentialsError) as raised:
        Ec2Client(load(desk.file()), FAST).ask("us-east-1", "DescribeRegions")
    assert "2 h ahead of that of AWS: run `sudo timedatectl" in str(raised.value.hint)


def test_one_session_serves_a_command_until_the_files_change(desk: AwsDesk) -> None:
    desk.be_in(MFA)
    first = identity("work")
    assert identity("work") is first
    assert identity(None) is not first
    os.utime(desk.folder / "user/.aws/config", ns=(1, 1))
    assert identity("work") is not first


@pytest.mark.parametrize("as_its_end_is_armed", [False, True])
def test_credentials_that_die_between_request_and_rollback_leave_a_name(
    as_its_end_is_armed: bool, desk: AwsDesk, own: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is billed, and nobody else knows its id."""
    desk.cloud = own
    keys = STATES["keys that have ended"].environment
    desk.be_in(replace(STATES["keys that have ended"], environment={}))
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    ended = desk.cloud.app.ended_keys
    monkeypatch.setattr(desk.cloud.app, "ended_keys", [])
    begin = desk.cloud.app._begin

    def begin_and_end(instance: Any, given: dict[str, Any]) -> None:
        begin(instance, given)
        desk.cloud.app.ended_keys = ended

    def refuse(*_: Any) -> None:
        raise CredentialsError("CreateSchedule: the token has expired", hint="set new ones")

    monkeypatch.setattr(desk.cloud.app, "_begin", begin_and_end)
    if as_its_end_is_armed:
        monkeypatch.setattr(Schedules, "arm", refuse)
    done = typed("up", desk.file(), "--yes")
    text = " ".join(done.output.split())
    (instance,) = desk.cloud.app.alive("us-east-1")
    assert done.exit_code == CredentialsError.exit_code, text
    assert f"may still exist and be billed: instance job-worker0 ({instance.id})" in text, text
    assert "set new ones" in text or "set AWS_ACCESS_KEY_ID" in text


def test_a_region_that_is_none_is_named_with_its_file(desk: AwsDesk) -> None:
    """It is found as a store is opened, where no error of S3 can come yet."""
    desk.be_in(State(config="[profile work]\noutput = json\n", says="", cure=""))
    config = desk.folder / "user/.aws/config"
    config.write_text("[profile work]\nregion = us east 1\n")
    for opened in (open_store, open_data):
        with pytest.raises(CredentialsError, match="us east 1") as raised:
            opened("s3://bucket/x", project="work")
        assert f"`region` of that profile in {config}" in str(raised.value.hint)


def test_a_process_that_hangs_is_waited_for_once(
    desk: AwsDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` asks for credentials several times; each would wait as long again."""
    state = STATES["a process that hangs"]
    desk.be_in(replace(state, files=process('echo x >>"$HOME/started"; exec sleep 30')))
    now = itertools.count(100.0, 0.03)
    monkeypatch.setattr("cloudtrain.core.moments.since_boot", lambda: next(now))
    its = AwsIdentity("work")
    for _ in range(9):  # which takes longer than the limit
        with pytest.raises(CredentialsError, match="no answer within") as raised:
            its.credentials()
        assert "/bin/login" in str(raised.value.hint)
    assert (desk.folder / "user/started").read_text() == "x\nx\n", "and again after the limit"
