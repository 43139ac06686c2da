"""The toy's service: VMs and fences of one room, as JSON over HTTP; its VMs boot for real."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.standins.nodes import Nodes

ROOM = "nursery"


class ToyStandIn:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.vms: dict[str, dict[str, Any]] = {}
        self.fences: dict[str, Any] = {}
        self.url = ""
        self.lock = threading.Lock()

    def holdings(self) -> list[str]:
        return sorted([*(vm["name"] for vm in self.vms.values()), *self.fences])

    def make(self, wish: dict[str, Any], *, boots: bool = True) -> dict[str, Any]:
        """The same VM for the same token."""
        with self.lock:
            for vm in self.vms.values():
                if vm["token"] == wish["token"]:
                    return vm
            user_data = wish.pop("user_data", "")
            vm = {
                **wish,
                "id": uuid.uuid4().hex,
                "state": "running",
                "created": time.time(),
                "address": self.nodes.address(),
            }
            self.vms[vm["id"]] = vm
        if boots:
            self.nodes.start(vm["name"], user_data, vm["address"])
        return vm

    def answer(self, method: str, path: list[str], given: Any) -> Any:
        kind, *rest = path
        things = self.vms if kind == "vms" else self.fences
        if method == "GET":
            return list(self.vms.values() if kind == "vms" else self.fences)
        if method == "DELETE":
            gone = things.pop(rest[0], None)
            if gone is not None and kind == "vms":
                self.nodes.stop(gone["name"])
            return {}
        if kind == "vms" and not rest:
            return self.make(given)
        if kind == "fences":
            self.fences[given["name"]] = given
        return {}


@contextmanager
def running(nodes: Nodes) -> Iterator[ToyStandIn]:
    toy = ToyStandIn(nodes)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            room, *path = self.path.strip("/").split("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known, answer = room == ROOM, "no such room"
            if known:
                answer = toy.answer(self.command, path, json.loads(body or "null"))
            text = json.dumps(answer).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _do

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        toy.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield toy
        finally:
            server.shutdown()
