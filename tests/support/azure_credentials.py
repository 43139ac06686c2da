"""Azure's credentials in every state that a user's machine may have them in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import RequestsTransport

from cloudtrain.identities import azure as identities
from tests.standins.azure_auth import CLIENT, SECRET, TENANT
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import Cloud
from tests.support import credential_desk
from tests.support.azure_parts import stand_in
from tests.support.credential_desk import Desk

SERVICE = {"AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT, "AZURE_CLIENT_SECRET": SECRET}
WORKLOAD = {
    "AZURE_TENANT_ID": TENANT,
    "AZURE_CLIENT_ID": CLIENT,
    "AZURE_FEDERATED_TOKEN_FILE": "/nowhere/token",
    "AZURE_TOKEN_CREDENTIALS": "WorkloadIdentityCredential",
}
NO_IMDS = {"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential"}


def fails(words: str) -> str:
    """A program `az` that ends like this."""
    return f"cat >&2 <<'EOF'\n{words}\nEOF\nexit 1"


@dataclass(frozen=True, kw_only=True)
class State(credential_desk.State):
    """What is on the user's machine, what Azure answers."""

    az: str | None = None
    """The program `az`, of the shell; None: not installed."""
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"AZURE_TOKEN_CREDENTIALS": "dev"}
    )
    authority: str = ""
    """What the authority refuses to sign in with."""


# Messages of the CLI and of the authority: Azure/azure-cli#31300, #14395, #21519 and
# https://learn.microsoft.com/entra/identity-platform/reference-error-codes.
AGAIN = "Interactive authentication is needed. Please run:\naz logout\naz login --tenant t1"
STATES = {
    "nothing at all": State(says="no credentials from", cure="run `az login`"),
    "az, never logged in": State(
        az=fails("ERROR: Please run 'az login' to setup account."),
        says="no credentials from|az login",
        cure="run `az login`",
    ),
    "a login that is over": State(
        az=fails(
            "ERROR: AADSTS700082: The refresh token has expired due to inactivity. The token was "
            f"issued on 2026-01-01 and was inactive for 90.00:00:00.\n{AGAIN}"
        ),
        says="AADSTS700082: The refresh token has expired",
        cure="run `az login --tenant t1`",
    ),
    "a password that was changed": State(
        az=fails(f"ERROR: AADSTS50173: The provided grant has expired. Trace ID: 1a\n{AGAIN}"),
        says="AADSTS50173: The provided grant has expired",
        cure="run `az login --tenant t1`",
    ),
    "a login without a second factor": State(
        az=fails(
            "ERROR: AADSTS50076: Due to a configuration change made by your administrator, or "
            "because you moved to a new location, you must use multi-factor authentication to "
            f"access '797f4846-ba00-4fd7-ba43-dac1f8f63013'.\n{AGAIN}"
        ),
        says="you must use multi-factor",
        cure="run `az login --tenant t1`, and confirm by your second factor",
    ),
    "az that prints no token": State(
        az="echo hello", says="Unexpected output from Azure CLI", cure="az account get-access-token"
    ),
    "az that hangs": State(
        az="exec sleep 60",
        says="Failed to invoke the Azure CLI",
        cure="az account get-access-token",
    ),
    "az that crashes": State(
        az=fails("Traceback (most recent call last):\nModuleNotFoundError: No module named 'msal'"),
        says="Traceback|ModuleNotFoundError",
        cure="az account get-access-token",
    ),
    "a secret that ended": State(
        environment=SERVICE,
        authority="secret-expired",
        says="AADSTS7000222",
        cure=f"az ad app credential reset --id {CLIENT}",
    ),
    "another tenant": State(
        environment={**SERVICE, "AZURE_TENANT_ID": "00000000-0000-4000-8000-0000000000ff"},
        says="Unable to get authority configuration",
        cure=f"az ad sp show --id {CLIENT}",
    ),
    "a tenant that is none": State(
        environment={**SERVICE, "AZURE_TENANT_ID": "my tenant"},
        says="[Ii]nvalid tenant",
        cure="AZURE_* variables",
    ),
    "a workload identity without its token": State(
        environment=WORKLOAD,
        says="No such file",
        cure="renew the token in AZURE_FEDERATED_TOKEN_FILE",
    ),
    "a machine without a managed identity": State(
        environment=NO_IMDS, says="ManagedIdentityCredential", cure="has no managed identity"
    ),
    "a subscription of another tenant": State(
        environment=SERVICE,
        refuses={"* *": "token-of-another-tenant"},
        says="wrong issuer",
        cure="az login --tenant a602cbf4-21c3-4761-b54e-acf397842b82",
    ),
    "a token that lacks claims": State(
        environment=SERVICE,
        refuses={"* *": "mfa-claims-of-a-policy"},
        says="disallowed by policy",
        cure="az login --tenant 3f145493-536c-40aa-8a6d-ca91dd64cd3b --claims-challenge eyJ",
    ),
    "a subscription that this login does not see": State(
        environment=SERVICE,
        refuses={"* *": "subscription-not-found"},
        says="was not found",
        cure="az account list --all",
    ),
}


class AzureDesk(Desk):
    """The machine of a user of Azure."""

    STATES = STATES
    SECRETS = (SECRET,)
    project = SUBSCRIPTION
    sections: ClassVar[Mapping[str, Any]] = {
        "placement": ["eastus"],
        "nodes": {"worker": {"machine": "Standard_D2s_v5"}},
    }
    bucket = "az://account/box"

    @staticmethod
    def account() -> AbstractContextManager[Cloud]:
        return stand_in()

    def be_in(self, state: State) -> Mapping[str, object]:
        tools = self.folder / "bin"
        tools.mkdir()
        if state.az is not None:
            (tools / "az").write_text(f"#!/bin/sh\n{state.az}\n")
            (tools / "az").chmod(0o755)
        for name in SERVICE:
            self.patch.delenv(name, raising=False)
        self.patch.setenv("PATH", f"{tools}:/usr/bin:/bin")
        self.patch.setenv("AZURE_CONFIG_DIR", str(self.folder / "azure"))
        for name, value in state.environment.items():
            self.patch.setenv(name, value)
        self.patch.setattr(self.cloud.app, "refuses", dict(state.refuses))
        self.patch.setattr(identities, "PROCESS_LIMIT", 0.3)
        sent = RequestsTransport.send

        def send(transport: RequestsTransport, request: Any, **given: Any) -> Any:
            if "169.254." in request.url:  # no machine of a cloud
                raise ServiceRequestError("no route to host")
            if state.authority and request.method == "POST" and "/token" in request.url:
                request.data = {**request.data, "client_secret": "old"}
            return sent(transport, request, **given)

        self.patch.setattr(RequestsTransport, "send", send)
        if state.authority:
            self.patch.setattr("tests.standins.azure_auth.WRONG_SECRET", state.authority)
        return {}
