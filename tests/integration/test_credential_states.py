"""AWS's credentials in every state that a user's machine may have them in, in every command."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan, tasks
from cloudtrain.cluster.session import Handle, record_cluster
from cloudtrain.config import load
from cloudtrain.errors import CloudtrainError, CredentialsError
from cloudtrain.events import CreationBegun
from cloudtrain.identities import aws as identities
from cloudtrain.identities.aws import AwsIdentity, identity
from cloudtrain.model import ClusterConfig
from cloudtrain.moments import Moments
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import Schedules
from cloudtrain.run_record import Run
from cloudtrain.state import Records
from cloudtrain.stores import open_store
from cloudtrain.stores.data import open_data
from tests.standins.cloud import Cloud, start
from tests.support.aws_parts import FAST
from tests.support.lanes import Cases

KEYS = "aws_access_key_id = AKIASTANDIN000000000\naws_secret_access_key = {secret}\n"
SECRET = "the-stand-in-knows-this-secret"
SESSION = (
    "[sso-session desk]\nsso_start_url = https://acme.awsapps.com/start\nsso_region = eu-west-1\n"
)
SSO = "sso_account_id = 111122223333\nsso_role_name = Dev\n"
LOGIN = "login_session = arn:aws:iam::111122223333:user/ann\n"
ROLE = "role_arn = arn:aws:iam::111122223333:role/train\n"
TOKENS = {
    "accessToken": "a token",
    "expiresAt": "2024-01-01T00:00:00Z",
    "startUrl": "https://acme.awsapps.com/start",
    "region": "eu-west-1",
}
TOKEN_FILE = "~/.aws/sso/cache/d59ded8c56a51d6a4b1d9d5bdb8e5ed5f8f3a5c6.json"


@dataclass(frozen=True, kw_only=True)
class State:
    """What is on the user's machine, what is said of it, and the command that cures it."""

    config: str = ""
    keys: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    project: str | None = "work"
    says: str
    cure: str


def profile(text: str, *others: str) -> str:
    return f"[profile work]\n{text}" + "".join(others)


def process(script: str) -> dict[str, str]:
    return {"~/bin/login": f"#!/bin/sh\n{script}\n"}


STATES = {
    "SSO, never logged in": State(
        config=profile(f"sso_session = desk\n{SSO}", SESSION),
        says="SSO Token|sso",
        cure="aws sso login --profile work",
    ),
    "SSO as it was written before sessions": State(
        config=profile(f"sso_start_url = https://acme.awsapps.com/start\nsso_region=x\n{SSO}"),
        says="SSO",
        cure="aws sso login --profile work",
    ),
    "SSO, expired": State(
        config=profile(f"sso_session = desk\n{SSO}", SESSION),
        files={"SSO": json.dumps(TOKENS)},
        says="expired",
        cure="aws sso login --profile work",
    ),
    "aws login, without botocore's crt": State(
        config=profile(LOGIN), says=r"botocore\[crt\]", cure='pip install "botocore[crt]"'
    ),
    "a process that fails": State(
        config=profile("credential_process = {home}/bin/login\n"),
        files=process("echo 'saml: session is over' >&2; exit 1"),
        says="saml: session is over",
        cure="/bin/login",
    ),
    "a process that prints junk": State(
        config=profile("credential_process = {home}/bin/login\n"),
        files=process("echo Welcome back"),
        says="JSONDecodeError",
        cure="/bin/login",
    ),
    "a process that hangs": State(
        config=profile("credential_process = {home}/bin/login\n"),
        files=process("exec sleep 30"),
        says="no answer within",
        cure="/bin/login",
    ),
    "a process that is not there": State(
        config=profile("credential_process = {home}/bin/login\n"),
        says="FileNotFoundError",
        cure="/bin/login",
    ),
    "a role of nobody": State(
        config=profile(ROLE), says="source_profile", cure="complete that profile in {config}"
    ),
    "a role of a profile that is not there": State(
        config=profile(f"{ROLE}source_profile = gone\n"),
        says="gone",
        cure="complete that profile in {config}",
    ),
    "SSO of a session that is not there": State(
        config=profile(f"sso_session = gone\n{SSO}"),
        says="gone",
        cure="complete that profile in {config}",
    ),
    "a config that cannot be read": State(
        config="[profile work\nregion us-east-1\n", says="parse config", cure="correct that file"
    ),
    "a profile that is not there": State(
        config="[profile other]\n", says="work", cure="aws configure list-profiles"
    ),
    "no credentials at all": State(
        project=None, says="no AWS credentials found", cure="`aws login`, `aws configure`"
    ),
    "MFA, with nobody to ask": State(
        config=profile(f"{ROLE}source_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/ann\n"),
        keys=f"[keys]\n{KEYS.format(secret=SECRET)}",
        says="needs an MFA code",
        cure="aws sts get-caller-identity --profile work",
    ),
    "a web identity without its file": State(
        config=profile(f"{ROLE}web_identity_token_file = {{home}}/token\n"),
        says="FileNotFoundError",
        cure="/token",
    ),
    "keys that are not valid": State(
        config="[profile work]\n",
        keys=f"[work]\n{KEYS.format(secret='another')}",
        says="SignatureDoesNotMatch|AuthFailure|not able to validate|signature",
        cure="aws configure --profile work",
    ),
    "keys that have ended": State(
        environment={
            "AWS_ACCESS_KEY_ID": "ASIASTANDINENDED0000",
            "AWS_SECRET_ACCESS_KEY": "of a session",
            "AWS_SESSION_TOKEN": "a token",
        },
        project=None,
        says="expired",
        cure="set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew",
    ),
    "a machine whose metadata service does not answer": State(
        config=profile(f"{ROLE}credential_source = Ec2InstanceMetadata\n"),
        environment={
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        },
        says="Ec2InstanceMetadata|credential_source",
        cure="aws configure --profile work",
    ),
}


