"""Records what clouds answer, for a report: JSON lines, secrets and names replaced (`masking`).

docs/commands.md has the form. Requests are recorded without their bodies, which hold keys; answers
that hand out credentials without theirs. What goes to a store and for tokens is not recorded.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cloudtrain.core import moments
from cloudtrain.core.masking import Masks

FORMAT = 1
HEADERS = frozenset(
    {"azure-asyncoperation", "content-type", "date", "location", "retry-after", "www-authenticate"}
    | {"retry-after-ms", "x-ms-retry-after-ms", "x-ms-failure-cause", "x-amzn-errortype"}
)
"""Headers that drivers read, in lower case."""
_OF_CLOUDS = (
    ".googleapis.com",
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".amazonaws.eu",
    ".azure.com",
)
_SIGNED = frozenset({"t", "c", "s", "h", "sig"})
"""Parameters that sign the URL of one of Azure's operations."""
_STORES = frozenset({"s3"})
_HAND_OUT = frozenset({"sts", "sso", "sso-oidc", "signin"})
"""Services of AWS that answer with credentials."""


class Recorder:
    """A file that answers are appended to. Thread-safe. An error ends it, and is said once."""

    def __init__(self, path: Path, key: bytes, say: Callable[[str], None]) -> None:
        self._path, self._say, self._lock = path, say, threading.Lock()
        self._masks = Masks(key)
        self._file: int | None = None
        self._is_said = False
        with self.said():
            self._file = _opened(path)

    def add(
        self,
        cloud: str,
        method: str,
        url: str,
        *,
        action: str = "",
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Write one line, whole. `body` None: left out, or not answered because of `error`."""
        with self._lock, self.said():
            if self._file is None:
                return
            masks = self._masks
            told = {name.lower(): str(value) for name, value in (headers or {}).items()}
            line = {
                "format": FORMAT,
                "time": round(moments.now(), 3),
                "cloud": cloud,
                "method": method,
                "url": self._url(url),
                **({"action": action} if action else {}),
                "status": status,
                "headers": {
                    name: self._url(value) if "://" in value[:9] else masks.text(value)
                    for name, value in told.items()
                    if name in HEADERS
                },
                "body": None if body is None else masks.body(body),
                **({"error": masks.text(f"{type(error).__name__}: {error}")} if error else {}),
            }
            _write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _url(self, url: str) -> str:
        """A URL with names replaced, decoded, and without what signs it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host.endswith(_OF_CLOUDS) and re.search("[a-z]", host) and ":" not in host:
            self._masks.learn("host", host)
        self._masks.notice(parts.path)
        query = "&".join(
            f"{name}={'***' if name in _SIGNED else self._masks.value(value, name)}"
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        )
        plain = self._masks.text(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
        path = "/".join(map(self._masks.text, parts.path.split("/")))
        return f"{plain}{path}{'?' if query else ''}{query}"

    @contextmanager
    def said(self) -> Iterator[None]:
        """End the file at an error, and say it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the command goes on)
            self._close()
            why = getattr(error, "strerror", None) or type(error).__name__
            if not self._is_said:
                self._is_said = True
                self._say(f"--record {self._path}: {why}; the command goes on without it")


_recorder: Recorder | None = None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record what clouds answer to this process."""
    global _recorder
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before
        recorder.close()


def recorded(send: Callable[..., Any], cloud: str) -> Callable[..., Any]:
    """`send` of a session of the library requests, recorded while a recorder is there."""

    def sent(request: Any, **options: Any) -> Any:
        try:
            answer = send(request, **options)
        except Exception as error:
            failure = error  # its own name is gone after this block
            _note(lambda: {**_asked(cloud, request), "error": failure})
            raise
        _note(
            lambda: {
                **_asked(cloud, request),
                "status": answer.status_code,
                "headers": answer.headers,
                "body": _text(answer.content),
            }
        )
        return answer

    return sent


def of_botocore(
    cloud: str, *, http_response: Any, model: Any, context: Any = None, **_: Any
) -> None:
    """Record an answer to botocore, from its event `after-call`."""
    service = model.service_model.service_name
    region = (context or {}).get("client_region", "")
    is_secret = service in _HAND_OUT and http_response.status_code < 300
    if service not in _STORES:
        _note(
            lambda: {
                "cloud": cloud,
                "method": str(model.http.get("method", "")),
                "url": http_response.url,
                "action": f"{service}:{model.name} in {region}",
                "status": http_response.status_code,
                "headers": http_response.headers,
                "body": None
                if is_secret or model.has_streaming_output
                else _text(http_response.content),
            }
        )


def _note(told: Callable[[], dict[str, Any]]) -> None:
    """Add what this returns, if a recorder is there. Raises nothing."""
    if _recorder is not None:
        with _recorder.said():
            _recorder.add(**told())


def _asked(cloud: str, request: Any) -> dict[str, Any]:
    made = {"cloud": cloud, "method": request.method, "url": request.url}
    return {**made, "action": _action(request)}


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _action(request: Any) -> str:
    """`RunInstances in us-east-1`, of a form that is signed for EC2; empty for any other."""
    sent = _text(request.body) if isinstance(request.body, bytes) else request.body
    named = re.match(r"Action=(\w+)&|.*&Action=(\w+)", sent or "")
    scope = re.search(
        r"/\d{8}/([\w-]+)/[\w-]+/aws4_request", request.headers.get("Authorization", "")
    )
    return f"{named[1] or named[2]} in {scope[1]}" if named and scope else ""


def _opened(path: Path) -> int:
    """Open a private file to append to; a line that was cut off there is ended first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a file")
        os.fchmod(file, 0o600)
        if found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
            _write(file, b"\n")
    except BaseException:
        os.close(file)
        raise
    return file


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
