"""The config file: every section and field, one row each.

Reader, JSON Schema (configs/schema.json), docs/config.md, fields of a user's own defaults, and
facts by which nodes are compared come from these rows; the defaults are those of model.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from cloudtrain.config import address_fields as addresses
from cloudtrain.config import fields as kinds
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
from cloudtrain.config.yaml_source import Block, Path, Scalar
from cloudtrain.core import model
from cloudtrain.core.cloud import clouds

_INSTALLED = Effect(
    "live", "the next `train` applies it too; what is no longer listed stays installed"
)
_CANDIDATES = Effect(
    "live",
    "a cluster that is up stays in its candidate; fields of that one have the effects of this "
    "table",
)
_HOST = Effect("down first", "more machines can be added")


def _provisioning(spot: bool | None, given: model.Provisioning | None) -> dict[str, Any]:
    """The field of model.NodeGroup for both ways to write it."""
    chosen = given or (model.SPOT if spot else None)
    return {"provisioning": chosen} if chosen else {}


class NodesEntry(Section):
    """The nodes of one role, under the role's name. `chief: false`: the cluster has no chief."""

    of = model.NodeGroup
    below = ".ROLE"
    change = REPLACE
    count: kinds.Count | None = optional(
        "Number of nodes with this role.",
        Effect("live", "`up` adds nodes; surplus nodes are deleted only by `up --shrink`"),
    )
    machine: kinds.Line | None = optional("Machine type, by the cloud's own name.", fact=Fact())
    accelerator: kinds.GpuKind | None = optional(
        "GPUs of each node: `T4:1`, or `T4` for one.", fact=Fact(words={None: "no accelerator"})
    )
    disk_gb: kinds.Gigabytes | None = optional(
        "Size of the root disk in GB; at least that of the image.",
        fact=Fact(form="disk_gb {}", words={None: "default disk size"}),
    )
    spot: kinds.Boolean | None = optional(
        "Use spot capacity: cheaper, but may be preempted at any time. Short for `provisioning: "
        "spot`."
    )
    provisioning: kinds.Provision | None = optional(
        "How the machines are bought; which cloud and machine has what: "
        "[machines.md](machines.md). A reservation or block is one of your own, and is never made "
        "or cancelled here.",
        fact=Fact(),
    )

    def to_model(self, **changes: Any) -> Any:
        return super().to_model(**_provisioning(self.spot, self.provisioning), **changes)


class SshProxySection(Section):
    """Proxy for SSH connections to the nodes: one of these. `ssh_proxy: iap` and
    `ssh_proxy: ssm` are short for `{iap: true}` and `{ssm: true}`."""

    of = model.SshProxy
    jump: addresses.JumpHosts | None = optional(
        "A jump host, as for `ssh -J`: `[user@]host[:port]`, several separated by commas. Your own "
        "OpenSSH config and agent log in there."
    )
    iap: kinds.Boolean | None = optional(
        "GCP: Identity-Aware Proxy, by `gcloud compute start-iap-tunnel`."
    )
    ssm: kinds.Boolean | None = optional("AWS: Session Manager, by `aws ssm start-session`.")
    bastion: addresses.Bastion | None = optional(
        "Azure: a Bastion, by `az network bastion tunnel`: `GROUP/NAME` or its resource ID."
    )
    command: addresses.ProxyCommand | None = optional(
        "A command whose stdin and stdout are the connection, run without a shell. `{address}`, "
        "`{port}`, `{name}`, `{id}`, `{zone}`, `{region}` and `{project}` are filled in."
    )


def _ssh_proxy(node: Any) -> Any:
    """The short form: the name of a cloud's own service."""
    if not isinstance(node, Scalar) or kinds.is_null(node):
        return node
    name = kinds.text(node)
    if name not in ("iap", "ssm"):
        raise kinds.InvalidValue("must be iap, ssm, or a mapping such as {jump: user@host}")
    return SshProxySection.model_construct({name}, **{name: True})


SshProxy = Annotated[
    SshProxySection, BeforeValidator(_ssh_proxy), kinds.Also("iap | ssm", enum=["iap", "ssm"])
]


