"""Job of a desk: the file that says what the desk is to do, and the paths of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cloudtrain.config import requirements
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import Away, Candidate, ClusterConfig, Code, Network, Owner, Problem
from cloudtrain.core.paths import cluster_folder

FORMAT = 1
REQUIREMENTS = "requirements.txt"
"""Beside the config, if `setup.requirements` names no other file."""

STATE_KEY = "state_key"
"""In the desk's home: the key that signs what it writes to the store."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The command that a desk runs: `cloudtrain run`, with its options."""

    desk: str
    """Id of the desk's life."""
    name: str
    """Name of the desk's own cluster."""
    config: ClusterConfig
    """As the desk reads it."""
    requirements: Mapping[str, str] = field(default_factory=dict)
    """The files of `setup.requirements` by their paths beside the config."""
    itself: ClusterConfig
    """Config of the desk's own cluster, which it deletes last."""
    public_key: str
    """Of the key that signs orders."""
    owner: Owner
    """Of everything that the desk creates: the one who sent the run away."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment of its process. No credential."""
    resume: str | None = None
    """URI of a run."""
    ignore: tuple[str, ...] = ()
    wait: float | None = None
    began: float = field(metadata=UNIX_TIME)
    expires: float | None = field(default=None, metadata=UNIX_TIME)
    place: str = ""
    price_per_hour: float | None = None
    generation: str = ""
    """Of the desk's own cluster, which deletes no later one of its name."""


def to_bytes(job: Job) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(job)}).encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> Job:
    """Raises ConfigError."""
    try:
        return decode(Job, json.loads(data))
    except (InvalidRecord, ValueError) as error:
        problem = Problem(file="job.json", line=None, field="", text=str(error))
        raise ConfigError([problem]) from error


@dataclass(frozen=True, kw_only=True)
class DeskPaths:
    """Files on a desk, relative to the user's home there."""

    name: str
    desk: str

    @property
    def home(self) -> str:
        """`CLOUDTRAIN_HOME`"""
        return f"{cluster_folder(self.name)}/home"

    @property
    def job(self) -> str:
        return f"{self.home}/job.json"

    @property
    def key(self) -> str:
        return f"{self.home}/{STATE_KEY}"

    @property
    def output(self) -> str:
        """Output of the process, which is empty unless the process has a fault of its own."""
        return f"{cluster_folder(self.name)}/output.log"

    @property
    def secrets(self) -> str:
        """On a RAM disk: no disk has them, and no restart of the machine survives them."""
        return f"/dev/shm/cloudtrain-{self.desk}/secrets.json"


def secrets_in(paths: DeskPaths) -> dict[str, str]:
    """Values of the secrets by the names of their variables, as they were delivered."""
    found: dict[str, str] = json.loads(Path(paths.secrets).read_bytes())
    return found


def config_for_desk(config: ClusterConfig, code: Code, internal: str) -> ClusterConfig:
    """The config with nothing that only this machine has. `code`: where the desk has the code;
    `internal`: its address for machines of its network.
    """
    main = requirements.delivered(config, ()).main
    setup = replace(config.setup, requirements=main) if main else config.setup
    token = config.code.token if code.git is None else None
    return replace(
        config,
        project=_project(config.provider, config.project),
        network=_network(config.network, internal),
        setup=setup,
        code=code,
        limits=replace(config.limits, idle=None),
        away=Away(),
        secrets={name: each for name, each in config.secrets.items() if name != token},
        candidates=tuple(_candidate(each, internal) for each in config.candidates),
        source="",
        overrides=(),
        defaults={},
        env_file="",
    )


def requirement_files(config: ClusterConfig) -> Mapping[str, str]:
    """The files of `setup.requirements`; none if it names none of this machine."""
    return dict(requirements.delivered(config, ()).texts)


def environment(config: ClusterConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables of a desk: with addresses of the cloud's services, and its own."""
    cloud = cloud_of(config.provider)
    if cloud is None:
        return {}
    given = {name: environ[name] for name in cloud.address_variables if environ.get(name)}
    return {**cloud.desk_variables, **given}


def _project(provider: str, project: str | None) -> str | None:
    cloud = cloud_of(provider)
    return None if cloud is not None and cloud.project_is_local else project


def _network(network: Network, internal: str) -> Network:
    """Nodes accept SSH from the desk alone, which is beside them and needs no way around."""
    here = f"{internal}/32" if network.private else "auto"
    return replace(network, ssh_from=here, ssh_proxy=None)


def _candidate(candidate: Candidate, internal: str) -> Candidate:
    return replace(
        candidate,
        project=_project(candidate.provider, candidate.project),
        network=_network(candidate.network, internal),
    )
