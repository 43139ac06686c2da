"""Interfaces to everything outside this program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cloudtrain.core.dataclass import dataclass

if TYPE_CHECKING:
    from cloudtrain.core.errors import CloudtrainError
    from cloudtrain.core.events import Event
    from cloudtrain.core.model import (
        Accelerator,
        Artifact,
        ClusterConfig,
        Holding,
        Identity,
        MachineType,
        Node,
        Plan,
    )
    from cloudtrain.core.partial_list import NotAsked, PartialList, SpotEvidence, Whereabouts
    from cloudtrain.core.presign import Presigner
    from cloudtrain.core.shell import Command

Journal = Callable[["Event"], None]
"""`journal(NodeRequested(node="mnist-worker0"))`: writes to disk before the cloud is called.

Providers write PlacementTried before they request anything there, NodeRequested and
NodeDeletionBegun, ResourceRequested before they create anything else, and PlacementRefused for a
placement without capacity."""
Expected = Mapping[str, float] | None
"""Nodes that an earlier call requested without a recorded answer, by name, with the Unix time of
the request: they may exist and not be listed yet, as a cloud may list a new node late."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check. `error` is the exception class whose exit code it ends with."""

    what: str
    ok: bool
    text: str
    hint: str | None = None
    error: type[Exception] | None = None
    told: bool = True
    """False if it could not be checked."""
    place: str = ""
    """The candidate that it is about, `gcp us-central1`; "" if it is about all."""
    lines: tuple[str, ...] = ()
    """The text in short lines, for people; (): as it is."""

    @classmethod
    def of(cls, what: str, error: CloudtrainError, *, served: bool = False) -> Finding:
        """Make that of an error; `served`: another place has what this one lacks."""
        kind = None if served else type(error)
        return cls(what=what, ok=served, text=error.message, hint=error.hint, error=kind)


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """A machine type as its cloud describes it."""

    name: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None
    """Built in."""
    arm: bool = False
    scratch_gb: int | None = None
    """All its local disks together, whether mounted or not; None if the cloud does not say."""


@runtime_checkable
class WritesPolicies(Protocol):
    """A provider whose cloud grants rights by a policy or a role. Asks nobody."""

    def policy(self, config: ClusterConfig) -> str:
        """Least policy or role for what this file uses, to paste; "" if that is not known."""


@runtime_checkable
class AsksMachines(Protocol):
    """A provider of machines that exist without it, and that it can ask before they are nodes."""

    def ask_machines(
        self, program: str, arguments: Callable[[Node], Sequence[str]]
    ) -> dict[str, str | CloudtrainError]:
        """Output of a Python program on each machine, or why there is none, by task."""


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Number of machines of a type that an account's GPU and vCPU quotas leave in a region."""

    machine: str
    accelerator: Accelerator
    region: str
    spot: bool
    machines: int | None
    """None if not known, or without a limit: `quota` says which."""
    quota: str
    """The scarcest: `NVIDIA_T4_GPUS: 1 of 4 in use`, or which are not reported."""


@runtime_checkable
class RentsMachines(Protocol):
    """A provider of machines that a cloud rents out: what that cloud also tells."""

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        """Facts of the types that exist in the plan's placement, as far as the cloud reports."""

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        """Allowances of the quotas for each machine with its accelerator, on demand and as spot, in
        these regions; without regions, in all that the account may use. Changes nothing.
        `not_asked` has the regions that did not answer. Raises CloudError."""

    def spot_evidence(self, plan: Plan) -> tuple[SpotEvidence, ...]:
        """Evidence on the places of the plan, in their order; empty if the plan has no spot nodes
        or the cloud says nothing. Changes nothing. Raises CloudError."""

    def nodes_and_ends(self, cluster: str) -> PartialList[Node]:
        """Same as Provider.nodes, with `Node.no_end` as the cloud says; with what is foreign."""

    def own_end(self, node: Node) -> str:
        """Line of sh that succeeds if the node's timer ends it at `expires`; "": the cloud does."""

    def delete_from_inside(self, cluster: str, journal: Journal) -> None:
        """Delete the cluster of the machine that runs this program: all that can be deleted before
        that machine, then the machine, in one last call.

        This process may end at any moment after that call. What the machine used until its end (a
        network, a security group) stays, without a price, for `destroy` from elsewhere. Raises
        CloudError."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Identity under which an account knows us."""

    id: str
    """Unique, and the same from every machine: an e-mail, an ARN, an object id."""
    name: str
    """Display name."""


