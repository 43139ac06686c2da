"""HTTP client of all clouds: libcloud's connections, to any endpoint and with any credential."""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from libcloud.common.base import Connection, Response

from cloudtrain.core import moments, recorder
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudConfigError, TransientError
from cloudtrain.providers.base.faults import Table, seconds
from cloudtrain.providers.base.timing import require_network

TIMEOUT = 60.0
"""Seconds without data before a request times out."""
CUT_OFF = "cut off"
"""Our code for an answer that is not whole."""

Headers = Mapping[str, str]
Tree = Mapping[str, Any]
"""A JSON object."""
Sign = Callable[["CloudConnection", Headers], Headers]


@dataclass(frozen=True, kw_only=True)
class CloudAnswer:
    """One answer of a cloud."""

    status: int
    headers: Headers
    """Headers by name in lower case."""
    text: str
    body: Any
    """The text, parsed; None with an error's status."""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> float:
        """Seconds to wait, by its headers."""
        return seconds(self.headers) or 0.0


def user_authorities() -> str | None:
    """The user's own file of CA certificates, as google-auth and azure-identity take it; libcloud
    reads SSL_CERT_FILE and certifi only."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")


def parse_json(text: str) -> Any:
    """Parse a body; None for an empty one. Raises ValueError if it is truncated or not JSON."""
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise ValueError(f"the response is truncated or not JSON: {error}") from error


def error_in(text: str) -> Any:
    """The `error` of an answer in JSON; None without one."""
    try:
        return parse_json(text)["error"]
    except (ValueError, LookupError, TypeError):
        return None


def require_url(url: str, hint: str) -> str:
    """The URL. Raises CloudConfigError for anything else."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CloudConfigError(f"{url!r} is not an endpoint URL", hint=hint)
    return url


class HttpClient:
    """Sends the requests of one cloud. Each of its connections is used by one thread at a time and
    kept open for the next caller. Thread-safe.

    `title`: the cloud as users know it; `table`: its faults. `parse` raises ValueError for a
    truncated text. `timeout`: seconds without data, or to connect and without data."""

    def __init__(
        self,
        cloud: str,
        title: str,
        table: Table,
        *,
        parse: Callable[[str], Any] | None = None,
        timeout: float | tuple[float, float] = TIMEOUT,
        authorities: Callable[[], str | None] = user_authorities,
    ) -> None:
        self.cloud, self.title, self.timeout = cloud, title, timeout
        self.authorities = authorities
        self._table, self._parse = table, parse
        self.idle: dict[str, deque[CloudConnection]] = defaultdict(deque)
        """Open connections that nobody uses, by URL."""

    def ask(
        self,
        asked: str,
        url: str,
        method: str,
        path: str,
        *,
        headers: Headers,
        params: Headers | None = None,
        body: Tree | None = None,
        form: str | None = None,
        sign: Sign | None = None,
    ) -> CloudAnswer:
        """Send one request to a path below `url`, with a body of JSON or a form, and return the
        answer, whatever its status. `sign` returns the headers to send for those that libcloud
        would. Raises CloudError; `asked` names the request in it."""
        headers = {"Content-Type": "application/json", **headers}
        data = json.dumps(body) if body else form
        with self._table.mapped(asked), self._connection(url) as connection:
            connection.sign = sign
            send: Any = connection.request
            got = send(path, dict(params or {}), data, headers, method, retry_failed=False)
        parsed = None
        if 200 <= got.status < 300:
            try:
                parsed = (self._parse or parse_json)(got.body)
            except ValueError as error:
                raise TransientError(f"{asked}: {error}", code=CUT_OFF) from error
        return CloudAnswer(status=got.status, headers=got.headers, text=got.body, body=parsed)

    @contextmanager
    def _connection(self, url: str) -> Iterator[CloudConnection]:
        try:
            connection = self.idle[url].pop()
        except IndexError:
            connection = CloudConnection(self, url)
        try:
            yield connection
        finally:
            self.idle[url].append(connection)


class _Response(Response):  # type: ignore[misc, unused-ignore]
    def success(self) -> bool:
        return True


class CloudConnection(Connection):  # type: ignore[misc, unused-ignore]
    """Connection to one endpoint. libcloud's own of each cloud support fewer endpoints and logins,
    and drop what an error's answer says."""

    responseCls = _Response
    driver: Any = SimpleNamespace(name="cloudtrain")
    connection: Any
    action: str
    method: str
    data: str
    sign: Sign | None = None

    def __init__(self, client: HttpClient, url: str) -> None:
        parts = urlsplit(require_url(url, "check `endpoints`, and the cloud's own variable for it"))
        require_network(url)
        host = str(parts.hostname)
        secure = parts.scheme == "https"
        super().__init__(  # type: ignore[no-untyped-call]
            secure=secure,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port or (443 if secure else 80),
        )
        self.request_path = parts.path.rstrip("/")
        self.connect()  # type: ignore[no-untyped-call]
        self.connection.ca_cert = client.authorities() or self.connection.ca_cert
        session = self.connection.session
        session.timeout = client.timeout
        # A line for this host in ~/.netrc would replace the token or the signature.
        session.auth = lambda request: request
        session.hooks["response"].append(lambda got, *_, **__: moments.answered(got, client.title))
        session.send = recorder.recorded(session.send, client.cloud)

    def morph_action_hook(self, action: str) -> str:
        return f"{self.request_path}/{action.lstrip('/')}"

    def pre_connect_hook(self, params: Any, headers: Any) -> tuple[Any, Any]:
        return params, self.sign(self, headers) if self.sign else headers
