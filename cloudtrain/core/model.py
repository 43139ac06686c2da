"""Values: what is requested, planned, existing and landed.

ClusterConfig (requested) → Plan of NodePlan (to be created) → Cluster of Node (exists) → Run of
Task (one training run, run_record.py) → Artifact (landed). All are frozen, keyword-only, and hold
tuples. Durations are seconds, sizes bytes unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from cloudtrain.core.codec import PATH
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.shell import Secret
from cloudtrain.core.task_id import TaskId

DEFAULT_PORT = 8900
"""Default port of TensorFlow's servers."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a config file."""

    file: str
    line: int | None
    field: str
    text: str

    def __str__(self) -> str:
        if self.file == "--set":
            return f"--set {self.field}: {self.text}"
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.field}: {self.text}" if self.field else f"{where}: {self.text}"


# ── ClusterConfig: what the user requested; config/sections.py describes each field ──────────


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """GPUs of one node, written `T4:1` in the file."""

    kind: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


@dataclass(frozen=True, kw_only=True)
class MachineType:
    provider: str
    name: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None = None
    """Built in, or attached by `cheapest` of the catalog."""
    attachable: tuple[Accelerator, ...] = ()
    """Accelerators that can be attached (GCP's n1)."""
    arm: bool = False
    scratch_gb: int | None = None
    """GB of its local disks, mounted or not; None if not known."""


Market = Literal["on-demand", "spot", "flex-start", "reservation", "capacity-block"]
"""How a cloud sells machines."""
MARKETS: tuple[Market, ...] = get_args(Market)


@dataclass(frozen=True, kw_only=True)
class Provisioning:
    """Way in which machines are bought: `provisioning:` of a role."""

    market: Market = "on-demand"
    name: str = ""
    """The reservation or capacity block, by the cloud's name or id."""

    @property
    def spot(self) -> bool:
        return self.market == "spot"

    @property
    def shown(self) -> str:
        """Text beside a machine; "" on demand."""
        return "" if self.market == "on-demand" else str(self)

    def __str__(self) -> str:
        text = self.market if self.market == "flex-start" else self.market.replace("-", " ")
        return f"{text} {self.name}".rstrip()


ON_DEMAND = Provisioning()
SPOT = Provisioning(market="spot")


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """All nodes of one role."""

    count: int = 1
    machine: str | None = None
    accelerator: Accelerator | None = None
    disk_gb: int | None = None
    provisioning: Provisioning = ON_DEMAND

    @property
    def spot(self) -> bool:
        return self.provisioning.spot


PROXY_PLACEHOLDERS = ("address", "port", "name", "id", "zone", "region", "project")
"""What `network.ssh_proxy.command` may name of a node in braces."""