class NetworkSection(Section):
    """Network of the nodes, and who can reach them over SSH."""

    of = model.Network
    change = REPLACE
    subnet: kinds.Line | None = optional(
        "An existing subnet. Default: one is chosen or created.",
        default="one cloud",
        fact=Fact(form="subnet {}", words={None: "cloudtrain's own choice of subnet"}),
    )
    vpc: kinds.Line | None = optional(
        "Instead of `subnet`: an existing network, of which the subnet in each zone or region is "
        "used (aws: a VPC's ID; gcp: a network's name or path).",
        default="one cloud",
        fact=Fact(form="vpc {}", words={None: "cloudtrain's own choice of network"}),
    )
    firewall: addresses.Firewall | None = optional(
        "`own`: cloudtrain creates firewall rules or a security group. Existing ones are used as "
        "they are, never changed or deleted. "
        + "; ".join(f"{each.name}: {each.firewall.word}" for each in clouds() if each.firewall)
        + ". `existing`: nothing is attached, the rules of the subnet hold (gcp, azure) "
        "([companies.md](companies.md#networks)).",
        default="one cloud",
        fact=Fact(form="firewall {}", words={None: "cloudtrain's own firewall"}, empty="existing"),
    )
    http_proxy: addresses.Proxy | None = optional(
        "Proxy by which the nodes reach the internet (apt, pip, uv, git, uploads, tasks), without "
        "a user in it ([companies.md](companies.md#proxies)). This machine uses its own "
        "`HTTPS_PROXY`.",
        default="clouds",
        fact=Fact(key="proxy", form="proxy {}", words={None: "no proxy"}),
    )
    no_proxy: tuple[addresses.HostName, ...] | None = optional(
        "Hosts, domains or addresses that nodes reach without `http_proxy`, besides each other, "
        "private addresses and the metadata service.",
        default="clouds",
        fact=Fact(words={"": "none"}),
    )
    ssh_from: addresses.Caller | None = optional(
        "Source addresses that may use SSH: `auto` is the caller's own address/32, or what "
        "`ssh_proxy` connects from; `none` opens nothing.",
        Effect("live", "each `up` updates the firewall"),
        default="clouds",
    )
    ssh_proxy: SshProxy | None = optional(
        "What SSH goes through, for nodes without public addresses "
        "([private-nodes.md](private-nodes.md)). Default: direct connections.",
        Effect("live", "`up` updates the firewall; other commands use what the last `up` had"),
    )
    os_login: kinds.Boolean | None = optional(
        "GCP: create the nodes with OS Login enabled, as organizations may require.",
        fact=Fact(words={True: "OS Login", False: "no OS Login"}),
    )
    private: kinds.Boolean | None = optional(
        "Create the nodes without public addresses.",
        default="clouds",
        fact=Fact(words={True: "no public address", False: "public address"}),
    )
    close: kinds.Close | None = optional(
        "Place nodes close together, in a placement group: `auto` only for machines with a fast "
        "interconnect (100 Gbit/s or more), `on` wherever the cloud supports it, `off` never. If "
        "the group has no capacity, the same zone is tried without it.",
        Effect("live", "for nodes created from then on"),
        default="clouds",
    )


