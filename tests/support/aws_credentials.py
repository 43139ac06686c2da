"""AWS's credentials in every state that a user's machine may have them in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from cloudtrain.identities import aws as identities
from tests.standins.cloud import Cloud, start
from tests.support import credential_desk
from tests.support.credential_desk import Desk

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


@dataclass(frozen=True, kw_only=True)
class State(credential_desk.State):
    """What is on the user's machine."""

    config: str = ""
    keys: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    project: str | None = "work"


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


class AwsDesk(Desk):
    """The machine of a user of AWS."""

    STATES = STATES
    SECRETS = (SECRET,)
    project: str | None = "work"
    sections: ClassVar[Mapping[str, Any]] = {
        "placement": ["us-east-1a"],
        "nodes": {"worker": {"machine": "m6i.xlarge"}},
    }
    bucket = "s3://bucket"
    sample = 3

    account = staticmethod(account)

    def be_in(self, state: State) -> Mapping[str, object]:
        self.patch.setattr(identities, "PROCESS_LIMIT", 0.2)
        self.patch.setattr("botocore.credentials.EC", None)  # without its crt
        self.project = state.project
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
            "AWS_ENDPOINT_URL": self.cloud.url,
            "AWS_CONFIG_FILE": str(config),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
            **state.environment,
        }
        for name, value in told.items():
            self.patch.setenv(name, value)
        return {"config": config}
