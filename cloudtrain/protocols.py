"""Interfaces to everything outside this program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cloudtrain.events import Event
from cloudtrain.listing import Listing, NotAsked, Whereabouts
from cloudtrain.model import Accelerator, Artifact, Holding, Identity, Node, Plan
from cloudtrain.presign import Presigner
from cloudtrain.shell import Command


class Journal(Protocol):
    """`journal(NodeRequested(node="mnist-worker0"))`: on disk before the call is made.

    Providers write PlacementTried before anything is asked for there, NodeRequested and
    NodeDeletionBegun, ResourceRequested before anything else that they make, PlacementRefused for
    a placement that did not have the nodes.
    """

    def __call__(self, event: Event, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check. `error` is the exception class whose exit code it ends with."""

    what: str
    ok: bool
    text: str
    hint: str | None = None
    error: type[Exception] | None = None
    told: bool = True
    """False if nobody reports it: nothing speaks against it, and nothing for it."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """A machine type as its cloud describes it."""

    name: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None
    """Built in."""
    arm: bool = False


@runtime_checkable
class TellsMachines(Protocol):
    """A provider whose cloud describes its machine types."""

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """Facts of the types that exist in the plan's placement, as far as this endpoint
        reports.
        """


IGNORABLE = ("quota", "price", "machines", "gpus", "permissions", "placement")
"""Findings that may be wrong: a table's, or what a cloud does not tell in so many words."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Identity under which an account knows us."""

    id: str
    """The same from every machine, and nobody else's: an e-mail, an ARN, an object id."""
    name: str
    """For people to read."""


class Provider(Protocol):
    """Creates, lists and deletes nodes. One folder per cloud in providers/.

    Each has `def provider(config: ClusterConfig) -> Provider`. What exists is read from the cloud
    by label at each call and never remembered.
    """

    name: str
    whereabouts: Whereabouts | None
    """Where the cluster may be that this is opened for; set by who opens it."""

    def principal(self) -> Principal | None:
        """Owner of resources created with these credentials; None if the account does not report
        it.

        Queried once. Raises CloudError.
        """

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """What would stop `create`: changes nothing, costs nothing."""

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        """What `check --deep` asks beyond `check`: the very requests of `create`, tried on the
        account. Each finding says what was done for it and what that cost."""

    def create(
        self,
        plan: Plan,
        identity: Identity,
        journal: Journal,
        expected: Mapping[str, float] | None = None,
    ) -> tuple[Node, ...]:
        """Make all nodes of the plan, side by side, in the plan's order; adopts what exists.

        A stopped node is started again with its disk as it was. All or nothing: a node that
        cannot be had gives back those made by this call, and the next placement is tried.
        Raises CapacityError, QuotaError, … with every placement's refusal.

        `expected` has the nodes that an earlier call asked for and whose answer is not on record,
        by name, with the Unix time of the request: they may exist and not be listed yet.
        """

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """List every node of the cluster, in the places where its record and its config say that it
        may be.

        A deleted node is not listed. Raises NotAskedError for a zone or region that counts and does
        not answer.
        """

    def find(self, cluster: str) -> Listing[Node]:
        """Every node of it that is seen anywhere in the account, and the places that could not
        be queried.
        """

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Mapping[str, float] | None = None,
        *,
        spared: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        """Delete everything of the cluster, then list again.

        Raises LeftoverError naming what is left, NotAskedError naming the places where something
        may be left. Returns silent places in which, by the record, nothing of it ever was.
        `expected` has recently requested nodes by name, with the Unix time of the request: a cloud
        may list a new node late, and it is waited for. Nodes in the places `spared` stay.
        """

    def remove(
        self,
        cluster: str,
        names: Sequence[str],
        journal: Journal,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        """Delete these nodes as `destroy` does, and nothing else of the cluster."""

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        """Move the end of these running nodes to `expires` (Unix time; None: never).

        `tell(node, line)` runs a line of sh there, for ends that the node itself holds.
        """

    def console(self, cluster: str, node: str) -> str:
        """End of a node's serial console output, for one that cannot be reached.

        Empty if its provider has nothing of the kind.
        """

    def sweep(self) -> Listing[Holding]:
        """List everything under our label, in all regions, by cluster; sorted by name."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Result of a command on a node. `exit_code` is negative if a signal ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs commands on nodes over connections that it keeps open. Safe to use from many threads.

    Commands start in the user's home. Raises NodeUnreachable when no connection can be opened or an
    open one breaks, HostKeyMismatch when another machine answers.
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
        """Run a command to its end.

        A handler takes the bytes as they come, `Completed` then lacks them. `timeout` (seconds)
        without any byte in either direction raises NodeUnreachable.
        """

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        """Run a short sh script over the node's persistent shell: a round trip, no new channel."""

    def close(self) -> None:
        """Close every connection; what runs detached on the nodes continues."""


class HostKeys(Protocol):
    """Host keys that a transport accepts."""

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """Accept one of these for that node from now on; its open connections are closed."""


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """What became of a conditional write, and what is in the way of one that was not `done`."""

    done: bool
    version: str = ""
    """Of what is there now, in the store's own words; "" where nothing is."""
    data: bytes = b""
    age: float = 0.0
    """Seconds since that was written, by the store's own clock."""


class ArtifactStore(Protocol):
    """Keeps files under a URI prefix. One file per kind of store in stores/. Raises StoreError."""

    uri: str

    @property
    def presigner(self) -> Presigner | None:
        """Signs requests by which nodes store and read files themselves; None: they cannot."""

    def list(self, prefix: str = "") -> Iterator[Artifact]:
        """List what the store holds now; `sha256` and `md5` are empty if the store does not
        report them.
        """

    def download(self, path: str) -> Iterator[bytes]:
        """Bytes of one file."""

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        """Store one file under the prefix; visible whole or not at all."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file to another name, inside the store if it can."""

    def delete(self, path: str) -> None:
        """Delete one file; no error if it does not exist."""


class StoreBackend(ArtifactStore, Protocol):
    """What each kind of store in stores/ answers: artifacts, its bucket, and a cluster's lease."""

    def create(self, location: str | None) -> bool:
        """The bucket, near `location` (a region of its cloud), where there is none: True then."""

    def check(self) -> None:
        """Write, read and delete a small file, so that a refusal comes before the first bill."""

    def swap(self, path: str, data: bytes | None, version: str) -> Swapped:
        """Write a small file (None: delete it) only where it is still of that version ("": where
        there is none). Of several that try at once, one does it."""


class Stage(Protocol):
    """One line of progress, `done` of `total`, with each node's current work."""

    def node(self, name: str, text: str) -> None: ...

    def done(self, name: str, text: str = "") -> None: ...


class Console(Protocol):
    """Shows facts; nothing is printed elsewhere."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        """Progress of one step over `total` nodes: bars on a terminal, timed lines elsewhere."""

    def task_output(self, task: str, data: bytes) -> None:
        """New log bytes of one task, shown by line with the task's name before each."""
