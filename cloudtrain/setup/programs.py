"""Runs the programs that pack, serve, fetch and unpack an archive on nodes (node/environment_*)."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.artifacts.inventory import AnswerLines, Stop, json_line
from cloudtrain.core.codec import UNIX_TIME
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import DataSource, Node
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import Transport
from cloudtrain.core.shell import Secret, command
from cloudtrain.datasets.dataset import DataFile, Dataset
from cloudtrain.datasets.exchange import Exchange, FileSigner

Say = Callable[[str], None]

STARTS = 30.0
"""Seconds within which a server on a node must have started."""


@dataclass(frozen=True, kw_only=True)
class OnNode:
    """An archive on its builder, in `folder` there."""

    node: Node
    folder: str
    archive: EnvironmentArchive


def folder_on(node: Node, key: str) -> str:
    return f"{node.cache}/archives/{key}"


def pack(
    node: Node, environment: str, key: str, label: str, transport: Transport, stop: Stop, say: Say
) -> OnNode:
    """Pack the environment in a folder of the node. Raises NodeError."""
    folder = folder_on(node, key)

    def progress(answer: Mapping[str, Any]) -> None:
        say(f"packed {answer['at']} of {answer['of']} parts")

    order = {"folder": environment, "archive": folder}
    answer = _answer(node, "pack", order, transport, stop, progress)["packed"]
    parts = [
        ArchivePart(name=str(each["name"]), size=int(each["size"]), sha256=str(each["sha256"]))
        for each in answer["parts"]
    ]
    archive = EnvironmentArchive(
        key=key,
        label=label,
        parts=tuple(parts),
        python=str(answer["python"]),
        bases=tuple(str(each) for each in answer["bases"]),
    )
    return OnNode(node=node, folder=folder, archive=archive)


def fetch(
    node: Node,
    environment: str,
    archive: EnvironmentArchive,
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
    files = exchange.download(transport)
    order = {
        "folder": environment,
        "files": files,
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
class ArchiveServer:
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
        server = f"{self.packed.node.internal}:{self._port}"
        return PresignedRequest(url=Secret(f"http://{server}/{self._token}/{file.path}"))

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        raise NodeError(self.packed.node.name, "its archives are not read from here")

    def _serve(self) -> None:
        node, answers = self.packed.node, AnswerLines(self._take, self.stop)
        order = {"archive": self.packed.folder, "address": node.internal, "token": self._token}

        def orders() -> Iterator[bytes]:
            yield json_line(order)
            while not self._over.wait(1.0):
                self.stop.check()

        try:
            exit_code = answers.run(node, "environment_archive", orders(), self.transport, "serve")
            self._fault = self._fault or answers.last_words(exit_code)
        except CloudtrainError as error:
            self._fault = error.message
        finally:
            self._started.set()

    def _take(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._fault = str(answer["error"])
        else:
            self._port = int(answer["port"])
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

    def take(answer: dict[str, Any]) -> None:
        if "at" in answer:
            progress(answer)
        else:
            found.update(answer)

    answers = AnswerLines(take, stop)
    exit_code = answers.run(node, "environment_archive", json_line(order), transport, verb)
    if "error" in found or not found:
        raise NodeError(node.name, str(found.get("error") or answers.last_words(exit_code)))
    return found


# ── Values: an archive of an environment, its parts, and the nodes that can use it ────────────


FORMAT = 1
"""Version of the archives and of what they are made from. Others are not used."""


@dataclass(frozen=True, kw_only=True)
class ArchivePart:
    """One file of an archive. `size` in bytes, `sha256` in hex, as its builder computed it.
    `object` and `version` are its key in the store and that object's ETag or generation; "" while
    it is on its builder alone."""

    name: str
    size: int
    sha256: str
    object: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A store, and how it is opened: the endpoint and the project of the config, None if unset."""

    uri: str
    endpoint: str | None = None
    project: str | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentArchive:
    """An environment packed by one node, for nodes whose `key` is the same.

    `python` is its minor version ("3.12"), `bases` the Python that it was created from and links to
    it, relative to the folder of the environments, if it lies there. `store` and `folder` say where
    it is kept; None and "" if it is not. Times are Unix times."""

    key: str
    label: str
    parts: tuple[ArchivePart, ...]
    python: str
    bases: tuple[str, ...] = ()
    store: StorePlace | None = None
    folder: str = ""
    created: float = field(default=0.0, metadata=UNIX_TIME)
    used: float = field(default=0.0, metadata=UNIX_TIME)
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def sha256(self) -> str:
        """SHA-256 of the parts' names and checksums: of the whole content."""
        text = "".join(f"{part.sha256} {part.name}\n" for part in self.parts)
        return hashlib.sha256(text.encode()).hexdigest()

    def dataset(self) -> Dataset:
        """The parts as files for the downloader, which computes no MD5 of them."""
        files = [
            DataFile(path=part.name, size=part.size, version=part.version) for part in self.parts
        ]
        source = DataSource(source=f"environment {self.key} {self.sha256}")
        return Dataset(name=self.label, source=source, files=tuple(files))


# One line each, of what an environment depends on besides its recipe.
PROBE = """\
(. /etc/os-release && printf '%s\\n%s\\n' "$ID" "$VERSION_ID") 2>/dev/null || printf '\\n\\n'
uname -m
getconf GNU_LIBC_VERSION 2>/dev/null || echo
command -v zstd >/dev/null 2>&1 && echo zstd || echo gzip
cd && pwd -P
"""


def key_of(facts: Sequence[str], folder: str) -> str:
    """Digest of everything that an environment is made from, by a node's answer to `PROBE`.

    That is the recipe, whose digest is in the name of the folder (playbooks/tensorflow), the
    absolute path, which scripts of the environment name, the system, its C library and the tool
    that unpacks. Whether its Python is there is tried on each node once it is unpacked."""
    *system, home = facts
    path = folder if folder.startswith("/") else f"{home}/{folder}"
    text = json.dumps([FORMAT, path, *system])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