class SetupSection(Section):
    """Software installed on each node. Without `tensorflow`, TensorFlow is not installed."""

    of = model.Setup
    change = _INSTALLED
    tensorflow: kinds.Version | None = optional(
        "TensorFlow version; the node's accelerator decides between the CPU and the CUDA build."
    )
    python: kinds.Python | None = optional(
        "`auto` (on `local` first the Python that runs cloudtrain), a version such as "
        '`"3.11"`, or the absolute path of an interpreter on the node.'
    )
    keras: kinds.KerasChoice | None = optional(
        "`auto` is `legacy` (tf_keras) if the strategy needs it with TensorFlow 2.16 or later."
    )
    packages: tuple[kinds.Package, ...] | None = optional(
        "Packages for pip, optionally with versions."
    )
    requirements: kinds.Requirements | None = optional(
        "A local requirements file, pyproject.toml or uv.lock; relative paths start in this file's "
        "folder. `code:FILE` is a requirements file in the delivered code."
    )
    install: kinds.Folders | None = optional(
        "Folders of the delivered code that pip installs, such as `.`, with a `pyproject.toml` or "
        "`setup.py`; for its runs alone."
    )
    run: tuple[kinds.ShellLine, ...] | None = optional("Shell lines to run in order on every node.")
    timeout: kinds.Duration | None = optional(
        "Time for each line of `run`; then it is ended.", NEXT_RUN
    )
    cache: kinds.AutoOrOff | None = optional(
        "`auto`: one node creates the environment, the other nodes and later clusters get it from "
        "there or from `artifacts.store`. `off`: each node creates its own.",
        NEXT_RUN,
        default="any",
    )
    prove: kinds.AutoOrOff | None = optional(
        "`auto`: before a run, each node multiplies matrices, computes a convolution with its "
        "gradient, compiles with XLA, and reduces with the others. A node that cannot ends the run "
        "before it starts, a slow one is named. `off` skips it.",
        NEXT_RUN,
        default="any",
    )


class CodeSection(Section):
    """Source of the code: `git` or `path`, not both. Without either, no code is delivered."""

    of = model.Code
    change = NEXT_RUN
    git: kinds.Git | None = optional(
        "URL of a git repository. A private one is fetched by this machine, with your git or SSH "
        "credentials."
    )
    ref: kinds.Line | None = optional(
        "Branch, tag or commit of `git`. Default: the repository's default branch."
    )
    token: kinds.SecretName | None = optional(
        "Name, under `secrets`, of a token for `git` over https. It stays on this machine and is "
        "never sent to a node or task."
    )
    path: kinds.Line | None = optional(
        "A local folder; relative paths start in this file's folder. `.gitignore` and "
        "`.cloudtrainignore` are honoured."
    )


def _mapping(node: Any) -> Any:
    if not isinstance(node, Block):
        raise kinds.InvalidValue("must be a mapping: `NAME: value` lines, indented")
    return node


Environment = Annotated[
    dict[kinds.EnvironmentName, kinds.EnvironmentValue], BeforeValidator(_mapping)
]
Tags = Annotated[dict[kinds.TagName, kinds.TagValue], BeforeValidator(_mapping)]
Secrets = Annotated[dict[kinds.EnvironmentName, kinds.SecretVariable], BeforeValidator(_mapping)]


def _by_role(node: Any) -> Any:
    """Lines by role; the only line of all roles has the key ""."""
    if isinstance(node, Scalar):
        kinds.shell_line(node)  # raises at `train.command`, not at a key that is not in the file
        return {"": node}
    if not isinstance(node, Block):
        raise kinds.InvalidValue("must be a shell line, or a mapping of them by role")
    return node


Command = Annotated[
    dict[str, kinds.ShellLine],
    BeforeValidator(_by_role),
    kinds.Also("shell line", type=["string", "number", "boolean"]),
]