@dataclass(frozen=True, kw_only=True)
class SshProxy:
    """Proxy for SSH connections to the nodes; exactly one field is set."""

    jump: str | None = None
    iap: bool = False
    ssm: bool = False
    bastion: str | None = None
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    subnet: str | None = None
    vpc: str | None = None
    firewall: tuple[str, ...] | None = None
    """(): nodes get none, as those of their subnet hold. None: our own."""
    http_proxy: str | None = None
    no_proxy: tuple[str, ...] = ()
    ssh_from: str = "auto"
    ssh_proxy: SshProxy | None = None
    os_login: bool = False
    private: bool = False
    close: Literal["auto", "on", "off"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Software on each node. `tensorflow=None` installs none. With an `image` there is no other:
    tasks run in containers of it."""

    image: str | None = None
    registry_user: str | None = None
    registry_password: str | None = None
    """Name under `secrets:`."""
    tensorflow: str | None = None
    python: str = "auto"
    keras: Literal["auto", "3", "legacy"] = "auto"
    packages: tuple[str, ...] = ()
    requirements: str | None = None
    index: str | None = None
    index_password: str | None = None
    """Name under `secrets:`."""
    install: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    timeout: float = 1800.0
    cache: Literal["auto", "off"] = "auto"
    prove: Literal["auto", "off"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Code:
    """Source of the user's code: a git URL with a ref, or a local folder."""

    git: str | None = None
    ref: str | None = None
    token: str | None = None
    """Name under `secrets:` of the token for `git` over https; passed only to git."""
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Train:
    """Command and policies of a run. Timeouts are seconds; None is off."""

    command: str = ""
    """The line of each role that `commands` does not name; empty for none."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Role → its own line: `command` of the file as a mapping, without its `default`."""
    dir: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = DEFAULT_PORT
    max_restarts: int = 0
    spot_retries: int | None = None
    retry_exit_codes: tuple[int, ...] = ()
    success: Literal["chief", "all_workers", "all"] | None = None
    tf_config: Literal["auto", "estimator"] | bool = "auto"
    checkpoints: str | None = None
    start_timeout: float = 120.0
    stall_timeout: float | None = None
    deadline: float | None = None
    grace: float = 10.0
    evaluator_grace: float = 600.0

    def line(self, role: str) -> str:
        """The role's shell line, with its placeholders; empty for none."""
        return self.commands.get(role, self.command)

    def lines(self) -> dict[str, str]:
        """Every line by its field: `train.command`, and `train.command.ps` for a role's own."""
        own = {f"train.command.{role}": line for role, line in self.commands.items()}
        return ({"train.command": self.command} if self.command else {}) | own


AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ArtifactRules:
    """The `artifacts:` section; `limit` in bytes, `every` in seconds."""

    store: str | None = None
    create: bool = False
    encryption: str | None = None
    paths: tuple[str, ...] = (AUTO,)
    limit: int = 5_000_000_000
    require: tuple[str, ...] = ()
    every: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Input data that every node downloads before the first attempt; `source` is its URI."""

    source: str
    shard: bool = False
    rest: Literal["refuse", "drop"] = "refuse"
    role: str | None = None
    """Role whose nodes get it; None: all, with `shard` the chief and the workers."""
    requester_pays: bool = False


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """One folder at the same path on every node (`shared:`), which lands from the first task."""

    folder: str = "shared"
    """Its name in each task's work folder."""
    path: str | None = None
    """Folder that all nodes have in common already; None: the first node serves one."""


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    compute: str | None = None
    storage: str | None = None
    auth: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The `limits:` section; None: no such limit."""

    max_lifetime: float | None = 12 * 3600.0
    """Seconds from a node's creation until it ends."""
    idle: float | None = None
    """Seconds without use until the cluster goes down."""
    idle_gpu: float | None = None
    """Seconds without work of its GPUs until a node ends itself, whatever shell is open."""
    max_price: float | None = None
    """$/hour of the whole cluster."""
    budget: float | None = None
    """$ of the whole cluster, over all its time."""
    wait: float | None = 1800.0
    """Seconds for which nodes are requested again."""
    give_back: float | Literal["auto"] | None = "auto"
    """Seconds for which the nodes that are left wait for a lost one."""


@dataclass(frozen=True, kw_only=True)
class Notify:
    """Recipients of messages: names under `secrets:` of URLs, and a program of this machine."""

    end: str | None = None
    failed: str | None = None
    budget: str | None = None
    idle: str | None = None
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Away:
    """The `away:` section: the small machine (the desk) that attends to `run --away`."""

    identity: str | None = None
    machine: str | None = None
    """Machine type; None: `Cloud.desk_machine`."""
    mark: str = ""
    """Of a desk's own config: the label of all that is created for it, of `desk_mark`."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """An existing machine (`provider: hosts`)."""

    address: str
    role: str
    user: str | None = None
    key: str | None = None
    port: int = 22


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of several clouds, places or machines for the cluster (`any_of`, `ordered`): the fields
    in which they may differ, each whole."""

    provider: str
    placement: tuple[str, ...]
    project: str | None = None
    network: Network = field(default_factory=Network)
    identity: str | None = None
    image: str = "auto"
    resource_group: str | None = None
    disk_key: str | None = None
    endpoints: Endpoints = field(default_factory=Endpoints)
    nodes: Mapping[str, NodeGroup] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """A whole validated file. `source` is its absolute path. Of a file with candidates it is the
    config as one of them reads it (`cluster/place_choice`)."""

    name: str
    provider: str
    """A name of `providers.NAMES`."""
    strategy: str
    """A name of `strategies.STRATEGIES`."""
    nodes: Mapping[str, NodeGroup]
    project: str | None = None
    placement: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)
    identity: str | None = None
    resource_group: str | None = None
    """None: one of our own for each cluster and region."""
    disk_key: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    image: str = "auto"
    setup: Setup = field(default_factory=Setup)
    code: Code = field(default_factory=Code)
    train: Train = field(default_factory=Train)
    artifacts: ArtifactRules = field(default_factory=ArtifactRules)
    data: Mapping[str, DataSource] = field(default_factory=dict)
    shared: SharedFolder | None = None
    """If set, `train.checkpoints` is its `folder`."""
    endpoints: Endpoints = field(default_factory=Endpoints)
    limits: Limits = field(default_factory=Limits)
    notify: Notify = field(default_factory=Notify)
    away: Away = field(default_factory=Away)
    hosts: tuple[Host, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Name in the task's environment → name of the local variable with the value. Never a value."""
    source: str = ""
    overrides: tuple[str, ...] = ()
    """FIELD=VALUE texts of `--set`, which are part of the file; variables in them not expanded."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Field that the user's defaults file filled in → place there, `config.yaml:3`."""
    written: Mapping[str, str] = field(default_factory=dict)
    """JSON Pointer of a field → its text with `${VAR}`, which is shown in place of the value."""
    env_file: str = ""
    """Absolute path of `--env-file`, which is read again for the secrets; "" for none."""
    candidates: tuple[Candidate, ...] = ()
    """All candidates as written; empty without `any_of` and `ordered`."""
    candidate_order: Literal["", "any_of", "ordered"] = ""
    """Whether candidates are tried by price or as written; "" without candidates."""

    @property
    def own_secrets(self) -> frozenset[str | None]:
        """Names under `secrets:` that are for cloudtrain itself, and for no task."""
        return (self._secrets_beside_git | {self.code.token}) - {None}

    @property
    def git_secret(self) -> str | None:
        """The entry under `secrets:` that git alone needs, if any: not where the code is there."""
        return None if self.code.token in self._secrets_beside_git else self.code.token

    @property
    def _secrets_beside_git(self) -> frozenset[str | None]:
        told = self.notify
        setup = {self.setup.index_password, self.setup.registry_password}
        return frozenset({*setup, told.end, told.failed, told.budget, told.idle})

    def disk_key_in(self, region: str) -> str | None:
        """The key for disks in a region."""
        return self.disk_key and self.disk_key.replace("{region}", region)

    @property
    def folder(self) -> Path:
        """Base folder of relative paths in the file (`code.path`, `setup.requirements`)."""
        return Path(self.source).parent


# ── Owner: whose it is ───────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner according to labels; all fields are "" if there is none."""

    id: str = ""
    """A short hash of the account's principal. Before version 0.2: the user's login name."""
    name: str = ""
    """Display name; not unique."""
    machine: str = ""
    """Machine that created it."""

    @property
    def is_login(self) -> bool:
        """True for a cluster that an earlier version created."""
        return bool(self.id) and self.id == self.name

    def __str__(self) -> str:
        return self.name or "nobody"


# ── Plan: what is to be created ──────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class NodePlan(TaskId):
    """One node to be created. `name` is unique in the account: `mnist-worker0`."""

    name: str
    port: int
    """The port of this node's TensorFlow server."""
    machine: str | None = None
    accelerator: Accelerator | None = None
    disk_gb: int | None = None
    provisioning: Provisioning = ON_DEMAND
    internal: str = ""
    """Internal address that it must have, by TF_CONFIG of running tasks; "" for any."""

    @property
    def spot(self) -> bool:
        return self.provisioning.spot


@dataclass(frozen=True, kw_only=True)
class Plan:
    config: ClusterConfig
    nodes: tuple[NodePlan, ...]
    """In TF_CONFIG's order: chief, worker, ps, evaluator, then any other role by name."""
    owner: Owner = field(default_factory=Owner)
    """Owner of everything that is created."""
    generation: str = ""
    """Label of everything that is created; chosen by the provider."""
    creating_until: float | None = None
    """Unix time, for the label of what is being created."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Images of the nodes, also of new ones: the provider's key for `image:` → the cloud's id."""
    latest_end: float | None = None
    """Unix time after which no node may go on, as `limits.budget` is spent then; None: never."""
    earliest_end: float | None = None
    """Unix time before which no restarted node may end, as its files land then; None: any."""

    def accelerator(self, node: str) -> Accelerator | None:
        """Accelerator of the node with that name."""
        return next((each.accelerator for each in self.nodes if each.name == node), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)


# ── Cluster: what exists ─────────────────────────────────────────────────────

NodeState = Literal["starting", "running", "stopped", "gone", "unknown", "untrusted"]
"""Of `hosts` alone: `unknown` does not answer now, `untrusted` has another host key."""


@dataclass(frozen=True, kw_only=True)
class Node(TaskId):
    """A node as its provider reports it now.

    `address` is where SSH reaches it from here, `internal` where the cluster's other nodes do.
    Commands start in the user's home on the node; `cache` is a folder there (relative to that home,
    or absolute) that outlives clusters. Nodes with one `host` share a machine and a cache, machines
    with one `home` their files."""

    name: str
    state: NodeState
    address: str
    internal: str
    ssh_port: int = 22
    user: str = "cloudtrain"
    host: str = ""
    home: str = ""
    """Name that the first `up` gave the user's home, which may be on a network; else empty."""
    cache: str = ".cache/cloudtrain"
    shared_cache: str = ""
    """Folder beside it for environments of other configs, too, which nodes only read; "": none."""
    shared_folder: str = ""
    """Folder of this machine that its cluster's nodes see at this path; "": none."""
    placement: str = ""
    """The zone, or the region if it has none."""
    task_ports: tuple[int, ...] = ()
    """Ports that its provider reserves for its TensorFlow server, in order of preference."""
    host_keys: tuple[str, ...] = ()
    """Host keys that its provider vouches for, if the key was not created by us."""
    ssh_proxy: tuple[str, ...] = ()
    """Command whose stdin and stdout are a connection to its SSH port; empty: TCP to `address`."""
    machine: str = ""
    """The cloud's machine type."""
    provisioning: Provisioning = ON_DEMAND
    """How it was bought, as the cloud lists it."""
    disk_gb: int | None = None
    """Size of the root disk, if the cloud lists it."""
    identities: tuple[str, ...] | None = None
    """Identities that the cloud lists for it, whoever attached them; None if it lists none."""
    created: float | None = None
    """Unix time, as reported by the cloud."""
    expires: float | None = None
    """Unix time at which the cloud ends it."""
    no_end: str = ""
    """Why the cloud will not end it then, in its own words; empty if it will, or was not asked."""
    fault: str = ""
    """Why its state is not known."""
    owner: Owner = field(default_factory=Owner)
    generation: str = ""
    """The creation that made it, at random; "" if an earlier version did, or not on a cloud."""
    creating_until: float | None = None
    """Unix time until which the command that made it may be at work on it."""
    desk: str = ""
    """Label of a desk of `run --away`, of `desk_mark`; "" for any other node."""

    @property
    def spot(self) -> bool:
        return self.provisioning.spot

    @property
    def storage(self) -> str:
        """The same for nodes that share their files, so that what one creates is there for all."""
        return self.home or self.host or self.name


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Keys of one cluster in OpenSSH formats: one user key, and one host key for each node.
    Providers put `public_key` and the host's private key on a node before it first answers; the
    transport then accepts that host key and no other."""

    private_key: Path
    public_key: str
    host_keys: Mapping[str, HostKey]
    """By node name."""
    known_hosts: Path


@dataclass(frozen=True, kw_only=True)
class HostKey:
    """Host key that a node is created with. On a cloud it is part of the user data, so it is
    replaced at the first login by one whose private half is only on that node."""

    public: str
    """`ssh-ed25519 AAAA…`"""
    private: Secret
    accepted: tuple[str, ...] = ()
    """Public keys to accept instead of `public`; two while the key is being replaced."""

    @property
    def pins(self) -> tuple[str, ...]:
        """Host keys to accept from the node."""
        return self.accepted or (self.public,)

    @property
    def rotated(self) -> bool:
        return self.public not in self.pins


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`nodes` in the plan's order; all of them exist."""

    name: str
    nodes: tuple[Node, ...]


LONGEST_CREATION = 86400.0
"""Seconds: more than any creation takes. A label with a later time is not of a creation at work."""


def is_being_created(until: float | None, now: float) -> bool:
    """True if a creation may be at work, by the time in its label."""
    return until is not None and now < until < now + LONGEST_CREATION


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Nodes and other resources of one cluster in an account, by labels alone, without a record."""

    cluster: str
    provider: str
    nodes: tuple[Node, ...] = ()
    resources: tuple[str, ...] = ()
    """Everything else, each in words: `security group cloudtrain-mnist (sg-1) in us-east-1`."""
    owners: tuple[Owner, ...] = ()
    """Owners by label, sorted by name; empty if there are no labels."""
    generations: tuple[str, ...] = ()
    """Creations that made it, by label, sorted; empty for one of an earlier version."""
    creating_until: float | None = None
    """Unix time until which it may be being created; None if nothing says so."""
    desks: tuple[str, ...] = ()
    """Labels of desks of `run --away` on any of it, sorted."""


# ── Artifact: what landed ────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One file in a store. `path` is its own path there; in a run's manifest it is `<task>/<path in
    the task's work folder>`.

    `at` is where it lies below the run's prefix. It differs from `path` while a run goes on: a
    changed file is put beside its last landed version, never over it, so that what a manifest lists
    is whole at every moment. `mtime` (ns) and `stamp` are the node's: a file that still has its
    stamp has not changed."""

    path: str = field(metadata=PATH)
    size: int = field(metadata={"ge": 0})
    sha256: str = field(metadata={"pattern": "[0-9a-f]{64}"})
    """Empty if it was only listed, not read."""
    md5: str = ""
    """In hex; empty if unknown. Stores can report it without reading the file."""
    version: str = ""
    """The store's own version of it, such as an ETag: the same as long as nobody has written it
    anew; empty if the store lists none. A manifest has that of files whose `md5` it cannot compare.
    """
    at: str = field(default="", metadata=PATH)
    mtime: int = 0
    stamp: str = ""

    def __post_init__(self) -> None:
        if not self.at:
            object.__setattr__(self, "at", self.path)
