"""Values: what is asked for, planned, existing and landed.

ClusterConfig (asked for) → Plan of NodePlan (to be created) → Cluster of Node (exists) → Run of
Task (one training run, run_record.py) → Artifact (landed). All are frozen, keyword-only, and hold
tuples. Durations are seconds, sizes bytes unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cloudtrain.codec import PATH
from cloudtrain.shell import Secret
from cloudtrain.task_id import TaskId

DEFAULT_PORT = 8900
"""Of TensorFlow's servers where none is named."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a config file."""

    file: str
    line: int | None
    field: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.field}: {self.text}" if self.field else f"{place}: {self.text}"


# ── ClusterConfig: what the user asked for ───────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """GPUs of one node, written `T4:1` in the file."""

    kind: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """All nodes of one role."""

    count: int = 1
    machine: str | None = None
    accelerator: Accelerator | None = None
    disk_gb: int | None = None
    spot: bool = False


@dataclass(frozen=True, kw_only=True)
class Network:
    subnet: str | None = None
    ssh_from: str = "auto"
    private: bool = False
    close: Literal["auto", "on", "off"] = "auto"
    """Whether nodes are put close together, by the cloud's placement group."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Software on each node. `tensorflow=None` installs none."""

    tensorflow: str | None = None
    python: str = "auto"
    keras: Literal["auto", "3", "legacy"] = "auto"
    packages: tuple[str, ...] = ()
    requirements: str | None = None
    run: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Code:
    """Source of the user's code: a git URL with a ref, or a local folder."""

    git: str | None = None
    ref: str | None = None
    token: str | None = None
    """The name under `secrets:` of what opens `git` over https; git alone is given it."""
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Train:
    """Command and policies of a run. Timeouts are seconds; None is off."""

    command: str = ""
    dir: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = DEFAULT_PORT
    max_restarts: int = 0
    spot_retries: int | None = None
    retry_exit_codes: tuple[int, ...] = ()
    success: Literal["chief", "all_workers", "all"] | None = None
    tf_config: Literal["auto"] | bool = "auto"
    checkpoints: str | None = None
    start_timeout: float = 120.0
    stall_timeout: float | None = None
    deadline: float | None = None
    grace: float = 10.0
    evaluator_grace: float = 600.0


@dataclass(frozen=True, kw_only=True)
class ArtifactRules:
    """The `artifacts:` section. `paths` are globs relative to a task's work folder."""

    store: str | None = None
    create: bool = False
    paths: tuple[str, ...] = ("output/**",)
    require: tuple[str, ...] = ()
    every: float | None = None


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    compute: str | None = None
    storage: str | None = None
    auth: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`max_lifetime`, `idle` and `wait` in seconds, `max_price` in $/hour for the whole cluster."""

    max_lifetime: float | None = 12 * 3600.0
    idle: float | None = None
    max_price: float | None = None
    wait: float | None = 1800.0
    """For a lost node to be had again; `up` does not wait."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """An existing machine (`provider: hosts`)."""

    address: str
    role: str
    user: str | None = None
    key: str | None = None
    port: int = 22


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """A whole validated file. `source` is the absolute path that it was read from."""

    name: str
    provider: str
    """A name of `providers.NAMES`."""
    strategy: str
    """A name of `strategies.STRATEGIES`."""
    nodes: Mapping[str, NodeGroup]
    project: str | None = None
    placement: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)
    image: str = "auto"
    setup: Setup = field(default_factory=Setup)
    code: Code = field(default_factory=Code)
    train: Train = field(default_factory=Train)
    artifacts: ArtifactRules = field(default_factory=ArtifactRules)
    endpoints: Endpoints = field(default_factory=Endpoints)
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[Host, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Name in the task's environment → name of the variable here that holds it. Never the value."""
    source: str = ""

    @property
    def folder(self) -> Path:
        """Folder that relative paths of the file start in (`code.path`, `setup.requirements`)."""
        return Path(self.source).parent


# ── Owner: whose it is ───────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner according to labels: all fields "" if they name none."""

    id: str = ""
    """A short hash of the account's principal. Before version 0.2: the user's login name."""
    name: str = ""
    """For people to read; two owners may have one name."""
    machine: str = ""
    """Where it was made from."""

    @property
    def is_login(self) -> bool:
        """True for a cluster that an earlier version created."""
        return bool(self.id) and self.id == self.name

    def __str__(self) -> str:
        return self.name or "nobody"