class TrainSection(Section):
    """The command that runs on every node, and how its run is supervised."""

    of = model.Train
    change = NEXT_RUN
    command: Command | None = optional(
        "Shell line to run for every task, or a mapping of such lines by role, with `default` for "
        "the other roles. `{output}`, `{role}`, `{index}`, `{chief.ip}`, `{ROLE.hosts}` "
        "(`host:port,host:port` of a role's tasks), `{data.NAME}`, `{tpu}` and `{run}` are filled "
        "in; other braces stay. Required in a `train:` section."
    )
    dir: kinds.Inside | None = optional("Folder inside the code in which the command starts.")
    env: Environment | None = optional(
        "Environment variables of the tasks; the same braces are filled in as in `command`."
    )
    port: kinds.TaskPort | None = optional(
        "Port of the TensorFlow servers; with `provider: local`, that of the first one. If not "
        "set, `local` nodes take free ports."
    )
    max_restarts: kinds.Restarts | None = optional(
        "How often a run restarts after a failure that can be retried. With `parameter_server` "
        "also how often each worker is restarted alone, while the others run on; if 0, the run "
        "continues without it."
    )
    spot_retries: kinds.Restarts | None = optional(
        "After this many refused requests for a spot node (of a restarted run, or of `up --wait`), "
        "request it on demand, within `limits.max_price`. If not set, never."
    )
    retry_exit_codes: tuple[kinds.ExitCode, ...] | None = optional(
        "Exit codes to retry, besides 42 and 143; a lost node or a signal is always retried."
    )
    success: kinds.SuccessChoice | None = optional(
        "Which tasks must exit with 0 for the run to succeed. Default: by strategy."
    )
    tf_config: kinds.TfConfigChoice | None = optional(
        "Whether tasks get TF_CONFIG; `auto` decides by strategy. `estimator`: an evaluator "
        "gets the others' cluster, as `tf.estimator` requires; `auto` does so with TensorFlow 1."
    )
    checkpoints: kinds.FolderInside | None = optional(
        "Checkpoint folder in a task's work folder: the chief's copy is landed, and copied to "
        "every task's node before each attempt. If not set, a restarted multi_worker_mirrored run "
        "starts from the beginning."
    )
    start_timeout: kinds.Duration | None = optional("Time for a task to open its port.")
    stall_timeout: kinds.DurationOrOff | None = optional(
        "End the attempt after this time without log output from any task."
    )
    deadline: kinds.DurationOrOff | None = optional(
        "Maximum duration of a run, all attempts together."
    )
    grace: kinds.Duration | None = optional(
        "Time between TERM and KILL when a task is ended, and for what one that has ended by "
        "itself left in the background."
    )
    evaluator_grace: kinds.Duration | None = optional(
        "Longest time for the evaluator to score the last checkpoint after success; it is ended as "
        "soon as it has. On a cloud without `checkpoints` there is no wait, as it gets none."
    )

    def to_model(self, **changes: Any) -> Any:
        lines = dict(self.command or {})
        every = lines.pop("", None) or lines.pop("default", "")
        return super().to_model(command=every, commands=lines, **changes)

    def texts(self) -> dict[Path, str]:
        """All texts with placeholders, by their path in the section."""
        lines: dict[Path, str] = {
            ("command", role) if role else ("command",): line
            for role, line in (self.command or {}).items()
        }
        return lines | {("env", name): value for name, value in (self.env or {}).items()}


class ArtifactsSection(Section):
    """Files to land. Paths and globs are relative to each task's work folder."""

    of = model.ArtifactRules
    change = NEXT_RUN
    store: addresses.Store | None = optional(
        "`gs://BUCKET/prefix`, `s3://BUCKET/prefix`, `az://ACCOUNT/CONTAINER/prefix` or "
        "`file:///path`.",
        default="any",
    )
    create: kinds.Boolean | None = optional(
        "`up` and `run` create the bucket or container if it does not exist, near the first "
        "placement if that is in the same cloud. cloudtrain never deletes it."
    )
    encryption: addresses.Encryption | None = optional(
        "`s3://` only: the server-side encryption that each upload asks for, also those of nodes, "
        "for a bucket whose policy demands it. `AES256`, `aws:kms` (the account's key) or "
        "`aws:kms:KEY` (an id, ARN or alias)."
    )
    paths: kinds.Globs | None = optional(
        "Files to land. `auto`: all that a task made or changed in its work folder and its node's "
        "home, up to `limit`; or globs. `output/**` always lands."
    )
    limit: kinds.Size | None = optional(
        "Most of what lands by `auto` from one task. A node that holds more is kept: exit 5."
    )
    require: tuple[kinds.Inside, ...] | None = optional(
        "Globs that must match landed files for the run to succeed."
    )
    every: kinds.DurationOrOff | None = optional(
        "Interval for landing during training.", default="any"
    )


