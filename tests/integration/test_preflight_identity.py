"""A node that gets no token of its identity is named before training, and no token is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cloudtrain.core.cloud import clouds
from cloudtrain.core.errors import PreflightError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.node import metadata, probe
from cloudtrain.runs.preflight import preflight, token_query
from tests.integration.test_preflight import Here, cluster, here
from tests.support.sources import walked

__all__ = ["here"]

TOKEN = "ya29.a-token-that-nobody-sees"
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
ROLE = "/latest/meta-data/iam/security-credentials/"
GCP = "/computeMetadata/v1/instance/service-accounts/default/"
AZURE = (
    "/metadata/identity/oauth2/token?api-version=2018-02-01"
    "&resource=https%3A%2F%2Fstorage.azure.com%2F"
)
GOOD: Mapping[str, Mapping[str, str]] = {
    "gcp": {
        f"{GCP}token": json.dumps({"access_token": TOKEN, "expires_in": 3599}),
        f"{GCP}scopes": f"{CLOUD_PLATFORM}\n",
    },
    "aws": {ROLE: "trainer", f"{ROLE}trainer": json.dumps({"AccessKeyId": TOKEN})},
    "azure": {AZURE: json.dumps({"access_token": TOKEN, "token_type": "Bearer"})},
}
"""What each cloud's documentation shows, by path: the sources of TokenQuery."""
MARKS = {
    "gcp": ("Metadata-Flavor", "Google"),
    "aws": ("X-aws-ec2-metadata-token", "a session"),
    "azure": ("Metadata", "true"),
}


@contextmanager
def metadata_service(cloud: str, answers: Mapping[str, str]) -> Iterator[str]:
    """A metadata service: 404 for what it does not have, 403 without the cloud's own header."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            ok = cloud == "aws" and self.path == "/latest/api/token"
            ok = ok and bool(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
            self.answer(200 if ok else 405, "a session" if ok else "no")

        def do_GET(self) -> None:
            name, value = MARKS[cloud]
            if self.headers[name] != value:
                self.answer(403, "missing header")
            elif self.path in answers:
                self.answer(200, answers[self.path])
            else:
                self.answer(404, '{"error":"invalid_request"}')

        def answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def config(cloud: str, **changes: Any) -> ClusterConfig:
    given: dict[str, Any] = {"name": "mnist", "provider": cloud, "strategy": "custom", "nodes": {}}
    return ClusterConfig(**{**given, "identity": "trainer", **changes})


def query(cloud: str, address: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Tried once: a test waits for nothing."""
    monkeypatch.setenv("CLOUDTRAIN_METADATA", address)
    found = token_query(config(cloud))
    assert found is not None
    return {**found, "seconds": 0.0}


@pytest.mark.parametrize("cloud", GOOD)
def test_nodes_that_get_a_token_pass_and_keep_it(
    here: Here, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata_service(cloud, GOOD[cloud]) as address:
        found = preflight(cluster(), here, identity=query(cloud, address, monkeypatch))
    assert found.warnings == ()
    assert not any(TOKEN in ran for ran in here.ran)


@pytest.mark.parametrize(
    ("cloud", "answers", "words"),
    [
        ("gcp", {}, f"HTTP 404 for {GCP}token"),
        (
            "gcp",
            {**GOOD["gcp"], f"{GCP}scopes": "https://www.googleapis.com/auth/devstorage.read_only"},
            f"this VM was not created with the scope {CLOUD_PLATFORM}",
        ),
        ("aws", {}, f"HTTP 404 for {ROLE}"),
        (
            "aws",
            {
                ROLE: "trainer",
                f"{ROLE}trainer": json.dumps(
                    {"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume it"}
                ),
            },
            "AssumeRoleUnauthorizedAccess EC2 cannot assume it",
        ),
        ("azure", {}, f'HTTP 404 for {AZURE} {{"error":"invalid_request"}}'),
        ("azure", {AZURE: "[]"}, "is no JSON object"),
        ("azure", {AZURE: f"<{TOKEN}>"}, "is no JSON object"),
    ],
)
def test_a_node_without_a_token_is_named_with_the_reason(
    here: Here,
    cloud: str,
    answers: Mapping[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with metadata_service(cloud, answers) as address, pytest.raises(PreflightError) as refused:
        preflight(cluster(1), here, identity=query(cloud, address, monkeypatch))
    text = str(refused.value)
    assert text.startswith("mnist-worker0: no token of `identity` from the metadata service: ")
    assert words in text
    assert text.endswith(": run `cloudtrain check`")
    assert TOKEN not in text


def test_a_service_that_is_blocked_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_service("gcp", {}) as address:
        pass
    with pytest.raises(PreflightError, match=f"{address} does not answer"):
        preflight(cluster(1), here, identity=query("gcp", address, monkeypatch))


def test_a_token_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, str] = {}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        answers.update(GOOD["gcp"])

    monkeypatch.setattr(metadata.time, "sleep", sleep)
    with metadata_service("gcp", answers) as address:
        how = {**query("gcp", address, monkeypatch), "seconds": 60.0}
        assert metadata.refusal(how) == ""
    assert slept == [metadata.PAUSE]


def test_only_nodes_with_an_identity_are_asked(here: Here) -> None:
    assert token_query(config("gcp", identity=None)) is None
    assert token_query(config("local")) is None
    assert all(token_query(config(cloud.name)) for cloud in clouds())
    assert preflight(cluster(1), here).warnings == ()


def test_a_probe_without_an_identity_loads_no_http() -> None:
    """It takes longer than the rest of a probe's start."""
    paths = [Path(str(module.__file__)) for module in (probe, metadata)]
    top = [node for path in paths for node in walked(path) if hasattr(node, "names")]
    at_top = [each.name for node in top if node.col_offset == 0 for each in node.names]  # type: ignore[attr-defined]
    assert not any(name.startswith(("http", "urllib")) for name in at_top)
