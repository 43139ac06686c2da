"""Google's credentials in every state that a user's machine may have them in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from google.auth.transport.requests import Request

from tests.standins.cloud import Cloud, start
from tests.support import credential_desk
from tests.support.credential_desk import Desk

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
class State(credential_desk.State):
    """What is on the user's machine, what Google answers."""

    file: Mapping[str, Any] | str | None = None
    """The application default credentials; "key": a service account's key."""
    named: bool = False
    """Whether GOOGLE_APPLICATION_CREDENTIALS names them."""
    answers: Mapping[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """By a part of the URL that is asked."""


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


class GcpDesk(Desk):
    """The machine of a user of Google Cloud."""

    STATES = STATES
    SECRETS = (SECRET, "-----BEGIN")
    project = "my-project"
    sections: ClassVar[Mapping[str, Any]] = {
        "placement": ["us-east4-c"],
        "nodes": {"worker": {"machine": "n1-standard-4"}},
    }
    bucket = "gs://bucket"

    @staticmethod
    def account() -> AbstractContextManager[Cloud]:
        return start("gcp", thread=True, delay=0.0, project="my-project")

    def be_in(self, state: State) -> Mapping[str, object]:
        home = self.folder / "user"
        config = home / ".config/gcloud"
        config.mkdir(parents=True)
        name = "key.json" if state.named else "application_default_credentials.json"
        path = (home if state.named else config) / name
        if state.file == "key":
            path.write_bytes(
                self.cloud.app.service_account(self.folder, self.cloud.url).read_bytes()
            )
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
        # google-auth would start this machine's own gcloud for each sign-in.
        self.patch.setattr("google.auth._cloud_sdk.get_project_id", lambda: None)
        self.patch.setenv(
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{self.cloud.url}/compute/v1/"
        )
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
        self.patch.setattr(self.cloud.app, "refuses", dict(state.refuses))
        self.patch.setattr(self.cloud.app.authority, "caller", lambda _: "somebody@p.example")
        return {"file": path}