class DataEntry(Section):
    """Input data under a name of yours; `NAME: URI` is short for `NAME: {from: URI}`."""

    of = model.DataSource
    below = ".NAME"
    change = Effect("next run", "nodes download what they lack")
    source: addresses.DataUri | None = optional(
        "`gs://`, `s3://`, `az://`, `file://`: a prefix (folder) or one object; `https://`: one "
        "object. Required.",
        key="from",
    )
    shard: kinds.Boolean | None = optional(
        "Give rank i of n every n-th file, in equal counts, instead of all files to every node. "
        "Ranks are the chief and the workers, or the nodes of `role`. The script must then not "
        "shard by itself (`AutoShardPolicy.OFF`)."
    )
    rest: kinds.RestChoice | None = optional(
        "Files beyond the largest equal count: `refuse` the dataset, or `drop` them."
    )
    role: kinds.Line | None = optional("Only the nodes of this role get it. Default: all nodes.")
    requester_pays: kinds.Boolean | None = optional(
        "`s3://` and `gs://`: your account pays for requests and traffic, as the bucket's owner "
        "demands; for `gs://` it is `project:`, on another cloud the project of your login."
    )


def _dataset(node: Any) -> Any:
    """A dataset's short form: its URI alone."""
    if isinstance(node, Scalar):
        return DataEntry.model_construct({"source"}, source=addresses.data_uri(node))
    return node


Data = Annotated[
    dict[
        addresses.DataName,
        Annotated[DataEntry, BeforeValidator(_dataset), kinds.Also("URI", type="string")],
    ],
    BeforeValidator(_mapping),
]


class EndpointsSection(Section):
    """Service addresses for sovereign clouds, private endpoints and S3-compatible stores."""

    of = model.Endpoints
    compute: addresses.Url | None = optional(
        "Of the compute service.", DOWN_FIRST, default="one cloud"
    )
    storage: addresses.Url | None = optional(
        "Of the object storage service.", NEXT_RUN, default="one cloud"
    )
    auth: addresses.Url | None = optional(
        "Of the token service.", Effect("live", "every command reads it"), default="one cloud"
    )


class LimitsSection(Section):
    """Limits on a cluster's lifetime and price."""

    of = model.Limits
    max_lifetime: kinds.DurationOrOff | None = optional(
        "Lifetime of the nodes, armed on the cloud's side at their creation. On by default.",
        Effect(
            "live",
            "it counts from the creation of the cluster. AWS, Azure: `up` changes the expiry of "
            "running nodes; GCP cannot: refused, `up --replace` recreates them",
        ),
        default="any",
    )
    idle: kinds.DurationOrOff | None = optional(
        "After this time without a run, land the artifacts and take the cluster down.",
        Effect("live", "the next command that works on the cluster reads it"),
        default="any",
    )
    max_price: kinds.Price | None = optional(
        "Maximum $/hour for the whole cluster, with its disks and addresses, checked before "
        "anything is created.",
        Effect("live", "`up` checks it"),
        default="any",
    )
    budget: kinds.Price | None = optional(
        "$ from the first `up` to `down`, disks and addresses included: warned of at 80 %; at "
        "100 % the run is ended, its artifacts landed, and the cluster taken down. The nodes' "
        "lifetime, armed on the cloud's side, holds it ([budget.md](budget.md)).",
        Effect(
            "live",
            "what was spent since the first `up` counts. AWS, Azure: `up` moves the expiry of "
            "running nodes; GCP cannot: a lower budget that they would exceed is refused",
        ),
        default="clouds",
    )
    wait: kinds.DurationOrOff | None = optional(
        "Before a restart, how long to wait for capacity for a lost node. `up` does not wait, "
        "except in the queue of flex-start.",
        NEXT_RUN,
        default="any",
    )
    give_back: kinds.AutoDurationOrOff | None = optional(
        "How long the other nodes are kept, and billed, meanwhile. After that everything on them "
        "is landed, they are deleted, and the wait goes on for all nodes. `auto`: as long as it "
        "took to make them ready; on-demand nodes with GPUs are kept. Only with "
        "`train.checkpoints`.",
        NEXT_RUN,
        default="any",
    )


class AwaySection(Section):
    """The controller: a small machine that attends to `run --away` ([away.md](away.md))."""

    of = model.Away
    change = Effect("next run", "the next `run --away` reads it")
    identity: kinds.Identity | None = optional(
        "An existing identity of the account for the controller alone, in the form of `identity`. "
        "With it the controller creates and deletes the nodes and reads and writes the store. "
        "Training nodes never get it. Required for `run --away`."
    )
    machine: kinds.Line | None = optional("Machine type of the controller. Default: a small one.")


