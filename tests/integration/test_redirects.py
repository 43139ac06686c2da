"""A service that redirects to another host: no credential goes along."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google.auth
import pytest
from google.oauth2.credentials import Credentials as OfUser

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig, Endpoints
from cloudtrain.core.retry import Retry
from cloudtrain.identities.azure import AzureIdentity
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.base.timing import Timing
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.credentials import Credentials
from cloudtrain.stores import open_store

HIDDEN = "ya29.hidden-from-other-hosts"
ONCE = Timing(calls=Retry(pause=0.0, tries=1))


class Elsewhere:
    """Servers at two addresses of this machine: the first sends everybody to the second."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.asked = 0
        """Requests to the first."""
        outer = self

        class Second(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.heard.append(f"{self.command} {self.path}\n{self.headers}\n{body!r}")
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: object) -> None: ...

        class First(Second):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked += 1
                self.send_response(307)
                self.send_header("Location", f"http://127.0.0.2:{outer.second.server_port}/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = answer

        self.second = ThreadingHTTPServer(("127.0.0.2", 0), Second)
        self.first = ThreadingHTTPServer(("127.0.0.1", 0), First)
        self.url = f"http://127.0.0.1:{self.first.server_port}"


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    with contextlib.ExitStack() as stack:
        for server in (made.first, made.second):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield made


def signed_in(monkeypatch: pytest.MonkeyPatch, token: str | None = HIDDEN) -> None:
    own = OfUser(  # type: ignore[no-untyped-call]
        token,
        refresh_token=HIDDEN,
        token_uri="https://oauth2.googleapis.com/token",
        client_id="id",
        client_secret=HIDDEN,
    )
    monkeypatch.setattr(google.auth, "default", lambda scopes: (own, "p"))


def config(**endpoints: str) -> ClusterConfig:
    return ClusterConfig(
        name="m",
        provider="gcp",
        project="p",
        strategy="custom",
        nodes={},
        endpoints=Endpoints(**endpoints),
    )


def test_a_redirect_takes_no_token_of_google_along(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch)
    with contextlib.suppress(CloudtrainError):
        GcpClient(config(compute=elsewhere.url), ONCE).get("zones", "zones")
    with contextlib.suppress(CloudtrainError):
        list(open_store("gs://bucket/x", endpoint=elsewhere.url, project="p").list())
    assert len(elsewhere.heard) >= 2
    assert HIDDEN not in "".join(elsewhere.heard)


def test_a_redirect_takes_no_token_of_azure_along(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AzureIdentity, "token", lambda *_: HIDDEN)
    with contextlib.suppress(CloudtrainError):
        ArmClient(config(compute=elsewhere.url), ONCE).get("/subscriptions/p/resourceGroups")
    assert elsewhere.heard
    assert HIDDEN not in "".join(elsewhere.heard)


def test_a_redirect_takes_no_refresh_token_along(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(monkeypatch, token=None)
    with pytest.raises(CloudtrainError):
        Credentials(config(auth=f"{elsewhere.url}/token")).headers()
    assert elsewhere.asked
    assert elsewhere.heard == []


def test_a_redirect_takes_no_client_secret_along(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CLIENT_ID", "id"), ("TENANT_ID", "t"), ("CLIENT_SECRET", HIDDEN)):
        monkeypatch.setenv(f"AZURE_{name}", value)
    with pytest.raises(CloudtrainError):
        AzureIdentity(elsewhere.url).token("https://management.azure.com/.default")
    assert elsewhere.asked
    assert HIDDEN not in "".join(elsewhere.heard)
