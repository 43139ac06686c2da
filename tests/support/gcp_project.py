"""A stand-in for Compute Engine that answers, and what a test asks it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth.credentials import CredentialsWithRegionalAccessBoundary
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from tests.standins.gcp import GcpStandIn
from tests.standins.serve import serving

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ZONE = "us-east4-c"
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


class Project:
    """A stand-in that answers, and what a test asks it with."""

    def __init__(self, stand_in: GcpStandIn, url: str, folder: Path) -> None:
        self.stand_in, self.url = stand_in, url
        self.key_file = stand_in.service_account(folder, url)
        self.credentials = service_account.Credentials.from_service_account_file(
            str(self.key_file), scopes=[SCOPE]
        )
        self.http = AuthorizedSession(self.credentials)
        self.base = f"{url}/compute/v1/projects/test-project"

    def ask(self, verb: str, path: str, body: Any = None, **query: Any) -> requests.Response:
        return self.http.request(verb, f"{self.base}/{path}".rstrip("/"), json=body, params=query)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def names(self, path: str, **query: Any) -> list[str]:
        return [item["name"] for item in self.get(path, **query).get("items", [])]

    def done(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """The operation at its end."""
        answer = self.ask(verb, path, body, **query)
        assert answer.status_code == 200, answer.text
        return self.waited(answer.json())

    def waited(self, operation: dict[str, Any]) -> dict[str, Any]:
        scope = operation["selfLink"].partition("/test-project/")[2]
        told: dict[str, Any] = self.ask("POST", f"{scope}/wait").json()
        return told

    def make(self, name: str = "one", zone: str = ZONE, **changes: Any) -> dict[str, Any]:
        return self.done("POST", f"zones/{zone}/instances", vm(name, zone, **changes))

    def refusal(self, verb: str, path: str, body: Any = None, **query: Any) -> tuple[int, str, str]:
        """Status, reason, message."""
        answer = self.ask(verb, path, body, **query)
        assert answer.status_code >= 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        return answer.status_code, error["errors"][0]["reason"], error["message"]

    def refused_vm(self, zone: str = ZONE, **changes: Any) -> str:
        """Why such a VM is refused, with 400 or 404."""
        status, _, message = self.refusal(
            "POST", f"zones/{zone}/instances", vm(zone=zone, **changes)
        )
        assert status in (400, 404)
        assert self.stand_in.holdings() == []
        return message


def vm(name: str = "one", zone: str = ZONE, **changes: Any) -> dict[str, Any]:
    """Parts that are None are left out."""
    machine = changes.pop("machine", "n1-standard-8")
    disk = changes.pop("disk", {"sourceImage": UBUNTU, "diskSizeGb": "50"})
    body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [
            {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
        ],
        **changes,
    }
    return {key: value for key, value in body.items() if value is not None}


def gpu(kind: str, count: int = 1, zone: str = ZONE) -> list[dict[str, Any]]:
    path = f"projects/test-project/zones/{zone}/acceleratorTypes/{kind}"
    return [{"acceleratorType": path, "acceleratorCount": count}]


SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
HOUR = {"maxRunDuration": {"seconds": 3600}}
STAYS = {"onHostMaintenance": "TERMINATE"}


def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    # google-auth asks iamcredentials.googleapis.com in a thread; nothing turns that off.
    monkeypatch.setattr(
        CredentialsWithRegionalAccessBoundary,
        "_is_regional_access_boundary_lookup_required",
        lambda _: False,
    )
    stand_in = GcpStandIn()
    stand_in.delay = 0.005
    with serving(stand_in) as url:
        yield Project(stand_in, url, tmp_path)
    assert stand_in.wrong == [], "it answered what Google never would"