class HostsItem(Section):
    """One existing machine, for `provider: hosts`."""

    of = model.Host
    below = "[]"
    change = _HOST
    address: addresses.Address = required("Host name or address for SSH from this machine.")
    role: kinds.Line = required("Role of the machine; indexes follow the order of the list.")
    user: addresses.User | None = optional("User to log in as.")
    key: kinds.Line | None = optional(
        "Private key file; relative paths start in this file's folder.",
        Effect("live", "every command reads it"),
    )
    port: kinds.SshPort | None = optional("SSH port.")


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
    dict[
        str, Annotated[NodesEntry | None, BeforeValidator(_group), kinds.Also("false", const=False)]
    ],
    BeforeValidator(_mapping),
]


class CandidateNodes(Section):
    """Settings of a candidate that replace those of `nodes` for one role."""

    of = model.NodeGroup
    machine: kinds.Line | None = optional(
        "Machine type of this cloud; drops the `accelerator` of `nodes`."
    )
    accelerator: kinds.GpuKind | None = optional(
        "GPUs of each node; drops the `machine` of `nodes`."
    )
    disk_gb: kinds.Gigabytes | None = optional("Size of the root disk in GB.")
    spot: kinds.Boolean | None = optional("Use spot capacity; drops the `provisioning` of `nodes`.")
    provisioning: kinds.Provision | None = optional(
        "How the machines are bought; drops the `spot` of `nodes`."
    )

    def to_model(self, **changes: Any) -> Any:
        return super().to_model(**_provisioning(self.spot, self.provisioning), **changes)


class CandidateEntry(Section):
    """A cloud and places for the whole cluster. Fields that it does not have are those beside the
    list."""

    of = model.Candidate
    provider: kinds.ProviderChoice = required("The cloud.")
    placement: tuple[kinds.Line, ...] = required(
        "Zones or regions; each is an offer of its own, with its price."
    )
    project: kinds.Line | None = optional("As beside the list.")
    network: NetworkSection | None = optional("As beside the list; fields are merged.")
    image: kinds.Line | None = optional("As beside the list.")
    identity: kinds.Identity | None = optional("As beside the list.")
    resource_group: kinds.Line | None = optional("As beside the list.")
    disk_key: kinds.Line | None = optional("As beside the list.")
    endpoints: EndpointsSection | None = optional("As beside the list; fields are merged.")
    nodes: Annotated[dict[str, CandidateNodes], BeforeValidator(_mapping)] | None = optional(
        "Roles with other machines here; their counts are those of `nodes`."
    )


