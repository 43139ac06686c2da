"""The config file: its sections and fields, one row each.

Reader, JSON Schema (configs/schema.json), docs/config.md, fields of a user's own defaults, and
facts by which nodes are compared come from these rows; the defaults are those of model.py."""

from __future__ import annotations

from typing import Annotated, Any

from cloudtrain.config import fields as kinds
from cloudtrain.config.network_sections import (
    EndpointsSection,
    HostsItem,
    NetworkSection,
    ProxyCommand,
)
from cloudtrain.config.section import (
    DOWN_FIRST,
    NEXT_RUN,
    REPLACE,
    Effect,
    Fact,
    Section,
    optional,
    required,
    section_in,
)
from cloudtrain.config.training_sections import (
    ArtifactsSection,
    CodeSection,
    Data,
    SecretName,
    SetupSection,
    Shared,
    TrainSection,
)
from cloudtrain.config.yaml_source import Scalar
from cloudtrain.core import model
from cloudtrain.core.cloud import clouds

_CANDIDATES = Effect(
    "live",
    "a cluster that is up stays in its candidate; fields of that one have the effects of this "
    "table",
)


def _provisioning(spot: bool | None, given: model.Provisioning | None) -> dict[str, Any]:
    """The field of model.NodeGroup for both ways to write it."""
    chosen = given or (model.SPOT if spot else None)
    return {"provisioning": chosen} if chosen else {}


class NodesEntry(Section):
    """The nodes of one role, under the role's name. `chief: false`: the cluster has no chief."""

    of = model.NodeGroup
    below = ".ROLE"
    change = REPLACE
    count: kinds.NodeCount | None = optional(
        Effect("live", "`up` adds nodes; surplus nodes are deleted only by `up --shrink`")
    )
    """Number of nodes with this role."""
    machine: kinds.Line | None = optional(fact=Fact())
    """Machine type, by the cloud's own name."""
    accelerator: kinds.GpuKind | None = optional(fact=Fact(words={None: "no accelerator"}))
    """GPUs of each node: `T4:1`, or `T4` for one."""
    disk_gb: kinds.Gigabytes | None = optional(
        fact=Fact(form="disk_gb {}", words={None: "default disk size"})
    )
    """Size of the root disk in GB; at least that of the image."""
    spot: kinds.Boolean | None
    """Use spot capacity: cheaper, but may be preempted at any time. Short for `provisioning:
    spot`."""
    provisioning: kinds.Provision | None = optional(fact=Fact())
    """How the machines are bought; which cloud and machine has what: [machines.md](machines.md). A
    reservation or block is one of your own, and is never made or cancelled here."""

    def to_model(self, **changes: Any) -> Any:
        return super().to_model(**_provisioning(self.spot, self.provisioning), **changes)


# One at which a run is ended is also in runs/limits.LIMITS.
class LimitsSection(Section):
    """Limits on a cluster's lifetime and price."""

    of = model.Limits
    max_lifetime: kinds.DurationOrOff | None = optional(
        Effect(
            "live",
            "it counts from the creation of the cluster. AWS, Azure: `up` changes the expiry of "
            "running nodes; GCP cannot: refused, `up --replace` recreates them",
        ),
        default="any",
    )
    """Lifetime of the nodes, armed on the cloud's side at their creation. On by default."""
    idle: kinds.DurationOrOff | None = optional(
        Effect("live", "the next command that works on the cluster reads it"), default="any"
    )
    """After this time without use, land the artifacts and take the cluster down. If this machine is
    off, the nodes of AWS and GCP end themselves ten minutes later
    ([budget.md](budget.md#who-ends-what))."""
    idle_gpu: kinds.DurationOrOff | None = optional(
        Effect("live", "the next `up` or `train` reads it"), default="any"
    )
    """An open shell does not count as use of nodes whose GPUs were all below 5 % for this time: the
    nodes end themselves (AWS, GCP). A run is never ended by it."""
    max_price: kinds.Price | None = optional(Effect("live", "`up` checks it"), default="any")
    """Maximum $/hour for the whole cluster, with its disks and addresses, checked before anything
    is created."""
    budget: kinds.Price | None = optional(
        Effect(
            "live",
            "what was spent since the first `up` counts. AWS, Azure: `up` moves the expiry of "
            "running nodes; GCP cannot: a lower budget that they would exceed is refused",
        ),
        default="clouds",
    )
    """$ from the first `up` to `down`, disks and addresses included: warned of at 80 %; at 100 %
    the run is ended, its artifacts landed, and the cluster taken down. The nodes' lifetime, armed
    on the cloud's side, holds it ([budget.md](budget.md))."""
    wait: kinds.DurationOrOff | None = optional(NEXT_RUN, default="any")
    """Before a restart, how long to wait for capacity for a lost node. `up` does not wait, except
    in the queue of flex-start."""
    give_back: kinds.AutoDurationOrOff | None = optional(NEXT_RUN, default="any")
    """How long the other nodes are kept, and billed, meanwhile. After that everything on them is
    landed, they are deleted, and the wait goes on for all nodes. `auto`: as long as it took to make
    them ready; on-demand nodes with GPUs are kept. Only with `train.checkpoints`."""


