"""The narrow doors: everything outside this program is behind one of these four."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cloudtrain.model import Artifact, Holding, Identity, Node, Plan
from cloudtrain.shell import Command

Journal = Callable[..., None]
"""`journal("create", node="mnist-worker0")`: on disk before the call that it announces is made.

Providers write: `create` and `destroy` (node=), `make` (what=, name=) before anything else that
they make, `refused` (placement=, error=, text=) for a placement that did not have the nodes.
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of a check. `error` is the exception class whose exit code it ends with."""

    what: str
    ok: bool
    text: str
    hint: str | None = None
    error: type[Exception] | None = None


class Provider(Protocol):
    """Makes nodes, tells which exist, destroys them. One file per cloud in providers/.

    Each module has `def provider(config: ClusterConfig) -> Provider`. What exists is read from
    the cloud by label at each call and never remembered.
    """

    name: str

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """What would stop `create`: changes nothing, costs nothing."""

    def create(self, plan: Plan, identity: Identity, journal: Journal) -> tuple[Node, ...]:
        """Make all nodes of the plan, side by side, in the plan's order; adopts what exists.

        A stopped node is started again with its disk as it was. All or nothing: a node that
        cannot be had gives back those made by this call, and the next placement is tried.
        Raises CapacityError, QuotaError, … with every placement's refusal.
        """

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """Every node of the cluster that exists, asked now. A destroyed one is not listed."""

    def destroy(
        self, cluster: str, journal: Journal, expected: Mapping[str, float] | None = None
    ) -> None:
        """Everything of the cluster, then ask again. Raises LeftoverError naming what is left.

        `expected` has the nodes that were asked for of late, by name, with the Unix time of the
        request: a cloud may list a new node late, and it is waited for.
        """

    def sweep(self) -> tuple[Holding, ...]:
        """Everything under our label, in all regions, by cluster; sorted by name."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended on a node. `exit_code` is negative where a signal ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs commands on nodes over connections that it keeps open. Safe to use from many threads.

    Commands start in the user's home. Raises NodeUnreachable when no connection can be had or
    an open one breaks, HostKeyMismatch when another machine answers.
    """

    def run(
        self,
        node: Node,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run to its end. A handler takes the bytes as they come, `Completed` then lacks them.

        `timeout` (seconds) without any byte in either direction raises NodeUnreachable.
        """

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        """A short sh script over the node's persistent shell: a round trip, no new channel."""

    def forward(self, node: Node, port: int) -> AbstractContextManager[int]:
        """A port of 127.0.0.1 here that leads to `port` on the node's 127.0.0.1."""

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """From now on that node answers with one of these; its open connections are closed."""

    def close(self) -> None:
        """Close every connection; what runs detached on the nodes goes on."""


class ArtifactStore(Protocol):
    """Keeps files under a URI prefix. One file per kind of store in stores/. Raises StoreError."""

    uri: str

    def check(self) -> None:
        """Write, read and delete a small file, so that a refusal comes before the first bill."""

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        """Store one file under the prefix; visible whole or not at all."""

    def list(self, prefix: str = "") -> Iterator[Artifact]:
        """What the store holds, asked now; `sha256` is empty where the store does not tell it."""

    def download(self, path: str) -> Iterator[bytes]:
        """The bytes of one file."""


class Stage(Protocol):
    """One line of progress, `done` of `total`, with what each node does just now."""

    def node(self, name: str, text: str) -> None: ...

    def done(self, name: str, text: str = "") -> None: ...


class Console(Protocol):
    """Where facts are shown; printing is done behind this door and nowhere else."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        """Progress of one step over `total` nodes: bars on a terminal, timed lines elsewhere."""

    def task_output(self, task: str, data: bytes) -> None:
        """New log bytes of one task, shown line by line with the task's name before each."""