@contextmanager
def account() -> Iterator[Cloud]:
    with start("aws", thread=True, delay=0.0) as aws:
        aws.app.secrets["ASIASTANDINENDED0000"] = "of a session"
        aws.app.ended_keys.append("ASIASTANDINENDED0000")
        yield aws


@pytest.fixture(scope="module")
def aws() -> Iterator[Cloud]:
    with account() as aws:
        yield aws


@pytest.fixture
def own() -> Iterator[Cloud]:
    """An account for one test."""
    with account() as aws:
        yield aws


@dataclass
class Desk:
    """A user's machine: home, files, environment."""

    folder: Path
    aws: Cloud
    patch: pytest.MonkeyPatch

    def be_in(self, state: State) -> None:
        home = self.folder / "user"
        (home / ".aws").mkdir(parents=True)
        config = home / ".aws" / "config"
        text = state.config.replace("{home}", str(home))
        config.write_text(text.replace("[profile work]\n", "[profile work]\nregion = us-east-1\n"))
        (home / ".aws" / "credentials").write_text(state.keys)
        for name, content in state.files.items():
            path = Path(name.replace("~", str(home)))
            if name == "SSO":
                from botocore.utils import SSOTokenLoader

                key = SSOTokenLoader()._generate_cache_key("", "desk")
                path = home / ".aws" / "sso" / "cache" / f"{key}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            path.chmod(0o700)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            self.patch.delenv(name, raising=False)
        self.patch.setenv("HOME", str(home))
        for kind in ("credentials.SSOProvider", "tokens.SSOTokenProvider"):
            folder = str(home / ".aws" / "sso" / "cache")  # read once, as they are imported
            self.patch.setattr(f"botocore.{kind}._SSO_TOKEN_CACHE_DIR", folder)
        told = {
            "AWS_ENDPOINT_URL": self.aws.url,
            "AWS_CONFIG_FILE": str(config),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
            **state.environment,
        }
        for name, value in told.items():
            self.patch.setenv(name, value)

    def file(self, project: str | None, name: str = "job.yaml", **sections: Any) -> Path:
        sections = {
            "provider": "aws",
            **({"project": project} if project else {}),
            "strategy": "custom",
            "placement": ["us-east-1a"],
            "network": {"ssh_from": "203.0.113.7/32"},
            "nodes": {"worker": {"machine": "m6i.xlarge"}},
            "train": {"command": "true"},
            **sections,
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump({"name": path.stem, **sections}))
        return path


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, aws: Cloud, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identities, "PROCESS_LIMIT", 0.2)
    monkeypatch.setattr("botocore.credentials.EC", None)  # without its crt
    monkeypatch.setattr(
        "cloudtrain.commands.accounts.missing_extra",
        lambda name: None if name in ("aws", "local") else "libcloud",
    )
    return Desk(tmp_path, aws, monkeypatch)


def run_of(config: ClusterConfig) -> Run:
    return Run(
        id="20261126-100000-aaaa",
        cluster=config.name,
        command="true",
        state="succeeded",
        created=1.0,
        ended=2.0,
        exit_code=0,
        store=config.artifacts.store,
        tasks=tasks(make_plan(config)),
    )


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "FILE"),
    "up": ("up", "FILE", "--yes"),
    "down": ("down", "job", "--yes"),
    "status": ("status", "job"),
    "ls --cloud": ("ls", "--cloud"),
    "gc": ("gc", "--yes"),
    "fetch": ("fetch", "stored"),
    "a store": ("check", "STORED"),
    "data": ("check", "WITH DATA"),
}


@pytest.mark.parametrize("name", STATES)
def test_every_command_names_the_command_that_cures_it(name: str, desk: Desk, cases: Cases) -> None:
    state = STATES[name]
    desk.be_in(state)
    files = {
        "FILE": desk.file(state.project),
        "STORED": desk.file(state.project, "stored.yaml", artifacts={"store": "s3://bucket/x"}),
        "WITH DATA": desk.file(state.project, "fed.yaml", data={"digits": "s3://bucket/digits"}),
    }
    for file in (files["FILE"], files["STORED"]):
        config = load(file)
        records = Records(config.name)
        record_cluster(config, records)
        records.journal(CreationBegun(id="0123456789ab"))
        records.save_run(run_of(config))
    cure = state.cure.format(config=desk.folder / "user/.aws/config")
    for command in cases.of(COMMANDS, 3, always=("down",)):
        done = typed(*(files.get(word, word) for word in COMMANDS[command]))
        text = " ".join(done.output.split())
        assert "internal:" not in text, (command, text)
        assert done.exit_code == CredentialsError.exit_code, (command, text)
        assert cure in text.replace("\n", " "), (command, text)
        assert SECRET not in text


