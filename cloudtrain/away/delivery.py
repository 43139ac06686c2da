"""Brings a job to a desk over SSH, and starts the process there that does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, cast

from cloudtrain.away.job import DeskPaths, Job, to_bytes
from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig, Code, Node
from cloudtrain.core.paths import code_folder
from cloudtrain.core.shell import Command, Secret, Step, script
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import tensorflow
from cloudtrain.playbooks.apply import apply

Process = Literal["running", "ended", "none"]


def code_on_desk(config: ClusterConfig, source: code_playbook.CodeSource) -> Code:
    """Source of the code for the desk: the commit of a repository that anybody can read, or a
    folder that is delivered from here, so that no git credential leaves this machine.
    """
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
    """Write the job to the desk's disk, and the secrets to its memory, by the names of their
    variables.
    """
    paths = DeskPaths(name=job.name, desk=job.desk)
    values = {name: secret.reveal() for name, secret in secrets.items()}
    _run(session, "secrets", script(_PUT, paths.secrets), json.dumps(values).encode("ascii"))
    _run(session, "job", script(_PUT, paths.job), to_bytes(job))


def make_key(session: Session, job: Job) -> str:
    """Have the desk create the key that signs what it writes to the store; returns its public half.
    A key that is there already is kept.
    """
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