class AwaySection(Section):
    """The controller: a small machine that attends to `run --away` ([away.md](away.md))."""

    of = model.Away
    change = Effect("next run", "the next `run --away` reads it")
    identity: kinds.Identity | None
    """An existing identity of the account for the controller alone, in the form of `identity`. With
    it the controller creates and deletes the nodes and reads and writes the store. Training nodes
    never get it. Required for `run --away`."""
    machine: kinds.Line | None
    """Machine type of the controller. Default: a small one."""


class NotifySection(Section):
    """Messages from whoever attends to the cluster: names, under `secrets`, of URLs that get a POST
    (Slack, Teams, Discord, ntfy, or JSON for any other). No task gets them."""

    of = model.Notify
    change = NEXT_RUN
    end: SecretName | None
    """A run has succeeded."""
    failed: SecretName | None
    """A run has failed or was stopped."""
    budget: SecretName | None
    """`limits.budget` is spent, and the cluster taken down."""
    idle: SecretName | None
    """`limits.idle` is over, and the cluster taken down."""
    command: ProxyCommand | None
    """A program of this machine, run without a shell in this file's folder for each of these, with
    the JSON on its stdin."""


Tags = Annotated[dict[kinds.TagName, kinds.TagValue], kinds.Before(kinds.mapping)]
Secrets = Annotated[dict[kinds.EnvironmentName, kinds.SecretVariable], kinds.Before(kinds.mapping)]


def _group(node: Any) -> Any:
    """A role's nodes: `false` disables the role, an empty value is one node with the defaults."""
    if isinstance(node, Scalar) and not kinds.is_null(node):
        try:
            if kinds.boolean(node) is False:
                return None
        except ValueError:
            pass
        raise kinds.InvalidValue("must be a mapping such as {count: 2}, or false")
    return node


Nodes = Annotated[
    dict[str, Annotated[NodesEntry | None, kinds.Before(_group), kinds.Also("false", const=False)]],
    kinds.Before(kinds.mapping),
]


class CandidateNodes(Section):
    """Settings of a candidate that replace those of `nodes` for one role."""

    of = model.NodeGroup
    machine: kinds.Line | None
    """Machine type of this cloud; drops the `accelerator` of `nodes`."""
    accelerator: kinds.GpuKind | None
    """GPUs of each node; drops the `machine` of `nodes`."""
    disk_gb: kinds.Gigabytes | None
    """Size of the root disk in GB."""
    spot: kinds.Boolean | None
    """Use spot capacity; drops the `provisioning` of `nodes`."""
    provisioning: kinds.Provision | None
    """How the machines are bought; drops the `spot` of `nodes`."""

    def to_model(self, **changes: Any) -> Any:
        return super().to_model(**_provisioning(self.spot, self.provisioning), **changes)


class CandidateEntry(Section):
    """A cloud and places for the whole cluster. Fields that it does not have are those beside the
    list."""

    of = model.Candidate
    provider: kinds.ProviderChoice = required()
    """The cloud."""
    placement: tuple[kinds.Line, ...] = required()
    """Zones or regions; each is an offer of its own, with its price."""
    project: kinds.Line | None
    """As beside the list."""
    network: NetworkSection | None
    """As beside the list; fields are merged."""
    image: kinds.Line | None
    """As beside the list."""
    identity: kinds.Identity | None
    """As beside the list."""
    resource_group: kinds.Line | None
    """As beside the list."""
    disk_key: kinds.Line | None
    """As beside the list."""
    endpoints: EndpointsSection | None
    """As beside the list; fields are merged."""
    nodes: Annotated[dict[str, CandidateNodes], kinds.Before(kinds.mapping)] | None
    """Roles with other machines here; their counts are those of `nodes`."""


