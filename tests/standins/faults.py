"""Records every call to a stand-in, and makes the calls that a test names go wrong.

A test speaks to it over HTTP, as the stand-in may run in another process:

    GET    /_standin/calls       [{"number", "action", "status", "fault", "started", "ended"}]
    DELETE /_standin/calls       forgets them and starts again at number 1
    GET    /_standin/holdings    what the account holds
    POST   /_standin/faults      arms one: a Fault as JSON
    DELETE /_standin/faults      disarms all, and lets go those that wait
    POST   /_standin/clock       {"seconds": 60}: the stand-in's time goes on by so much
    PUT    /_standin/set         {"lag": 2.0}: attributes of the stand-in
    POST   /_standin/tell        {"do": "interrupt", "with": {…}}: a public method of it
    DELETE /_standin/world       an empty account again, with no faults and no calls

Those calls are not counted.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from werkzeug.test import run_wsgi_app
from werkzeug.wrappers import Request, Response

from tests.standins.client_world import World

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Kind = Literal["answer", "delay", "silence", "reset", "kill", "interrupt", "stop", "world"]
ADMIN = "/_standin/"
EVER = 1_000_000
FAULTS: dict[str, dict[str, Any]] = {
    "429": {"kind": "answer", "status": 429, "retry_after": 2},
    "500": {"kind": "answer", "status": 500},
    "503": {"kind": "answer", "status": 503},
    "no answer": {"kind": "silence"},
    "no answer after the work": {"kind": "silence", "after": True},
    "500 after the work": {"kind": "answer", "status": 500, "after": True},
    "reset": {"kind": "reset"},
    "reset after the work": {"kind": "reset", "after": True},
}
"""What any call to a cloud may meet."""
KEPT = ("nodes", "authority")
"""Attributes of a stand-in that outlive its account: real nodes, and who gave credentials out."""


class StandIn(Protocol):
    """A cloud's stand-in: a WSGI application with these. Optional: `action(environ) -> str`, the
    name of a call; `advance(seconds)`, its clock; any attribute and method that a test drives."""

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]: ...

    def holdings(self) -> list[str]:
        """Everything that exists beyond what an empty account has, in words, sorted."""
        ...

    def error(self, status: int, code: str, message: str) -> Response:
        """A refusal in this cloud's own format; an empty code becomes its own for that status."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, and with which calls: the one with `number`, or those whose action matches
    the pattern `action`, after `skip` of them, `times` times."""

    kind: Kind
    """answer: `status`, `code`, `message`, `retry_after` · delay: `seconds`, then the answer ·
    silence: none at all for `seconds` · reset: of the connection · kill: SIGKILL of `pid`, and the
    connection ends · interrupt: SIGINT of `pid`, and `seconds` later the work is done and told ·
    stop: the work is done and told to `pid`, which stands still (SIGSTOP) and hears it later ·
    world: the work is done and told as ever."""
    number: int | None = None
    action: str | None = None
    skip: int = 0
    times: int = 1
    once_each: bool = False
    """Only the first of several calls that are the same to the last byte."""
    after: bool = False
    """The work is done first."""
    lasts: float = 0.0
    """Seconds in which every later call meets it, too."""
    world: str = ""
    """File of the client's World, which is told `tells` as the first call comes."""
    tells: Mapping[str, Any] = field(default_factory=dict)
    status: int = 503
    code: str = ""
    message: str = "a fault that a test asked for"
    body: str = ""
    """Of an answer, instead of a refusal in the cloud's own format."""
    retry_after: float | None = None
    seconds: float = 0.0
    pid: int = 0


@dataclass
class Call:
    number: int
    action: str
    started: float
    ended: float | None = None
    """When nothing more is done for it."""
    status: int | None = None
    """None when there was no answer."""
    fault: str | None = None


@dataclass
class _Armed:
    fault: Fault
    seen: int = 0
    used: int = 0
    until: float = 0.0
    known: set[bytes] = field(default_factory=set)

    def takes(self, call: Call, digest: bytes) -> bool:
        fault = self.fault
        if time.monotonic() < self.until:
            return True
        if fault.number is not None and fault.number != call.number:
            return False
        if fault.action is not None and not fnmatch.fnmatchcase(call.action, fault.action):
            return False
        if fault.once_each and digest in self.known:
            return False
        self.known.add(digest)
        self.seen += 1
        if self.seen <= fault.skip or self.used >= fault.times:
            return False
        self.used += 1
        self.until = time.monotonic() + fault.lasts
        if fault.world:
            World(Path(fault.world)).tell(**fault.tells)
        return True


