"""Git over HTTP as a hosting site has it: `git http-backend` behind a door that wants a token."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug import Request, Response
from werkzeug.serving import make_server


@dataclass
class GitServer:
    """Serves the bare repositories below `root`. `asked` has each path with its user:password."""

    root: Path
    token: str | None = None
    says: str = "no"
    """What it answers without the right token."""
    moved_to: str | None = None
    """Where it redirects everybody to instead."""
    address: str = "127.0.0.1"
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)

    def url(self, name: str) -> str:
        return f"http://{self.address}:{self.port}/{name}"

    def reset(self) -> None:
        self.asked.clear()

    @property
    def credentials(self) -> set[str]:
        return {given for _, given in self.asked}

    def answer(self, request: Request) -> Response:
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        given = base64.b64decode(value).decode() if kind == "Basic" else value
        self.asked.append((request.path, given))
        if self.moved_to:
            return Response(status=302, headers={"Location": self.moved_to + request.full_path})
        if self.token is not None and given.partition(":")[2] != self.token:
            said = self.says.replace("GIVEN", given.partition(":")[2])
            headers = {"WWW-Authenticate": 'Basic realm="git"'}
            return Response(said, status=401, headers=headers)
        return self.backend(request)

    def backend(self, request: Request) -> Response:
        """https://git-scm.com/docs/git-http-backend"""
        done = subprocess.run(
            ["git", "http-backend"],
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "2",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "GIT_CONFIG_KEY_1": "uploadpack.allowFilter",
                "GIT_CONFIG_VALUE_1": "true",
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query_string.decode(),
                "REQUEST_METHOD": request.method,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            },
            input=request.get_data(),
            capture_output=True,
            check=False,
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        return Response(body, status=status, headers=headers)


@contextlib.contextmanager
def git_server(root: Path, **options: Any) -> Iterator[GitServer]:
    server = GitServer(root, **options)
    application = Request.application(server.answer)
    http = make_server(server.address, 0, application, threaded=True)
    server.port = http.port
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