class Provider(Protocol):
    """Creates, lists and deletes nodes. One folder per cloud in providers/. Each has `def
    provider(config: ClusterConfig) -> Provider`. What exists is read from the cloud by label at
    each call and never remembered."""

    name: str
    whereabouts: Whereabouts | None
    """Where the cluster may be; set by the caller that opens the provider."""

    def principal(self) -> Principal | None:
        """Owner of what these credentials create; None if not reported. Raises CloudError."""

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        """Find what would make `create` fail; changes nothing, costs nothing."""

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        """Extra checks of `check --deep`: the actual requests of `create`, validated by the cloud.
        Each finding says what was done and what it cost; none if the cloud validates nothing."""

    def create(
        self, plan: Plan, identity: Identity, journal: Journal, expected: Expected = None
    ) -> tuple[Node, ...]:
        """Create all nodes of the plan in parallel; returns them in the plan's order. Adopts
        existing nodes.

        A stopped node is restarted with its disk unchanged. All or nothing: if one node cannot be
        created, those created by this call are deleted and the next placement is tried. Raises
        CapacityError, QuotaError, … with every placement's refusal."""

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        """List every node of the cluster, in the places where it may be by its record and config. A
        deleted node is not listed. Raises NotAskedError for a zone or region that counts and does
        not answer."""

    def find(self, cluster: str) -> PartialList[Node]:
        """List every node of the cluster in the account, and the places that did not answer."""

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Expected = None,
        *,
        spared: Collection[str] = (),
        claimed: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        """Delete everything of the cluster, then list again.

        Raises LeftoverError naming what is left, NotAskedError naming the places where something
        may be left. Returns places that did not answer and in which, by the record, the cluster
        never was. The nodes of `expected` are waited for. Those in the places `spared` are kept.
        `claimed`: generations that are deleted although, by their labels, a creation may be at work
        on them."""

    def remove(
        self, cluster: str, names: Sequence[str], journal: Journal, expected: Expected = None
    ) -> None:
        """Delete these nodes as `destroy` does, and nothing else of the cluster."""

    def move_ends(
        self,
        cluster: str,
        names: Sequence[str],
        expires: float | None,
        tell: Callable[[Node, str], None],
    ) -> None:
        """Change the expiry of these running nodes to `expires` (Unix time; None: never).
        `tell(node, line)` runs a line of sh there, for an expiry that the node itself enforces."""

    def serial_log(self, cluster: str, node: str) -> str:
        """End of the serial log of a node that cannot be reached; empty if there is none."""

    def sweep(self) -> PartialList[Holding]:
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
    open one breaks, HostKeyMismatch when another machine answers."""

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
        """Run a command to its end. Handlers receive the bytes as they arrive; `Completed` then
        lacks them. `timeout` seconds without a byte in either direction raise NodeUnreachable."""

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        """Run a short sh script over the node's persistent shell: a round trip, no new channel."""

    def close(self) -> None:
        """Close every connection; detached processes on the nodes continue."""


class HostKeys(Protocol):
    """Host keys that a transport accepts."""

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """Accept only one of these for that node from now on; closes its open connections."""


SMALL = 1 << 16
"""Bytes that are read of a file for `swap`, whoever has written it."""


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """Result of a conditional write; if not `done`, the conflicting content."""

    done: bool
    version: str = ""
    """The store's version of the current content; "" if there is none."""
    data: bytes = b""
    age: float = 0.0
    """Seconds since it was written, by the store's clock."""


class ArtifactStore(Protocol):
    """Keeps files under a URI prefix. One file per kind of store in stores/. Raises StoreError."""

    uri: str

    @property
    def presigner(self) -> Presigner | None:
        """Signs requests with which nodes upload and download files; None if not supported."""

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        """List the files; `sha256` and `md5` are empty if the store does not report them. `known`:
        paths that are expected: a store may list what is between them side by side."""

    def download(self, path: str) -> Iterator[bytes]:
        """Bytes of one file."""

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        """Store one file under the prefix; visible whole or not at all."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file to another name, inside the store if it can."""

    def delete(self, path: str) -> None:
        """Delete one file; no error if it does not exist."""


class StoreBackend(ArtifactStore, Protocol):
    """Interface of each kind of store in stores/: artifacts, the bucket, and a cluster's lease."""

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create the bucket near `location` (a region of its cloud), with these tags if its
        service has any, if it does not exist. Returns True if it was created."""

    def check(self) -> None:
        """Write, read and delete a small file, so that a refusal comes before any cost."""

    def swap(self, path: str, data: bytes | None, version: str) -> Swapped:
        """Write a small file (None: delete it) only if it still has that version ("": does not
        exist). Of several concurrent writers, one succeeds."""

    def peek(self, path: str) -> Swapped:
        """Read a small file, as `swap` returns it: at most its first SMALL bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """An object as its service lists it. `size` in bytes; checksums in hex, "" if not listed."""

    key: str
    size: int
    version: str
    """ETag or generation: a request for it fails once the object has changed. "": none."""
    md5: str = ""
    crc32c: str = ""
    is_folder: bool = False
    """Stands for a folder, and has no content."""
    is_archived: bool = False
    """Must be restored by its owner before it can be read."""


class Stage(Protocol):
    """One line of progress, `done` of `total`, with each node's current work."""

    def node(self, name: str, text: str) -> None: ...

    def done(self, name: str, text: str = "") -> None: ...


class SilentStage:
    """A stage that is not shown."""

    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass


class Console(Protocol):
    """Shows messages and progress; nothing is printed elsewhere."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        """Progress of one step over `total` nodes: bars on a terminal, timed lines elsewhere."""

    def task_output(self, task: str, data: bytes) -> None:
        """New log bytes of one task, shown as lines prefixed with the task's name."""
