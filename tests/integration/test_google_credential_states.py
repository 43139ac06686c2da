"""Google's credentials in every state that a user's machine may have them in, in every command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from google.auth.transport.requests import Request

from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan, tasks
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load
from cloudtrain.errors import CredentialsError
from cloudtrain.events import CreationBegun
from cloudtrain.run_record import Run
from cloudtrain.state import Records
from tests.standins.cloud import Cloud, start
from tests.support.lanes import Cases

LOGIN = "gcloud auth application-default login"
SECRET = "1//the-refresh-token"
USER = {
    "type": "authorized_user",
    "client_id": "764086051850-x.apps.googleusercontent.com",
    "client_secret": "not so secret",
    "refresh_token": SECRET,
}
TARGET = "train@my-project.iam.gserviceaccount.com"
IMPERSONATED = {
    "type": "impersonated_service_account",
    "source_credentials": USER,
    "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/"
    f"serviceAccounts/{TARGET}:generateAccessToken",
}
EXTERNAL = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"file": "{home}/oidc-token"},
}


def grant(description: str, **more: str) -> tuple[int, dict[str, Any]]:
    """What Google's token endpoint answers: RFC 6749, 5.2."""
    return 400, {"error": "invalid_grant", "error_description": description, **more}


@dataclass(frozen=True, kw_only=True)
class State:
    """What is on the user's machine, what Google answers, and the command that cures it."""

    file: Mapping[str, Any] | str | None = None
    """The application default credentials; "key": a service account's key."""
    named: bool = False
    """Whether GOOGLE_APPLICATION_CREDENTIALS names them."""
    answers: Mapping[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """By a part of the URL that is asked."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """What Compute Engine refuses, of the corpus."""
    says: str
    cure: str


DENIED = {
    "error": {
        "code": 403,
        "message": "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may "
        "not exist).",
        "status": "PERMISSION_DENIED",
    }
}
STATES = {
    "no credentials at all": State(says="credentials were not found", cure=LOGIN),
    "a file that is not there": State(
        named=True, says="was not found", cure="unset GOOGLE_APPLICATION_CREDENTIALS"
    ),
    "a file that is no JSON": State(
        file="{not json", named=True, says="not a valid json", cure="correct {file}"
    ),
    "a file of no known type": State(
        file={"type": "nobody"}, named=True, says="type", cure="correct {file}"
    ),
    "a login that lacks fields": State(
        file={"type": "authorized_user"}, says="cannot be read|fields", cure=LOGIN
    ),
    "a login that is over": State(
        file=USER,
        answers={"/token": grant("Token has been expired or revoked.")},
        says="expired or revoked",
        cure=LOGIN,
    ),
    "a login that a company wants anew each day": State(
        file=USER,
        answers={"/token": grant("reauth related error", error_subtype="invalid_rapt")},
        says="[Rr]eauth",
        cure=LOGIN,
    ),
    "a login without a quota project": State(
        file=USER,
        answers={"/token": (200, {"access_token": "STAND-IN", "expires_in": 3600})},
        refuses={"* *": "quota-project-not-set"},
        says="requires a quota project",
        cure="gcloud auth application-default set-quota-project my-project",
    ),
    "a user of no project": State(
        file=USER,
        answers={"/token": (200, {"access_token": "STAND-IN", "expires_in": 3600})},
        refuses={"* *": "permission-denied"},
        says="permission for",
        cure="gcloud projects add-iam-policy-binding my-project",
    ),
    "a project that is suspended": State(
        file=USER,
        answers={"/token": (200, {"access_token": "STAND-IN", "expires_in": 3600})},
        refuses={"* *": "project-suspended"},
        says="has been suspended",
        cure="console.cloud.google.com/appeal?project=my-project",
    ),
    "a service account that may not be impersonated": State(
        file=IMPERSONATED,
        answers={
            "/token": (200, {"access_token": "STAND-IN", "expires_in": 3600}),
            "generateAccessToken": (403, DENIED),
        },
        says="impersonated",
        cure=f"add-iam-policy-binding {TARGET}",
    ),
    "an impersonation whose login is over": State(
        file=IMPERSONATED,
        answers={"/token": grant("Token has been expired or revoked.")},
        says="expired or revoked",
        cure=f"{LOGIN} --impersonate-service-account={TARGET}",
    ),
    "a workload identity without its token": State(
        file=EXTERNAL, named=True, says="oidc-token", cure="renew the token of"
    ),
    "a key that was revoked": State(
        file="key",
        named=True,
        answers={"/token": grant("Invalid JWT Signature.")},
        says="Invalid JWT Signature",
        cure="gcloud iam service-accounts keys create",
    ),
    "a key on a machine whose clock is wrong": State(
        file="key",
        named=True,
        answers={
            "/token": grant(
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable "
                "timeframe. Check your iat and exp values in the JWT claim."
            )
        },
        says="short-lived",
        cure="sudo timedatectl set-ntp true",
    ),
}


@pytest.fixture(scope="module")
def gcp() -> Iterator[Cloud]:
    with start("gcp", thread=True, delay=0.0, project="my-project") as gcp:
        yield gcp


@dataclass
class Desk:
    """A user's machine: home, files, environment."""

    folder: Path
    gcp: Cloud
    patch: pytest.MonkeyPatch

    def be_in(self, state: State) -> Path:
        home = self.folder / "user"
        config = home / ".config/gcloud"
        config.mkdir(parents=True)
        path = home / "key.json" if state.named else config / "application_default_credentials.json"
        if state.file == "key":
            path.write_bytes(self.gcp.app.service_account(self.folder, self.gcp.url).read_bytes())
        elif isinstance(state.file, str):
            path.write_text(state.file)
        elif state.file is not None:
            told = json.loads(json.dumps(state.file).replace("{home}", str(home)))
            path.write_text(json.dumps(told))
        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
            self.patch.delenv(name, raising=False)
        self.patch.setenv("HOME", str(home))
        self.patch.setenv("CLOUDSDK_CONFIG", str(config))
        self.patch.setenv("NO_GCE_CHECK", "true")
        self.patch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{self.gcp.url}/compute/v1/")
        if state.named:
            self.patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        asked = Request.__call__

        def answer(request: Request, url: str, *given: Any, **more: Any) -> Any:
            for part, (status, body) in state.answers.items():
                if part in url:
                    data = json.dumps(body).encode()
                    return type("Answer", (), {"status": status, "data": data, "headers": {}})()
            return asked(request, url, *given, **more)

        self.patch.setattr(Request, "__call__", answer)
        self.patch.setattr(self.gcp.app, "refuses", dict(state.refuses))
        self.patch.setattr(self.gcp.app.authority, "caller", lambda _: "somebody@p.example")
        return path

    def file(self, name: str = "job.yaml", **sections: Any) -> Path:
        sections = {
            "provider": "gcp",
            "project": "my-project",
            "strategy": "custom",
            "placement": ["us-east4-c"],
            "network": {"ssh_from": "203.0.113.7/32"},
            "nodes": {"worker": {"machine": "n1-standard-4"}},
            "train": {"command": "true"},
            **sections,
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump({"name": path.stem, **sections}))
        return path


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, gcp: Cloud, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "cloudtrain.commands.accounts.missing_extra",
        lambda name: None if name in ("gcp", "local") else "libcloud",
    )
    for place in ("providers.base.timing", "stores.objects"):
        monkeypatch.setattr(f"cloudtrain.{place}.no_network", lambda *_, **__: None)
    return Desk(tmp_path, gcp, monkeypatch)


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "FILE"),
    "up": ("up", "FILE", "--yes"),
    "down": ("down", "job", "--yes"),
    "status": ("status", "job"),
    "ls --cloud": ("ls", "--cloud"),
    "gc": ("gc", "--yes"),
    "fetch": ("fetch", "stored"),
    "a store": ("check", "STORED"),
}
OF_THE_STORE = ("fetch", "a store")


@pytest.mark.parametrize("name", STATES)
def test_every_command_names_the_command_that_cures_it(name: str, desk: Desk, cases: Cases) -> None:
    state = STATES[name]
    file = desk.be_in(state)
    files = {
        "FILE": desk.file(),
        "STORED": desk.file("stored.yaml", artifacts={"store": "gs://bucket/x"}),
    }
    for each in files.values():
        config = load(each)
        records = Records(config.name)
        record_cluster(config, records)
        records.journal(CreationBegun(id="0123456789ab"))
        run = Run(
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
        records.save_run(run)
    # What Compute Engine alone refuses, a store does not.
    known = {c: w for c, w in COMMANDS.items() if not (state.refuses and c in OF_THE_STORE)}
    for command in cases.of(known, 1, always=("down",)):
        words = [str(files.get(word, word)) for word in known[command]]
        done = CliRunner().invoke(cli, words)
        text = " ".join(done.output.split())
        assert "internal:" not in text, (command, text)
        assert done.exit_code == CredentialsError.exit_code, (command, text)
        assert state.cure.format(file=file) in text, (command, text)
        assert re.search(state.says, text), (command, text)
        assert SECRET not in text
        assert "-----BEGIN" not in text