# ── Plan: what is to be made ─────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class NodePlan(TaskId):
    """One node to be created. `name` is unique in the account: `mnist-worker0`."""

    name: str
    port: int
    """The port of this node's TensorFlow server."""
    machine: str | None = None
    accelerator: Accelerator | None = None
    disk_gb: int | None = None
    spot: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    config: ClusterConfig
    nodes: tuple[NodePlan, ...]
    """In TF_CONFIG's order: chief, worker, ps, evaluator, then any other role by name."""
    owner: Owner = field(default_factory=Owner)
    """Whose all that is made will be."""
    images: Mapping[str, str] = field(default_factory=dict)
    """What `image:` meant when the nodes that exist were made: the provider's key → the cloud's
    id. A node that joins them gets the same."""

    def accelerator(self, node: str) -> Accelerator | None:
        """Accelerator of the node with that name."""
        return next((each.accelerator for each in self.nodes if each.name == node), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)


# ── Cluster: what exists ─────────────────────────────────────────────────────

NodeState = Literal["starting", "running", "stopped", "gone", "unknown", "untrusted"]
"""Of `hosts`, where nobody else can tell of a machine: `unknown` cannot be asked now, `untrusted`
answers with a host key that is not the one that is known."""


@dataclass(frozen=True, kw_only=True)
class Node(TaskId):
    """A node as its provider reports it now.

    `address` is where SSH reaches it from here, `internal` where the cluster's other nodes do.
    Commands start in the user's home on the node; `cache` is a folder there (relative to that home,
    or absolute) that outlives clusters. Nodes with one `host` share a machine and a cache.
    """

    name: str
    state: NodeState
    address: str
    internal: str
    ssh_port: int = 22
    user: str = "cloudtrain"
    host: str = ""
    cache: str = ".cache/cloudtrain"
    placement: str = ""
    """The zone, or the region where it has none."""
    task_ports: tuple[int, ...] = ()
    """Kept for its TensorFlow server by its provider, first choice first."""
    host_keys: tuple[str, ...] = ()
    """What its provider vouches for where the host key is not one that we made."""
    machine: str = ""
    """The cloud's machine type."""
    spot: bool = False
    disk_gb: int | None = None
    """Of the root disk, where the cloud's list tells it."""
    created: float | None = None
    """Unix time, as the cloud tells it."""
    expires: float | None = None
    """Unix time at which the cloud ends it by itself."""
    fault: str = ""
    """Why its state is not known."""
    owner: Owner = field(default_factory=Owner)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Keys of one cluster: one user key, and one host key for each node. OpenSSH formats.

    Providers put `public_key` and the host's private key on a node before it first answers; the
    transport then accepts that host key and no other.
    """

    private_key: Path
    public_key: str
    host_keys: Mapping[str, HostKey]
    """By node name."""
    known_hosts: Path


@dataclass(frozen=True, kw_only=True)
class HostKey:
    """Host key that a node is created with.

    On a cloud it stands in the user data, so the node gets another at its first login, whose
    private half is on that node alone.
    """

    public: str
    """`ssh-ed25519 AAAA…`"""
    private: Secret
    accepted: tuple[str, ...] = ()
    """Public keys, where others than `public` are accepted now: two while the key is changed."""

    @property
    def pins(self) -> tuple[str, ...]:
        """Host keys that the node may have."""
        return self.accepted or (self.public,)

    @property
    def rotated(self) -> bool:
        return self.public not in self.pins


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`nodes` in the plan's order; all of them exist."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What an account holds of one cluster, by labels alone; no record is needed."""

    cluster: str
    provider: str
    nodes: tuple[Node, ...] = ()
    resources: tuple[str, ...] = ()
    """Everything else, each in words: `security group cloudtrain-mnist (sg-1) in us-east-1`."""
    owners: tuple[Owner, ...] = ()
    """Who made it, sorted by name; none where nothing tells."""


# ── Artifact: what landed ────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One file in a store. `path` is its own path there; in a run's manifest it is `<task>/<path in
    the task's work folder>`.

    `at` is where it lies below the run's prefix. It differs from `path` while a run goes on: a
    changed file is put beside its last landed version, never over it, so that what a manifest lists
    is whole at every moment. `mtime` (ns) and `stamp` are the node's: a file that still has its
    stamp has not changed.
    """

    path: str = field(metadata=PATH)
    size: int = field(metadata={"ge": 0})
    sha256: str = field(metadata={"pattern": "^[0-9a-f]{64}$"})
    """Empty if it was only listed, not read."""
    md5: str = ""
    """In hex; empty if unknown. Stores can report it without reading the file."""
    at: str = field(default="", metadata=PATH)
    mtime: int = 0
    stamp: str = ""

    def __post_init__(self) -> None:
        if not self.at:
            object.__setattr__(self, "at", self.path)
