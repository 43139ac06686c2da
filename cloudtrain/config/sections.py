"""The config file: every section and field, and what each means.

Reader, JSON Schema (configs/schema.json) and docs/config.md are made from these classes; the
defaults are those of model.py.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cloudtrain import model
from cloudtrain.cloud import clouds
from cloudtrain.config import fields as kinds
from cloudtrain.config.yaml_source import Block, Scalar


def optional(meaning: str) -> Any:
    return Field(default=None, description=meaning)


def required(meaning: str) -> Any:
    return Field(description=meaning)


class Section(BaseModel):
    """A mapping of the file with known fields; its docstring is the section's documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    of: ClassVar[type]
    """The noun that it becomes."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, node: Any) -> Any:
        """Drop fields with nothing after the colon: they count as left out."""
        if kinds.is_null(node):
            return {}
        if not isinstance(node, Block):
            raise kinds.InvalidValue("must be a mapping: `field: value` lines, indented")
        return {
            name: None if kinds.is_null(value) else value
            for name, value in node.items()
            if not (_empty(value) and name in cls.model_fields)
        }

    def noun(self, **changes: Any) -> Any:
        """The section's frozen value of model.py. Raises nothing for a section that is valid."""
        given = {
            name: _plain(getattr(self, name))
            for name in self.model_fields_set
            if getattr(self, name) is not None or takes_none(self.of, name)
        }
        return self.of(**{**given, **changes})


class NodesEntry(Section):
    """All nodes of one role, under the role's name. `chief: false` means that there is none."""

    of = model.NodeGroup
    count: kinds.Count | None = optional("How many nodes have this role.")
    machine: kinds.Line | None = optional("Machine type, in the cloud's own words.")
    accelerator: kinds.GpuKind | None = optional("GPUs of each node: `T4:1`, or `T4` for one.")
    disk_gb: kinds.Gigabytes | None = optional("Size of the root disk in GB; at least the image's.")
    spot: kinds.Boolean | None = optional("Cheaper, and may be taken away at any time.")


class NetworkSection(Section):
    """Where the nodes are, and who reaches them over SSH."""

    of = model.Network
    subnet: kinds.Line | None = optional("An existing subnet; without it one is chosen or made.")
    ssh_from: kinds.Caller | None = optional(
        "From where SSH is let in: `auto` is the caller's own address/32."
    )
    private: kinds.Boolean | None = optional("The nodes get no public address.")
    close: kinds.Close | None = optional(
        "Nodes close together, in a placement group: `auto` only for machines with a fast network "
        "between them (100 Gbit/s or more), `on` wherever the cloud has such a group, `off` never. "
        "Where that has no room, the same zone is tried without it."
    )


class SetupSection(Section):
    """What is installed on each node. Without `tensorflow`, none is."""

    of = model.Setup
    tensorflow: kinds.Version | None = optional(
        "TensorFlow's version; the CPU or the CUDA build is chosen by the node's accelerator."
    )
    python: kinds.Python | None = optional(
        '`auto`, a version such as `"3.11"`, or the absolute path of an interpreter on the node.'
    )
    keras: kinds.KerasChoice | None = optional(
        "`auto` is `legacy` (tf_keras) where the strategy needs it, with TensorFlow 2.16 or later."
    )
    packages: tuple[kinds.Package, ...] | None = optional(
        "Packages for pip, a version each if wanted."
    )
    requirements: kinds.Line | None = optional(
        "A requirements file here; a relative path starts in this file's folder."
    )
    run: tuple[kinds.ShellLine, ...] | None = optional("Shell lines, run in order on every node.")


class CodeSection(Section):
    """Where the code comes from: `git` or `path`, not both. Without either, none is delivered."""

    of = model.Code
    git: kinds.Git | None = optional(
        "URL of a git repository; a private one is fetched by this machine, with your git or SSH."
    )
    ref: kinds.Line | None = optional(
        "Branch, tag or commit of `git`; without it, the repository's default branch."
    )
    token: kinds.SecretName | None = optional(
        "The name under `secrets` of a token that opens `git` over https. It stays on this "
        "machine: no node and no task is given it."
    )
    path: kinds.Line | None = optional(
        "A folder here; a relative path starts in this file's folder. `.gitignore` and "
        "`.cloudtrainignore` are honoured."
    )