MFA = State(
    config=profile(f"{ROLE}source_profile = keys\nmfa_serial = arn:aws:iam::1:mfa/ann\n"),
    keys=f"[keys]\n{KEYS.format(secret=SECRET)}",
    says="",
    cure="",
)


def test_a_code_is_asked_for_once_and_the_session_is_the_command_lines_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's code is taken once, and a session that has ended is renewed beside a command
    that goes on, by the AWS CLI.
    """
    asked: list[str] = []
    desk.be_in(MFA)
    desk.aws.app.mfa_codes[:] = ["111111", "222222"]
    monkeypatch.setattr("getpass.getpass", lambda text: asked.append(text) or "111111")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    file = desk.file("work", artifacts={"store": "s3://bucket/x"})
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


def test_a_wrong_code_is_said_to_be_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.be_in(MFA)
    monkeypatch.setattr("getpass.getpass", lambda text: "000000")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(CredentialsError, match="invalid MFA one time pass code") as raised:
        AwsIdentity("work").ask_ahead()
    assert "next code" in str(raised.value.hint)


def test_a_wrong_clock_is_said_to_be_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.be_in(STATES["keys that are not valid"])
    ahead = Moments(lambda: time.time() + 7200.0)
    monkeypatch.setattr("cloudtrain.moments.MOMENTS", ahead)
    monkeypatch.setattr("cloudtrain.moments.hear", ahead.hear)
    with pytest.raises(CredentialsError) as raised:
        Ec2Client(load(desk.file("work")), FAST).ask("us-east-1", "DescribeRegions")
    assert "2 h ahead of that of AWS: run `sudo timedatectl" in str(raised.value.hint)


def test_one_session_serves_a_command_until_the_files_change(desk: Desk) -> None:
    desk.be_in(MFA)
    first = identity("work")
    assert identity("work") is first
    assert identity(None) is not first
    os.utime(desk.folder / "user/.aws/config", ns=(1, 1))
    assert identity("work") is not first


@pytest.mark.parametrize("as_its_end_is_armed", [False, True])
def test_credentials_that_die_between_request_and_rollback_leave_a_name(
    as_its_end_is_armed: bool, desk: Desk, own: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is billed, and nobody else knows its id."""
    desk.aws = own
    keys = STATES["keys that have ended"].environment
    desk.be_in(replace(STATES["keys that have ended"], environment={}))
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    ended = desk.aws.app.ended_keys
    monkeypatch.setattr(desk.aws.app, "ended_keys", [])
    begin = desk.aws.app._begin

    def begin_and_end(instance: Any, given: dict[str, Any]) -> None:
        begin(instance, given)
        desk.aws.app.ended_keys = ended

    def refuse(*_: Any) -> None:
        raise CredentialsError("CreateSchedule: the token has expired", hint="set new ones")

    monkeypatch.setattr(desk.aws.app, "_begin", begin_and_end)
    if as_its_end_is_armed:
        monkeypatch.setattr(Schedules, "arm", refuse)
    done = typed("up", desk.file(None), "--yes")
    text = " ".join(done.output.split())
    (instance,) = desk.aws.app.alive("us-east-1")
    assert done.exit_code == CredentialsError.exit_code, text
    assert f"may still exist and be billed: instance job-worker0 ({instance.id})" in text, text
    assert "set new ones" in text or "set AWS_ACCESS_KEY_ID" in text


def test_a_region_that_is_none_is_named_with_its_file(desk: Desk) -> None:
    """It is found as a store is opened, where no error of S3 can come yet."""
    desk.be_in(State(config="[profile work]\noutput = json\n", says="", cure=""))
    config = desk.folder / "user/.aws/config"
    config.write_text("[profile work]\nregion = us east 1\n")
    for opened in (open_store, open_data):
        with pytest.raises(CredentialsError, match="us east 1") as raised:
            opened("s3://bucket/x", project="work")
        assert f"`region` of that profile in {config}" in str(raised.value.hint)


def test_a_process_that_hangs_is_waited_for_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` asks for credentials several times; each would wait as long again."""
    state = STATES["a process that hangs"]
    desk.be_in(replace(state, files=process('echo x >>"$HOME/started"; exec sleep 30')))
    now = itertools.count(100.0, 0.03)
    monkeypatch.setattr("cloudtrain.moments.since_boot", lambda: next(now))
    its = AwsIdentity("work")
    for _ in range(9):  # which takes longer than the limit
        with pytest.raises(CredentialsError, match="no answer within") as raised:
            its.credentials()
        assert "/bin/login" in str(raised.value.hint)
    assert (desk.folder / "user/started").read_text() == "x\nx\n", "and again after the limit"
