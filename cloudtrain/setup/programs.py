"""Runs the programs that pack, serve, fetch and unpack an archive on nodes (node/environment_*)."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.artifacts.inventory import SILENCE, AnswerLines, Stop
from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Node
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import Transport
from cloudtrain.core.shell import Command, Secret, command
from cloudtrain.core.ship import program
from cloudtrain.datasets.dataset import DataFile
from cloudtrain.datasets.exchange import Exchange, FileSigner
from cloudtrain.setup.archive import Archive, Part

Say = Callable[[str], None]

STARTS = 30.0
"""Seconds within which a server on a node must have started."""


@dataclass(frozen=True, kw_only=True)
class OnNode:
    """An archive on its builder, in `folder` there."""

    node: Node
    folder: str
    archive: Archive


def folder_on(node: Node, key: str) -> str:
    return f"{node.cache}/archives/{key}"


def pack(
    node: Node, environment: str, key: str, label: str, transport: Transport, stop: Stop, say: Say
) -> OnNode:
    """Pack the environment in a folder of the node. Raises NodeError."""
    folder = folder_on(node, key)

    def progress(told: Mapping[str, Any]) -> None:
        say(f"packed {told['at']} of {told['of']} parts")

    order = {"folder": environment, "archive": folder}
    told = _answer(node, "pack", order, transport, stop, progress)["packed"]
    parts = [
        Part(name=str(each["name"]), size=int(each["size"]), sha256=str(each["sha256"]))
        for each in told["parts"]
    ]
    archive = Archive(
        key=key,
        label=label,
        parts=tuple(parts),
        python=str(told["python"]),
        bases=tuple(str(each) for each in told["bases"]),
    )
    return OnNode(node=node, folder=folder, archive=archive)


def fetch(
    node: Node,
    environment: str,
    archive: Archive,
    signer: FileSigner,
    transport: Transport,
    stop: Stop,
    say: Say,
) -> None:
    """Have the node download the archive, verify it by its SHA-256 and unpack it. Raises NodeError,
    NoRoute, StoreError; the node then has no part of it in use."""
    exchange = Exchange(
        node=node,
        dataset=archive.dataset(),
        signer=signer,
        roots=(node.cache,),
        copies=False,
        relay=False,
        progress=say,
        stop=stop,
    )
    try:
        downloader = program("downloader").command
        exit_code = _run(node, downloader, exchange.orders(), exchange.answers, transport)
    finally:
        exchange.over.set()
    order = {
        "folder": environment,
        "files": exchange.folder(exit_code),
        "parts": [[part.name, part.sha256] for part in archive.parts],
        "bases": list(archive.bases),
        "python": archive.python,
    }
    say("unpacking")
    _answer(node, "unpack", order, transport, stop, lambda told: None)


def remove(packed: OnNode, transport: Transport) -> None:
    """Delete the archive on its builder, as far as it can be reached."""
    gone = command("rm", "-rf", "--", packed.folder, f"{packed.folder}.new").shell()
    try:
        transport.ask(packed.node, gone)
    except CloudtrainError:
        return


@dataclass
class Server:
    """Serves an archive from its builder to the cluster's nodes; it signs what they request."""

    packed: OnNode
    transport: Transport
    stop: Stop
    _token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    _over: threading.Event = field(default_factory=threading.Event)
    _started: threading.Event = field(default_factory=threading.Event)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _port: int = 0
    _fault: str = ""

    def start(self) -> None:
        """Start it, once. Raises NodeError."""
        node = self.packed.node
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
            if not self._started.wait(STARTS) or not self._port:
                raise NodeError(node.name, self._fault or "the server did not start")

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(STARTS)

    def sign(self, file: DataFile, *, expires_in: float) -> PresignedRequest | None:
        """A GET of one part from the builder's address inside the cluster."""
        place = f"{self.packed.node.internal}:{self._port}"
        return PresignedRequest(url=Secret(f"http://{place}/{self._token}/{file.path}"))

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        raise NodeError(self.packed.node.name, "its archives are not read from here")

    def _serve(self) -> None:
        node, answers = self.packed.node, AnswerLines(self._take, self.stop)
        server = program("environment_server")
        order = {"archive": self.packed.folder, "address": node.internal, "token": self._token}

        def orders() -> Iterator[bytes]:
            yield server.source + json.dumps(order).encode("ascii") + b"\n"
            while not self._over.wait(1.0):
                self.stop.check()

        try:
            exit_code = _run(node, server.command, orders(), answers, self.transport)
            self._fault = self._fault or answers.last_words(exit_code)
        except CloudtrainError as error:
            self._fault = error.message
        finally:
            self._started.set()

    def _take(self, told: dict[str, Any]) -> None:
        if "error" in told:
            self._fault = str(told["error"])
        else:
            self._port = int(told["port"])
        self._started.set()


def _answer(
    node: Node,
    verb: str,
    order: Mapping[str, object],
    transport: Transport,
    stop: Stop,
    progress: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """The last answer of `environment_archive` on the node. Raises NodeError with its own words."""
    found: dict[str, Any] = {}

    def take(told: dict[str, Any]) -> None:
        if "at" in told:
            progress(told)
        else:
            found.update(told)

    answers = AnswerLines(take, stop)
    started = program("environment_archive", verb)
    stdin = started.source + json.dumps(order).encode("ascii") + b"\n"
    exit_code = _run(node, started.command, [stdin], answers, transport)
    if "error" in found or not found:
        raise NodeError(node.name, str(found.get("error") or answers.last_words(exit_code)))
    return found


def _run(
    node: Node, started: Command, stdin: Iterable[bytes], answers: AnswerLines, transport: Transport
) -> int:
    """Exit code of a program on the node, whose answers are heard."""
    hear, overhear = answers.hear, answers.overhear
    return transport.run(
        node, started, stdin=stdin, on_stdout=hear, on_stderr=overhear, timeout=SILENCE
    ).exit_code
