"""Credentials that login actions of GitHub leave for the steps after them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudtrain.identities import google

ANSWERS = {
    "/oidc": {"value": "GITHUB.JWT"},
    "/v1/token": {"access_token": "STS", "token_type": "Bearer", "expires_in": 3600},
    "/v1/projects/-/serviceAccounts/train": {
        "accessToken": "SA",
        "expireTime": "2099-01-01T00:00:00Z",
    },
}


@contextmanager
def services(asked: list[tuple[str, str, str]]) -> Iterator[str]:
    """GitHub's endpoint of tokens and Google's two, which record path, Authorization and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked.append((self.path, self.headers.get("Authorization", ""), body))
            (answer,) = [a for path, a in ANSWERS.items() if self.path.startswith(path)]
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_googles_action_leaves_a_file_that_exchanges_githubs_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is that of google-github-actions/auth, src/client/workload_identity_federation.ts:
    https://github.com/google-github-actions/auth (2026-11)."""
    asked: list[tuple[str, str, str]] = []
    with services(asked) as url:
        file = tmp_path / "gha-creds.json"
        file.write_text(
            json.dumps(
                {
                    "type": "external_account",
                    "audience": "//iam.googleapis.com/projects/1/locations/global/"
                    "workloadIdentityPools/github/providers/repository",
                    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                    "token_url": f"{url}/v1/token",
                    "service_account_impersonation_url": f"{url}/v1/projects/-/serviceAccounts/"
                    "train@my-project.iam.gserviceaccount.com:generateAccessToken",
                    "credential_source": {
                        "url": f"{url}/oidc?audience=x",
                        "headers": {"Authorization": "Bearer OF-THE-RUNNER"},
                        "format": {"type": "json", "subject_token_field_name": "value"},
                    },
                }
            )
        )
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
        from google.auth.transport.requests import Request

        credentials, project = google.find()
        credentials.refresh(Request())
    assert (credentials.token, project) == ("SA", "my-project")
    assert [path.partition("?")[0].rpartition("/")[2] for path, _, _ in asked] == [
        "oidc",
        "token",
        "train@my-project.iam.gserviceaccount.com:generateAccessToken",
    ]
    assert [authorization for _, authorization, _ in asked] == [
        "Bearer OF-THE-RUNNER",
        "",
        "Bearer STS",
    ]
    assert "GITHUB.JWT" in asked[1][2]