@dataclass
class Faults:
    """WSGI middleware around a stand-in."""

    app: StandIn
    _calls: list[Call] = field(default_factory=list)
    _armed: list[_Armed] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _let_go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(ADMIN):
            return self._admin(Request(environ))(environ, start_response)
        call, fault = self._begin(environ)
        try:
            response = self._answer(environ, fault, call)
            call.status = response.status_code
            return response(environ, start_response)
        finally:
            call.ended = call.ended or time.time()

    # ── In this process ──────────────────────────────────────────────────────

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(_Armed(fault))

    def disarm(self) -> None:
        with self._lock:
            self._armed.clear()
            self._let_go.set()
            self._let_go = threading.Event()

    def calls(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(call) for call in self._calls]

    def forget(self) -> None:
        with self._lock:
            self._calls.clear()

    def renew(self) -> None:
        """An empty account."""
        self.disarm()
        self.forget()
        app: Any = type(self.app)()
        for name in KEPT:
            if hasattr(self.app, name):
                setattr(app, name, getattr(self.app, name))
        self.app = app

    # ── One call ─────────────────────────────────────────────────────────────

    def _begin(self, environ: WSGIEnvironment) -> tuple[Call, Fault | None]:
        named: Callable[[WSGIEnvironment], str] = getattr(self.app, "action", method_and_path)
        action = named(environ)
        digest = _digest(environ)
        with self._lock:
            call = Call(len(self._calls) + 1, action, time.time())
            self._calls.append(call)
            fault = next((armed.fault for armed in self._armed if armed.takes(call, digest)), None)
        call.fault = f"{fault.kind}{' after' if fault.after else ''}" if fault else None
        return call, fault

    def _answer(self, environ: WSGIEnvironment, fault: Fault | None, call: Call) -> Response:
        if fault is None or fault.kind == "world":
            return self._work(environ)
        if fault.kind in ("delay", "interrupt"):
            if fault.kind == "interrupt":
                os.kill(fault.pid, signal.SIGINT)
            time.sleep(fault.seconds)
            return self._work(environ)
        if fault.kind == "stop":
            os.kill(fault.pid, signal.SIGSTOP)
            return self._work(environ)
        if fault.after:
            self._work(environ)
        if fault.kind == "answer":
            return self._refusal(fault)
        if fault.kind == "silence":
            call.ended = time.time()
            self._let_go.wait(fault.seconds or EVER)
        elif fault.kind == "kill":
            kill(fault.pid)
        reset(environ["werkzeug.socket"])
        raise ConnectionAbortedError("a fault that a test asked for")

    def _work(self, environ: WSGIEnvironment) -> Response:
        chunks, status, headers = run_wsgi_app(self.app, environ, buffered=True)
        return Response(chunks, status, headers)

    def _refusal(self, fault: Fault) -> Response:
        if fault.body:
            return Response(fault.body, fault.status, content_type="application/json")
        response = self.app.error(fault.status, fault.code, fault.message)
        if fault.retry_after is not None:
            response.headers["Retry-After"] = f"{fault.retry_after:g}"
        return response

    # ── From another process ─────────────────────────────────────────────────

    def _admin(self, request: Request) -> Response:
        given: dict[str, Any] = request.get_json(force=True) if request.data else {}
        answer: Any = None
        match (request.method, request.path.removeprefix(ADMIN)):
            case ("GET", "calls"):
                answer = self.calls()
            case ("DELETE", "calls"):
                self.forget()
            case ("GET", "holdings"):
                answer = self.app.holdings()
            case ("POST", "faults"):
                self.arm(Fault(**given))
            case ("DELETE", "faults"):
                self.disarm()
            case ("POST", "clock"):
                self.app.advance(given["seconds"])  # type: ignore[attr-defined]
            case ("PUT", "set"):
                for name, value in given.items():
                    assert hasattr(self.app, name), name
                    setattr(self.app, name, value)
            case ("POST", "tell") if not given["do"].startswith("_"):
                answer = getattr(self.app, given["do"])(**given.get("with", {}))
            case ("DELETE", "world"):
                self.renew()
            case _:
                return Response(f"see {__name__}\n", 404)
        return Response(json.dumps(answer), content_type="application/json")


def _digest(environ: WSGIEnvironment) -> bytes:
    """Of all that a call says, but for its headers."""
    body = environ["wsgi.input"]
    body.seek(0)
    line = f"{method_and_path(environ)}?{environ['QUERY_STRING']}\n"
    digest = hashlib.sha256(line.encode() + body.read()).digest()
    body.seek(0)
    return digest


def method_and_path(environ: WSGIEnvironment) -> str:
    return f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"


def kill(pid: int) -> None:
    """Returns when the process runs no more."""
    os.kill(pid, signal.SIGKILL)
    while _runs(pid):
        time.sleep(0.001)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def reset(connection: socket.socket) -> None:
    """The other end sees ECONNRESET, and not an orderly end."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    os.close(connection.detach())