def _mapping(node: Any) -> Any:
    if not isinstance(node, Block):
        raise kinds.InvalidValue("must be a mapping: `NAME: value` lines, indented")
    return node


Environment = Annotated[
    dict[kinds.EnvironmentName, kinds.EnvironmentValue], BeforeValidator(_mapping)
]
Secrets = Annotated[dict[kinds.EnvironmentName, kinds.SecretVariable], BeforeValidator(_mapping)]


class TrainSection(Section):
    """What runs on every node of a run."""

    of = model.Train
    command: kinds.ShellLine | None = optional(
        "A shell line, run for every task. `{output}`, `{role}`, `{index}`, `{chief.ip}` and "
        "`{run}` are filled in; other braces stay. Required where there is a `train:` section."
    )
    dir: kinds.Inside | None = optional("The folder inside the code that the command starts in.")
    env: Environment | None = optional(
        "The task's environment variables; the same braces are filled in as in `command`."
    )
    port: kinds.TaskPort | None = optional(
        "The port of the TensorFlow servers; with `provider: local` of the first one. Without it "
        "nodes of `local` take the next ones that are free."
    )
    max_restarts: kinds.Restarts | None = optional(
        "How often a run starts again after a failure that is worth it."
    )
    spot_retries: kinds.Restarts | None = optional(
        "After so many refusals of a spot node that is to be made again, it is asked for on "
        "demand, within `limits.max_price`. Without it, never."
    )
    retry_exit_codes: tuple[kinds.ExitCode, ...] | None = optional(
        "Exit codes that are worth it, besides a lost node, a signal, 42 and 143."
    )
    success: kinds.SuccessChoice | None = optional(
        "Whose exit with 0 ends a run well; without it, by the strategy."
    )
    tf_config: kinds.TfConfigChoice | None = optional(
        "Whether tasks get TF_CONFIG; `auto` is by strategy."
    )
    checkpoints: kinds.FolderInside | None = optional(
        "The checkpoint folder in a task's work folder: the chief's copy is landed, and put on "
        "every task's node before each attempt. Without it, the tasks of a restarted "
        "multi_worker_mirrored run start from the beginning."
    )
    start_timeout: kinds.Duration | None = optional("How long a task may take to open its port.")
    stall_timeout: kinds.DurationOrOff | None = optional(
        "So long without a new log byte from any task ends the attempt."
    )
    deadline: kinds.DurationOrOff | None = optional(
        "The longest that a run may take, all attempts together."
    )
    grace: kinds.Duration | None = optional("How long a task has between TERM and KILL.")
    evaluator_grace: kinds.Duration | None = optional(
        "How long the evaluator has, after success, to score the last checkpoint. On a cloud it is "
        "not waited for where `checkpoints` is left out, as it was given none."
    )


class ArtifactsSection(Section):
    """What is brought home. Paths and globs are relative to each task's work folder."""

    of = model.ArtifactRules
    store: kinds.Store | None = optional(
        "`gs://BUCKET/prefix`, `s3://BUCKET/prefix`, `az://ACCOUNT/CONTAINER/prefix` or `file:///path`."
    )
    create: kinds.Boolean | None = optional(
        "`up` and `run` make the bucket or container where there is none, near the first placement "
        "where it is of the same cloud. Nothing of ours deletes it."
    )
    paths: tuple[kinds.Inside, ...] | None = optional("Globs of what is landed.")
    require: tuple[kinds.Inside, ...] | None = optional(
        "Globs that a successful run must have landed."
    )
    every: kinds.DurationOrOff | None = optional("Also land during training, so often.")


class EndpointsSection(Section):
    """Other addresses of services: sovereign clouds, private endpoints, S3-compatible stores."""

    of = model.Endpoints
    compute: kinds.Url | None = optional("Of the service that makes machines.")
    storage: kinds.Url | None = optional("Of the service that keeps objects.")
    auth: kinds.Url | None = optional("Of the service that gives tokens.")


class LimitsSection(Section):
    """What ends a cluster by itself, and what it may cost."""

    of = model.Limits
    max_lifetime: kinds.DurationOrOff | None = optional(
        "Armed at creation, on the cloud's side. On by default."
    )
    idle: kinds.DurationOrOff | None = optional("No run for so long: land the artifacts, go down.")
    max_price: kinds.Price | None = optional(
        "$/hour for the whole cluster, checked before anything is created."
    )
    wait: kinds.DurationOrOff | None = optional(
        "How long a lost node is asked for where its place has no room, before a restart; the "
        "other nodes are kept, and billed. `up` does not wait."
    )