class ConfigFile(Section):
    """A cluster: what to train, on what, and where the results go."""

    of = model.ClusterConfig
    name: kinds.Name | None = optional(
        "Cluster name: `[a-z][a-z0-9-]{0,29}`. Default: the file's name without its extension. "
        "Names are unique in an account, across users.",
        Effect("down first", "another name is another cluster, next to the first"),
    )
    provider: kinds.ProviderChoice | None = optional(
        "Where the nodes are: `local` rehearses on this machine, `hosts` uses existing machines. "
        "Required, unless `any_of` or `ordered` lists candidates.",
        DOWN_FIRST,
        default="any",
    )
    project: kinds.Line | None = optional(
        "; ".join(f"{cloud.name}: {cloud.project_word}" for cloud in clouds())
        + ". Default: from the environment.",
        DOWN_FIRST,
        default="one cloud",
    )
    placement: tuple[kinds.Line, ...] | None = optional(
        "Zones or regions, tried in order until one has capacity for all nodes. Required on a "
        "cloud.",
        Effect("replace", "only if it no longer lists the place of the nodes"),
        default="one cloud",
    )
    any_of: tuple[CandidateEntry, ...] | None = optional(
        "Instead of `provider` and `placement`: several clouds, places and machines. `up` takes "
        "the cheapest that has room for all nodes ([any-cloud.md](any-cloud.md)).",
        _CANDIDATES,
    )
    ordered: tuple[CandidateEntry, ...] | None = optional(
        "The same as `any_of`, but tried as written.", _CANDIDATES
    )
    network: NetworkSection | None = optional("Network of the nodes, and who can reach them.")
    identity: kinds.Identity | None = optional(
        "An existing identity for every node, for scripts that use buckets themselves. "
        + "; ".join(f"{each.name}: {each.identity.word}" for each in clouds() if each.identity)
        + ". What it may do, every process on every node may do until the node is deleted. "
        "Default: `none`.",
        Effect(
            "replace",
            "a running node would keep tokens of the old one, and GCP changes stopped VMs only",
        ),
        default="one cloud",
        fact=Fact(form="identity {}", words={None: "no identity"}),
    )
    resource_group: kinds.Line | None = optional(
        "Azure: an existing resource group for everything that is created; it is never deleted "
        "([companies.md](companies.md#a-resource-group)). Default: cloudtrain creates one for each "
        "cluster and region.",
        DOWN_FIRST,
        default="one cloud",
    )
    disk_key: kinds.Line | None = optional(
        "An existing key of yours that encrypts the nodes' disks. "
        + "; ".join(f"{each.name}: {each.disk_key.word}" for each in clouds() if each.disk_key)
        + ". `{region}` in it is the node's region ([companies.md](companies.md#disk-keys)). "
        "Default: the cloud's own key.",
        Effect("replace", "a disk keeps the key with which it was created"),
        default="one cloud",
        fact=Fact(form="disk_key {}", words={None: "no disk_key"}),
    )
    tags: Tags | None = optional(
        "Tags (GCP: labels) on every resource that is created, from its creation on: `NAME: value` "
        "([companies.md](companies.md#tags)).",
        Effect("replace", "networks, firewalls and groups that exist keep theirs until `down`"),
        default="clouds",
        fact=Fact(form="tags {}", words={None: "no tags"}, empty=None),
    )
    strategy: kinds.StrategyChoice | None = optional(
        "TensorFlow's distribution strategy, which determines the roles. Required.",
        Effect("next run", "roles that it adds or removes: as `count`"),
    )
    nodes: Nodes | None = optional("The nodes by role: `chief`, `worker`, `ps`, `evaluator`.")
    image: kinds.Line | None = optional(
        "`auto`, `ubuntu-22.04`, `ubuntu-24.04`, `deeplearning`, or the cloud's own image id.",
        REPLACE,
        default="one cloud",
        fact=Fact(form="image {}"),
    )
    setup: SetupSection | None = optional("Software installed on each node.")
    code: CodeSection | None = optional("Source of the code.")
    train: TrainSection | None = optional("The command that runs on every node.")
    artifacts: ArtifactsSection | None = optional("Files to land, and the store.")
    data: Data | None = optional(
        "Input data by name, which nodes download before the first attempt: `{data.NAME}` and "
        "`CLOUDTRAIN_DATA_NAME` are its folder on the node ([data.md](data.md))."
    )
    endpoints: EndpointsSection | None = optional("Addresses of the cloud's services.")
    limits: LimitsSection | None = optional("Limits on lifetime and price.")
    away: AwaySection | None = optional("The machine that attends to `run --away`.")
    hosts: Annotated[tuple[HostsItem, ...], kinds.Also("INI file", type="string")] | None = (
        optional(
            "The machines of `provider: hosts`, or the path of an INI file whose `[cluster]` has "
            "`chief=`, `worker=`, `ps=` lists of `host:port`."
        )
    )
    secrets: Secrets | None = optional(
        "Environment variables of the tasks whose values are never logged or stored: `NAME: "
        "${VAR}`. The one named by `code.token` is used only for git.",
        NEXT_RUN,
    )


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """Section that holds the keys at `path`: `("nodes", "worker")` → NodesEntry."""
    section: type[Section] = ConfigFile
    for part in path:
        info = section.by_key().get(str(part))
        if info is None:
            continue  # an item of a list, or a name of the user's: a role, a dataset
        inner = section_in(info.annotation)
        if inner is None:
            return None
        section = inner
    return section
