"""A run whose nodes are folders here, with agents beside its tasks and a store that they reach."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.cluster.session import Session
from cloudtrain.core import paths
from cloudtrain.core.presign import PresignedUpload
from cloudtrain.core.run_record import RunAttempt
from cloudtrain.runs import node_agents, task_commands
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import RUN, Cluster
from tests.support.processes import pids
from tests.support.web_store import Service, WebStore, until

SOON = {"tick": 0.02, "rest": 0.05, "poll": 0.02, "patience": 0.2}


class ArchiveStore(WebStore):
    """What nodes store while somebody is there comes through this machine."""

    def __init__(self, folder: Path, told: Service) -> None:
        super().__init__(folder, told)
        self.uri = "web://store"

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        if "/parcels/" not in path:
            return None
        return super().sign_upload(path, size, expires_in=expires_in)


class Kept(Cluster):
    """`expires`, `spot` and `every` may be changed before `keep`."""

    def __init__(self, folder: Path, told: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        monkeypatch.setattr(node_agents, "TIMES", SOON)
        self.top = folder
        self.told = told
        self.web = ArchiveStore(folder / "web", told)
        self.run = replace(self.run, attempts=(RunAttempt(number=1, started=time.time()),))
        self.checkpoints: str | None = None
        self.every: float | None = None
        self.provider = "gcp"

    def session(self) -> Session:
        plan = make_plan()
        config = replace(
            plan.config,
            provider=self.provider,
            artifacts=replace(self.rules, every=self.every),
            train=replace(plan.config.train, checkpoints=self.checkpoints),
        )
        return Session(
            plan=replace(plan, config=config),
            records=Records("mnist"),
            provider=FakeProvider(),
            store=self.web,
            console=self.console,
            identity=cast("Any", None),
            transport=self.transport,
            host_keys=cast("Any", None),
            nodes=tuple(self.nodes.values()),
        )

    def nodes_are(self, **facts: object) -> None:
        self.nodes = {
            task: replace(node, **cast("Any", facts)) for task, node in self.nodes.items()
        }

    def start(self, command: str, task: str = "chief0") -> None:
        number = len(self.run.attempts)
        (self.work(task) / "output").mkdir(exist_ok=True)
        remote = task_commands.start(
            paths.attempt_folder("mnist", RUN, task, number),
            # Of this process: a task's end ends what has its tag, also in a test beside this one.
            tag=paths.tag(f"mnist{os.getpid()}", RUN, task, number),
            work=paths.work_folder("mnist", RUN, task),
            command=command,
            environment={},
        )
        node = self.nodes[task]
        done = self.transport.run(node, remote.command, stdin=remote.stdin)
        assert task_commands.parse_start(node.name, done) == "started"

    def keep(self) -> None:
        node_agents.start_agents(self.session(), self.run)
        assert self.console.warned == [], self.console.warned

    def place(self, task: str = "chief0") -> Path:
        return self.work(task).parent

    def log(self, task: str = "chief0") -> str:
        path = self.place(task) / "keeper.log"
        return path.read_text() if path.exists() else ""

    def agents(self) -> dict[int, str]:
        """By process, the task."""
        found = {}
        for path in self.processes():
            with contextlib.suppress(OSError):
                line = (path / "cmdline").read_bytes()
                if b"cloudtrain.node.agent" in line:
                    found[int(path.name)] = (path / "cwd").readlink().name
        return found

    def processes(self) -> list[Path]:
        """All that run in the nodes' folders."""
        found = []
        for path in (Path(f"/proc/{pid}") for pid in pids()):
            with contextlib.suppress(OSError):
                if (path / "cwd").readlink().is_relative_to(self.top):
                    found.append(path)
        return found

    def power_off(self) -> None:
        """Every node, with all that runs there."""
        while found := self.processes():
            for path in found:
                with contextlib.suppress(OSError):
                    os.kill(int(path.name), signal.SIGKILL)
            time.sleep(0.01)

    def arrived(self) -> list[str]:
        return sorted(path for path in self.told.objects if "/parcels/" in path)

    def wait_for_archives(self, count: int = 1) -> None:
        until(lambda: len(self.arrived()) >= count)

    def wait_for_the_agent_to_leave(self, task: str = "chief0") -> None:
        until(lambda: task not in self.agents().values())

    def take(self, **options: Any) -> Manifest:
        """What has landed once the archives that arrived are taken."""
        self.web.bring()
        self.told.objects.clear()
        ingest_spools(self.run, self.web, self.console, **options)
        return read_manifest(self.web, RUN) or Manifest(run=RUN)

    def content(self, manifest: Manifest, path: str) -> bytes:
        return b"".join(self.web.download(f"{RUN}/{manifest.files[path].at}"))


@contextmanager
def metadata(kind: str, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A cloud's metadata server, and what it is asked. It gives notice to the node in `names`."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            ok = kind == "aws" and self.path == "/latest/api/token"
            ok = ok and bool(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
            self.answer("a token" if ok else None)

        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(getattr(self, kind)())

        def aws(self) -> str | None:
            assert self.headers["X-aws-ec2-metadata-token"] == "a token"
            if self.path != "/latest/meta-data/spot/instance-action" or not names:
                return None
            return json.dumps({"action": "terminate", "time": "2026-11-21T06:24:04Z"})

        def gcp(self) -> str | None:
            assert self.headers["Metadata-Flavor"] == "Google"
            if self.path != "/computeMetadata/v1/instance/preempted":
                return None
            return "TRUE" if names else "FALSE"

        def azure(self) -> str | None:
            assert self.headers["Metadata"] == "true"
            if self.path != "/metadata/scheduledevents?api-version=2020-07-01":
                return None
            events = [{"EventType": "Preempt", "Resources": names}] if names else []
            events.append({"EventType": "Reboot", "Resources": ["mnist-chief0", "mnist-worker0"]})
            return json.dumps({"DocumentIncarnation": 1, "Events": events})

        def answer(self, body: str | None) -> None:
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write((body if body is not None else "no such thing").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
