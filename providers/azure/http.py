"""libcloud's connection to Resource Manager, for any endpoint and any credential."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from libcloud.common.azure_arm import AzureJsonResponse, AzureResourceManagementConnection
from libcloud.common.base import Connection

from cloudtrain.core.errors import CloudConfigError, Scope
from cloudtrain.providers.azure import faults
from cloudtrain.providers.base import session

TIMEOUT = 60.0
"""Seconds without data before a request times out."""

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ArmAnswer:
    status: int
    headers: Mapping[str, str]
    """Headers by name in lower case."""
    body: Any


class ArmResponse(AzureJsonResponse):  # type: ignore[misc, unused-ignore]
    def success(self) -> bool:
        return 200 <= int(self.status) < 300

    def parse_error(self) -> str:
        connection: Any = self.connection
        raise faults.of_answer(
            connection.asked,
            status=self.status,
            headers=self.headers,
            body=str(self.body),
            reach=connection.reach,
        )


class ArmConnection(AzureResourceManagementConnection):  # type: ignore[misc, unused-ignore]
    """HTTP connection for any endpoint and credential: libcloud's own supports only a host name and
    a login with a client secret.
    """

    responseCls = ArmResponse
    timeout = TIMEOUT
    asked = ""
    reach: Scope = "region"
    access_token = ""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CloudConfigError(
                f"{url!r} is not an endpoint URL", hint="check `endpoints` and ARM_ENDPOINT"
            )
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        super().__init__("", "", port=port)  # type: ignore[no-untyped-call]
        self.secure = int(secure)  # libcloud's constructor does not pass it on
        self.host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.request_path = parts.path
        # Skips libcloud's own `connect`, which logs in.
        Connection.connect(self)  # type: ignore[no-untyped-call]
        http: Any = self.connection
        if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
            # As azure-identity does; libcloud reads SSL_CERT_FILE and certifi only.
            http.ca_cert = None
        session.prepare(http.session, "azure", "Azure")

    def call(
        self,
        asked: str,
        method: str,
        url: str,
        body: Tree | None,
        token: str,
        reach: Scope = "region",
    ) -> ArmAnswer:
        self.asked, self.reach, self.access_token = asked, reach, token
        answer = Connection.request(self, url, data=body, method=method)  # type: ignore[no-untyped-call]
        return ArmAnswer(status=answer.status, headers=answer.headers, body=answer.object)

    def encode_data(self, data: Any) -> str:
        return json.dumps(data)