class HostsItem(Section):
    """One machine that exists already, for `provider: hosts`."""

    of = model.Host
    address: kinds.Line = required("Name or address, as SSH reaches it from here.")
    role: kinds.Line = required("The role that it has; indexes follow the order of the list.")
    user: kinds.Line | None = optional("The user to log in as.")
    key: kinds.Line | None = optional(
        "The private key's file; a relative path starts in this file's folder."
    )
    port: kinds.SshPort | None = optional("SSH's port.")


def _group(node: Any) -> Any:
    """A role's nodes: `false` is no such role, nothing after the colon is one node with the
    defaults.
    """
    if isinstance(node, Scalar) and not kinds.is_null(node):
        try:
            if kinds.boolean(node) is False:
                return None
        except ValueError:
            pass
        raise kinds.InvalidValue("must be a mapping such as {count: 2}, or false")
    return node


Nodes = Annotated[
    dict[str, Annotated[NodesEntry | None, BeforeValidator(_group)]], BeforeValidator(_mapping)
]


class ConfigFile(Section):
    """A cluster: what to train, on what, and where the results go."""

    of = model.ClusterConfig
    name: kinds.Name | None = optional(
        "The cluster's name: `[a-z][a-z0-9-]{0,29}`. By default the file's, without its ending. "
        "An account has each name once, whoever takes it."
    )
    provider: kinds.ProviderChoice | None = optional(
        "Where the nodes are: `local` rehearses here, `hosts` uses machines that exist. Required."
    )
    project: kinds.Line | None = optional(
        "; ".join(f"{cloud.name}: {cloud.project_word}" for cloud in clouds())
        + ". By default the environment's own."
    )
    placement: tuple[kinds.Line, ...] | None = optional(
        "Zones or regions, tried in order until one has room for all nodes. Required on a cloud."
    )
    network: NetworkSection | None = optional("Where the nodes are, and who reaches them.")
    strategy: kinds.StrategyChoice | None = optional(
        "TensorFlow's distribution strategy, which decides the roles. Required. `tpu` is not "
        "supported yet."
    )
    nodes: Nodes | None = optional("The nodes by role: `chief`, `worker`, `ps`, `evaluator`.")
    image: kinds.Line | None = optional(
        "`auto`, `ubuntu-22.04`, `ubuntu-24.04`, `deeplearning`, or the cloud's own image id."
    )
    setup: SetupSection | None = optional("What is installed on each node.")
    code: CodeSection | None = optional("Where the code comes from.")
    train: TrainSection | None = optional("What runs on every node.")
    artifacts: ArtifactsSection | None = optional("What is brought home, and where to.")
    endpoints: EndpointsSection | None = optional("Other addresses of the cloud's services.")
    limits: LimitsSection | None = optional("What ends a cluster by itself.")
    hosts: tuple[HostsItem, ...] | None = optional(
        "The machines of `provider: hosts`, or the path of an INI file whose `[cluster]` has "
        "`chief=`, `worker=`, `ps=` lists of `host:port`."
    )
    secrets: Secrets | None = optional(
        "Variables of the tasks' environment whose values never leave it: `NAME: ${VAR}`. The one "
        "that `code.token` names is for git alone."
    )


@cache
def takes_none(noun: type, name: str) -> bool:
    return type(None) in get_args(get_type_hints(noun)[name])


def defaults(noun: type) -> dict[str, Any]:
    """Defaults by field, without fields that have none."""
    found = {}
    for item in fields(noun):
        if item.default is not MISSING:
            found[item.name] = item.default
        elif item.default_factory is not MISSING:
            found[item.name] = item.default_factory()
    return found


def section_at(path: tuple[str | int, ...]) -> type[Section] | None:
    """Section that holds the keys at `path`: `("nodes", "worker")` → NodesEntry."""
    if not path:
        return ConfigFile
    info = ConfigFile.model_fields.get(str(path[0]))
    return _section_in(info.annotation) if info else None


def _section_in(annotation: Any) -> type[Section] | None:
    inner = get_args(annotation)
    if not inner and isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, inner)), None)


def _empty(node: object) -> bool:
    return isinstance(node, Scalar) and node.plain and not node.source


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.noun()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value