class ConfigFile(Section):
    """A cluster: what to train, on what, and where the results go."""

    of = model.ClusterConfig
    name: kinds.Name | None = optional(
        Effect("down first", "another name is another cluster, next to the first")
    )
    """Cluster name: `[a-z][a-z0-9-]{0,29}`. Default: the file's name without its extension. Names
    are unique in an account, across users."""
    provider: kinds.ProviderChoice | None = optional(DOWN_FIRST, default="any")
    """Where the nodes are: `local` rehearses on this machine, `hosts` uses existing machines.
    Required, unless `any_of` or `ordered` lists candidates."""
    project: kinds.Line | None = optional(
        DOWN_FIRST,
        default="one cloud",
        text=(
            "; ".join(f"{cloud.name}: {cloud.project_word}" for cloud in clouds())
            + ". Default: from the environment."
        ),
    )
    placement: tuple[kinds.Line, ...] | None = optional(
        Effect("replace", "only if it no longer lists the place of the nodes"), default="one cloud"
    )
    """Zones or regions, tried in order until one has capacity for all nodes. Required on a
    cloud."""
    any_of: tuple[CandidateEntry, ...] | None = optional(_CANDIDATES)
    """Instead of `provider` and `placement`: several clouds, places and machines. `up` takes the
    cheapest that has room for all nodes ([any-cloud.md](any-cloud.md))."""
    ordered: tuple[CandidateEntry, ...] | None = optional(_CANDIDATES)
    """The same as `any_of`, but tried as written."""
    network: NetworkSection | None
    """Network of the nodes, and who can reach them."""
    identity: kinds.Identity | None = optional(
        Effect(
            "replace",
            "a running node would keep tokens of the old one, and GCP changes stopped VMs only",
        ),
        default="one cloud",
        fact=Fact(form="identity {}", words={None: "no identity"}),
        text=(
            "An existing identity for every node, for scripts that use buckets themselves. "
            + "; ".join(f"{each.name}: {each.identity.word}" for each in clouds() if each.identity)
            + ". What it may do, every process on every node may do until the node is deleted. "
            "Default: `none`."
        ),
    )
    resource_group: kinds.Line | None = optional(DOWN_FIRST, default="one cloud")
    """Azure: an existing resource group for everything that is created; it is never deleted
    ([companies.md](companies.md#a-resource-group)). Default: cloudtrain creates one for each
    cluster and region."""
    disk_key: kinds.Line | None = optional(
        Effect("replace", "a disk keeps the key with which it was created"),
        default="one cloud",
        fact=Fact(form="disk_key {}", words={None: "no disk_key"}),
        text=(
            "An existing key of yours that encrypts the nodes' disks. "
            + "; ".join(f"{each.name}: {each.disk_key.word}" for each in clouds() if each.disk_key)
            + ". `{region}` in it is the node's region ([companies.md](companies.md#disk-keys)). "
            "Default: the cloud's own key."
        ),
    )
    tags: Tags | None = optional(
        Effect("replace", "networks, firewalls and groups that exist keep theirs until `down`"),
        default="clouds",
        fact=Fact(form="tags {}", words={None: "no tags"}, empty=None),
    )
    """Tags (GCP: labels) on every resource that is created, from its creation on: `NAME: value`
    ([companies.md](companies.md#tags))."""
    strategy: kinds.StrategyChoice | None = optional(
        Effect("next run", "roles that it adds or removes: as `count`")
    )
    """TensorFlow's distribution strategy, which determines the roles. Required."""
    nodes: Nodes | None
    """The nodes by role: `chief`, `worker`, `ps`, `evaluator`."""
    image: kinds.Line | None = optional(REPLACE, default="one cloud", fact=Fact(form="image {}"))
    """`auto`, `ubuntu-22.04`, `ubuntu-24.04`, `deeplearning`, or the cloud's own image id."""
    setup: SetupSection | None
    """Software installed on each node."""
    code: CodeSection | None
    """Source of the code."""
    train: TrainSection | None
    """The command that runs on every node."""
    artifacts: ArtifactsSection | None
    """Files to land, and the store."""
    data: Data | None
    """Input data by name, which nodes download before the first attempt: `{data.NAME}` and
    `CLOUDTRAIN_DATA_NAME` are its folder on the node ([data.md](data.md))."""
    shared: Shared | None
    """A folder that all nodes share."""
    endpoints: EndpointsSection | None
    """Addresses of the cloud's services."""
    limits: LimitsSection | None
    """Limits on lifetime and price."""
    notify: NotifySection | None
    """Who is told of an end."""
    away: AwaySection | None
    """The machine that attends to `run --away`."""
    hosts: Annotated[tuple[HostsItem, ...], kinds.Also("INI file", type="string")] | None
    """The machines of `provider: hosts`, or the path of an INI file whose `[cluster]` has `chief=`,
    `worker=`, `ps=` lists of `host:port`."""
    secrets: Secrets | None = optional(NEXT_RUN)
    """Environment variables of the tasks whose values are never logged or stored: `NAME: ${VAR}`.
    Those named by `code.token`, `notify` and in `setup:` go to no task."""


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """Section that holds the keys at `path`: `("nodes", "worker")` → NodesEntry."""
    section: type[Section] = ConfigFile
    for part in path:
        field = section.by_key().get(str(part))
        if field is None:
            continue  # an item of a list, or a name of the user's: a role, a dataset
        inner = section_in(field.type)
        if inner is None:
            return None
        section = inner
    return section
