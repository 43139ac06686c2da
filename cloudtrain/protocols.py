"""The narrow doors: everything outside this program is behind one of these four."""

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
    """One result of a check. `error` is the exception class whose exit code it ends with."""

    what: str
    ok: bool
    text: str
    hint: str | None = None
    error: type[Exception] | None = None
    told: bool = True
    """False where nobody tells: nothing speaks against it, and nothing for it."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What a cloud tells of one of its machine types."""

    name: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None
    """Built in."""
    arm: bool = False


@runtime_checkable
class TellsMachines(Protocol):
    """A provider whose cloud can be asked what its machines are."""

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """Of those that exist where the plan wants to be, as far as this endpoint tells."""


IGNORABLE = ("quota", "price", "machines", "gpus", "permissions", "placement")
"""Findings that may be wrong: a table's, or what a cloud does not tell in so many words."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who an account knows us as."""

    id: str
    """The same from every machine, and nobody else's: an e-mail, an ARN, an object id."""
    name: str
    """For people to read."""


class Provider(Protocol):
    """Makes nodes, tells which exist, destroys them. One file per cloud in providers/.

    Each module has `def provider(config: ClusterConfig) -> Provider`. What exists is read from
    the cloud by label at each call and never remembered.
    """

    name: str
    whereabouts: Whereabouts | None
    """Where the cluster may be that this is opened for; set by who opens it."""

    def principal(self) -> Principal | None:
        """Who makes what is made with these credentials; None where the account does not tell.

        Asked once. Raises CloudError.
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
        """Every node of the cluster that exists, asked now, where its record and its config say
        that it may be. A destroyed one is not listed. Raises NotAskedError for a zone or region
        that counts and does not answer."""

    def find(self, cluster: str) -> Listing[Node]:
        """Every node of it that is seen anywhere in the account, and where nobody could look."""

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Mapping[str, float] | None = None,
        *,
        spared: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        """Everything of the cluster, then ask again. Raises LeftoverError naming what is left,
        NotAskedError naming the places where something may be left.

        Returns the places that did not answer and where, by the record, nothing of it ever was.
        `expected` has the nodes that were asked for of late, by name, with the Unix time of the
        request: a cloud may list a new node late, and it is waited for. Nodes in the places
        `spared` stay.
        """

    def remove(
        self,
        cluster: str,
        names: Sequence[str],
        journal: Journal,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        """These nodes, and nothing else of the cluster, which goes on: as `destroy`."""

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        """These nodes, which run, end by themselves at `expires` (Unix time; None: never).

        `tell(node, line)` runs a line of sh there, where the end is held by the node itself.
        """

    def console(self, cluster: str, node: str) -> str:
        """The end of what a node wrote to its serial console: for one that lets nobody in. Empty
        where its provider has nothing of the kind."""

    def sweep(self) -> Listing[Holding]:
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

    def close(self) -> None:
        """Close every connection; what runs detached on the nodes goes on."""


class HostKeys(Protocol):
    """The host keys that a transport accepts."""

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """From now on that node answers with one of these; its open connections are closed."""


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
    """Keeps files under a URI prefix. Raises StoreError."""

    uri: str

    @property
    def presigner(self) -> Presigner | None:
        """Signs requests by which nodes store and read files themselves; None: they cannot."""

    def list(self, prefix: str = "") -> Iterator[Artifact]:
        """What the store holds, asked now; `sha256` is empty where the store does not tell it,
        `md5` too."""

    def download(self, path: str) -> Iterator[bytes]:
        """The bytes of one file."""

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        """Store one file under the prefix; visible whole or not at all."""

    def copy(self, source: str, target: str) -> None:
        """The same bytes under another name, in the store itself where it can do so."""

    def delete(self, path: str) -> None:
        """One file; no error where there is none."""


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
