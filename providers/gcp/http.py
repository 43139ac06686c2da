"""libcloud's connection to Compute Engine with google-auth's credentials and a configurable
endpoint.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

from libcloud.common.base import ConnectionUserAndKey
from libcloud.compute.drivers.gce import GCEConnection, GCEResponse

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.providers.base import session
from cloudtrain.providers.base.timing import require_network
from cloudtrain.providers.gcp.credentials import Credentials

GOOGLE = "https://compute.googleapis.com/compute/v1"
OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
"""Environment variable of gcloud for a custom endpoint:
https://cloud.google.com/sdk/gcloud/reference/topic/configurations
"""

SECONDS = 60.0
"""Timeout of an HTTP call, in seconds."""
WAITING = 150.0
"""Timeout in seconds of a call that waits for an operation; Google may take 120 s to answer it."""


def endpoint(config: ClusterConfig) -> str | None:
    """Return the URL of a custom Compute Engine endpoint, without a trailing slash; None for
    Google's own.
    """
    url = config.endpoints.compute or os.environ.get(OVERRIDE)
    if not url:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CloudConfigError(
            f"{url!r} is not an endpoint",
            hint="use a URL such as https://compute.googleapis.com/compute/v1/",
        )
    path = parts.path.rstrip("/") or "/compute/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


class GcpResponse(GCEResponse):  # type: ignore[misc, unused-ignore]
    """HTTP response that keeps all errors and headers, which libcloud's class drops; `faults` maps
    them.
    """

    def parse_body(self) -> Any:
        try:
            return json.loads(str(self.body))
        except ValueError:
            return None


class GcpConnection(GCEConnection):  # type: ignore[misc, unused-ignore]
    """Connection that does not use libcloud's own constructor.

    That constructor would request a token in libcloud's way, store it in the user's home, and use a
    fixed endpoint.
    """

    responseCls = GcpResponse

    def __init__(self, url: str, credentials: Credentials, seconds: float) -> None:
        ConnectionUserAndKey.__init__(self, "", "", url=url, timeout=seconds)  # type: ignore[no-untyped-call]
        require_network(url)
        self.gce_params = None
        self._credentials = credentials

    def connect(
        self, host: Any = None, port: Any = None, base_url: Any = None, **kwargs: Any
    ) -> None:
        super().connect(host, port, base_url, **kwargs)  # type: ignore[no-untyped-call]
        http: Any = self.connection
        if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
            # As google-auth does; libcloud reads SSL_CERT_FILE and certifi only.
            http.ca_cert = None
        session.prepare(http.session, "gcp", "Google Cloud")

    def pre_connect_hook(self, params: Any, headers: Any) -> tuple[Any, Any]:
        return params, {**headers, **self._credentials.headers()}

    def morph_action_hook(self, action: str) -> str:
        return f"{self.request_path}/{action}"
