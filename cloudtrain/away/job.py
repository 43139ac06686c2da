"""Job of a desk: the file that says what it is to do, its paths, and its delivery over SSH."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, cast

from cloudtrain.cluster.session import Session
from cloudtrain.config import requirements
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.codec import UNIX_TIME, InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError, StepFailed
from cloudtrain.core.model import (
    Away,
    ClusterConfig,
    Code,
    Network,
    Node,
    Owner,
    Problem,
)
from cloudtrain.core.paths import cluster_folder, code_folder
from cloudtrain.core.shell import Command, Secret, Step, script
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import tensorflow
from cloudtrain.playbooks.apply import apply
from cloudtrain.state import home
from cloudtrain.state.files import write_whole

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
    `internal`: its address for machines of its network."""
    main = requirements.delivered(config, ()).main
    setup = replace(config.setup, requirements=main) if main else config.setup
    token = config.git_secret if code.git is None else None
    return replace(
        config,
        project=_project(config.provider, config.project),
        network=_network(config.network, internal),
        setup=setup,
        code=code,
        limits=replace(config.limits, idle=None),
        away=Away(),
        notify=replace(config.notify, command=None),
        secrets={name: each for name, each in config.secrets.items() if name != token},
        candidates=tuple(
            replace(
                each,
                project=_project(each.provider, each.project),
                network=_network(each.network, internal),
            )
            for each in config.candidates
        ),
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


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """Exit code of the command; `error` is its text, "" for none."""

    exit_code: int
    error: str = ""


def record_outcome(outcome: JobOutcome) -> None:
    data = json.dumps(asdict(outcome)).encode("ascii")
    write_whole(home() / "outcome.json", data)


def recorded_outcome() -> JobOutcome | None:
    """None while the command has not ended."""
    try:
        return decode(JobOutcome, json.loads((home() / "outcome.json").read_bytes()))
    except FileNotFoundError:
        return None


# ── its delivery, over SSH ─────────────────────────────────────────────────────


Process = Literal["running", "ended", "none"]


def code_on_desk(config: ClusterConfig, source: code_playbook.CodeSource) -> Code:
    """Source of the code for the desk: the commit of a repository that anybody can read, or a
    folder that is delivered from here, so that no git credential leaves this machine."""
    if isinstance(source, code_playbook.NoCode):
        return Code()
    if isinstance(source, code_playbook.GitCode):
        return Code(git=config.code.git, ref=source.digest)
    return Code(path=f"~/{code_folder(config.name, source.digest)}")


def deliver_code(session: Session, source: code_playbook.CodeSource, cluster: str) -> None:
    """Bring the user's code to the desk, if it does not fetch it itself."""
    if isinstance(source, code_playbook.GitCode):
        return

    def steps(node: Node) -> tuple[Step, ...]:
        return code_playbook.steps(source, cluster)

    with session.console.stage("code", len(session.nodes)) as stage:
        apply(steps, session.nodes, session.transport, stage)
    note = code_playbook.keys_note(source)
    if note:
        session.console.warn(note)


def deliver_job(session: Session, job: Job, secrets: Mapping[str, Secret]) -> None:
    """Write the job to the desk's disk, and the secrets, by their variables, to its memory."""
    paths = DeskPaths(name=job.name, desk=job.desk)
    values = {name: secret.reveal() for name, secret in secrets.items()}
    _run(session, "secrets", script(_PUT, paths.secrets), json.dumps(values).encode("ascii"))
    _run(session, "job", script(_PUT, paths.job), to_bytes(job))


def make_key(session: Session, job: Job) -> str:
    """Have the desk create the key that signs what it writes to the store; returns its public half.
    A key that is there already is kept."""
    paths = DeskPaths(name=job.name, desk=job.desk)
    algorithm, key, *_ = [*_run(session, "key", script(_KEY, paths.key)).split(), "", ""]
    return f"{algorithm} {key}"


def start(session: Session, job: Job, source: str) -> None:
    """Start the desk's process, if it does not run. `source`: digest of this program's code."""
    paths, node = DeskPaths(name=job.name, desk=job.desk), session.nodes[0]
    folder = tensorflow.bin_folder(session.config, node)
    program = code_folder(session.config.name, source)
    _run(session, "start", script(_START, paths.home, paths.output, program, str(folder)))


def process_of(session: Session, name: str) -> Process:
    """State of the desk's process: "none" if it was never started."""
    done = _run(session, "process", script(_PROCESS, DeskPaths(name=name, desk="").home))
    return cast("Process", done.strip() or "none")


def end_of_output(session: Session, name: str) -> str:
    """The end of what the process printed: its own fault, if it has one."""
    return _run(session, "output", script(_TAIL, DeskPaths(name=name, desk="").output)).strip()


def _run(session: Session, what: str, command: Command, stdin: bytes = b"") -> str:
    node = session.nodes[0]
    done = session.patient().transport.run(node, command, stdin=stdin, timeout=60.0)
    if done.exit_code != 0:
        words = done.stderr.decode("utf-8", "replace").strip()
        raise StepFailed(
            node.name,
            f"{what}: exit {done.exit_code}: {words}",
            step=what,
            step_exit_code=done.exit_code,
        )
    return done.stdout.decode("utf-8", "replace")


# `$1` is relative to the user's home, or absolute.
_PUT = """\
set -eu
umask 077
cd
mkdir -p "$(dirname "$1")"
cat >"$1.new"
mv "$1.new" "$1"
"""

# What was interrupted may have left half a key: it gets its name once it is whole.
_KEY = """\
set -eu
umask 077
cd
if [ ! -e "$1" ]; then
    rm -f "$1.new" "$1.new.pub"
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$1.new" </dev/null
    mv "$1.new" "$1"
fi
ssh-keygen -y -f "$1" </dev/null
"""

# The lock is held by flock itself, not by what it starts. A process that was killed is started
# again, at most ten times, as its run goes on and its secrets are still in memory; one that ended
# is not.
_START = """\
set -eu
umask 077
cd
export CLOUDTRAIN_HOME="$PWD/$1" PYTHONPATH="$PWD/$3"
: >>"$1/started"
setsid nohup flock --nonblock --close "$1/process.lock" sh -c '
    left=10
    until "$1" -m cloudtrain desk || [ $? -lt 128 ] || [ $((left -= 1)) -le 0 ]; do sleep 10; done
' sh "$4/python" </dev/null >>"$2" 2>&1 &
"""

_PROCESS = """\
cd
if [ ! -e "$1/started" ]; then echo none
elif flock --nonblock "$1/process.lock" true; then echo ended
else echo running
fi
"""

_TAIL = 'cd; [ ! -e "$1" ] || tail -c 2000 "$1"\n'
