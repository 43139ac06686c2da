"""A package index of real wheels, pypiserver's, which notes every request and who made it.

    python -m tests.support.package_index WHEELS LOG [USER:PASSWORD]

It prints its port and ends with its input. A node asks under a path of its own, `/NODE/simple/`:
the stand-ins' nodes share this machine's network, where addresses tell nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from wsgiref.util import shift_path_info

from packaging.utils import canonicalize_name, parse_wheel_filename
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.project import ROOT

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Request:
    """`kind`: "page", the list of a package's files, or "file"."""

    node: str
    kind: str
    package: str


class PackageIndex:
    def __init__(self, port: int, log: Path) -> None:
        self._port = port
        self._log = log

    def url(self, node: str) -> str:
        """For `index-url` in that node's pip.conf."""
        return f"http://{HOST}:{self._port}/{node}/simple/"

    def pip_conf(self, node: str) -> str:
        return f"[global]\nindex-url = {self.url(node)}\n"

    def requests(self) -> list[Request]:
        """All since the start or `forget`, in order."""
        return [Request(**json.loads(line)) for line in self._log.read_text().splitlines()]

    def forget(self) -> None:
        self._log.write_text("")

    def most(self, kind: str) -> int:
        """Of all packages: the most requests for one, from all nodes together."""
        counts = Counter(each.package for each in self.requests() if each.kind == kind)
        return max(counts.values(), default=0)


@contextmanager
def package_index(wheels: Path, log: Path, login: str = "") -> Iterator[PackageIndex]:
    """Serves the folder, to `login` alone if it is set, in a process of its own: its work is not
    the client's."""
    log.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.package_index", str(wheels), str(log), login],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:  # It ends with its stdin.
        assert process.stdout
        yield PackageIndex(int(process.stdout.readline()), log)


def noting(app: WSGIApplication, log: Path, login: str) -> WSGIApplication:
    """Notes each request before it is answered: one that is cut off counts, too."""
    lock = threading.Lock()
    wanted = f"Basic {b64encode(login.encode()).decode()}" if login else None

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        node = shift_path_info(environ) or ""
        if wanted not in (None, environ.get("HTTP_AUTHORIZATION")):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="i"')])
            return []
        _, kind, *rest = environ["PATH_INFO"].split("/")
        if rest and rest[0]:
            request = asdict(_request(node, kind, rest[-1] or rest[0]))
            with lock, log.open("a") as file:
                file.write(f"{json.dumps(request)}\n")
        return app(environ, start_response)

    return answer


def _request(node: str, kind: str, name: str) -> Request:
    if kind == "simple":
        return Request(node=node, kind="page", package=canonicalize_name(name))
    return Request(node=node, kind="file", package=parse_wheel_filename(name)[0])


class _Handler(WSGIRequestHandler):
    """Keeps connections open, as PyPI does, and prints nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: object) -> None:
        """The log has it."""


def main() -> None:
    import pypiserver

    wheels, log, login = Path(sys.argv[1]), Path(sys.argv[2]), "".join(sys.argv[3:])
    served = pypiserver.app(
        roots=[wheels], disable_fallback=True, authenticate=[], password_file="."
    )
    server = make_server(
        HOST, 0, noting(served, log, login), threaded=True, request_handler=_Handler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
