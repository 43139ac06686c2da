"""`cloudtrain train`: launches one run and follows it; Ctrl-C detaches, the run continues."""

from __future__ import annotations

import secrets
import shlex
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cloudtrain.checks.check import refuse_ahead
from cloudtrain.checks.commands import LONGEST
from cloudtrain.cluster.drift import override_notes
from cloudtrain.cluster.lease import holding_cluster
from cloudtrain.cluster.plan import tasks
from cloudtrain.cluster.provision import await_known_states
from cloudtrain.cluster.rollback import report_billed_on_failure
from cloudtrain.cluster.session import (
    Handle,
    Session,
    open_session,
    record_cluster,
    recorded_config,
    refuse_other_use,
)
from cloudtrain.commands.down import down_when_spent
from cloudtrain.config.as_written import written_lines
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Train
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import ResumedFrom, Run
from cloudtrain.runs.idle import attend_in_background, starting_idle_process
from cloudtrain.runs.landing_steps import NOTHING, decide_drift
from cloudtrain.runs.resume_source import resume_source
from cloudtrain.runs.supervise import start_detached, supervise_run
from cloudtrain.runs.tasks import save_run
from cloudtrain.setup.prepare import prepare_nodes
from cloudtrain.state import Records


def train(
    name: str,
    config: ClusterConfig | None,
    *,
    arguments: Sequence[str] = (),
    detach: bool = False,
    adopt: bool = False,
    resume: str | None = None,
    console: Console,
) -> Run:
    """Launch a run and return it at its end, or once it has started if `detach`. `resume`: the run
    whose landed checkpoint it begins with. Raises RunFailed, PreflightError, …; KeyboardInterrupt,
    once a background process attends to the run."""
    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_use(config, records, adopt=adopt)
    refuse_ahead(config)
    handle = Handle(config)
    with (
        attended_if_interrupted(records, console) as begun,
        starting_idle_process(records),
        holding_cluster(handle, "train", console),
        down_when_spent(handle, console),
        open_session(handle, console) as session,
    ):
        session = ready_for_a_run(session)
        source = resume_source(handle, resume, console) if resume is not None else None
        record_cluster(config, records)
        run = begun(new_run(session, arguments, source))
        with report_billed_on_failure(session):
            run = start_detached(session, run) if detach else supervise_run(session, run)
    if detach:
        attend_in_background(records, run, console)
    return run


@contextmanager
def attended_if_interrupted(records: Records, console: Console) -> Iterator[Callable[[Run], Run]]:
    """Hand the run over to a background process on Ctrl-C, once the function yielded has it."""
    begun: list[Run] = []

    def keep(run: Run) -> Run:
        begun.append(run)
        return run

    try:
        yield keep
    except KeyboardInterrupt:
        for run in begun:
            attend_in_background(records, run, console)
        raise


def ready_for_a_run(session: Session) -> Session:
    """The session whose nodes are those of the config and run. Raises UsageError."""
    console = session.console
    for note in override_notes(session.config):
        console.warn(note)
    session = await_known_states(session)
    if decide_drift(session, NOTHING).end is not None:
        console.warn(
            "limits.max_lifetime or limits.budget differs from that of the existing nodes: "
            "`cloudtrain up` applies it"
        )
    refuse_second_run(session)
    return session


def refuse_second_run(session: Session) -> None:
    """Refuse if a run is active. This command holds the cluster's lock, so whoever supervised that
    run was killed, or the machine restarted."""
    name = session.config.name
    silent = [node for node in session.nodes if node.fault]
    if silent:
        raise UsageError(
            "\n".join(f"{node.name}: {node.fault}" for node in silent),
            hint=f"`cloudtrain check {session.config.source or name}` checks each of them",
        )
    running = {node.name for node in session.nodes if node.state == "running"}
    missing = [name for name in session.plan.names if name not in running]
    if missing:
        raise UsageError(
            f"{name} is not up; not running: {', '.join(missing)}",
            hint=f"`cloudtrain up {session.config.source or name}` creates or repairs it",
        )
    active = session.records.active_run()
    if active is not None and active.state == "landing":
        raise UsageError(
            f"run {active.id} of {name} has ended, but is not landed yet",
            hint=f"`cloudtrain stop-run {name}` lands it; `cloudtrain down {name}` too",
        )
    if active is not None:
        raise UsageError(
            f"run {active.id} of {name} is active, and no command supervises it",
            hint=f"`cloudtrain logs -f {name}` takes it over, to its end; `cloudtrain stop-run "
            f"{name}` ends and lands it; `cloudtrain down {name}` too",
        )


def new_run(
    session: Session, arguments: Sequence[str], resumed_from: ResumedFrom | None = None
) -> Run:
    """A new run on record, with today's code delivered to every node."""
    config = session.config
    if not config.train.command and not config.train.commands:
        raise UsageError(
            "the config has no train.command", hint="add `train: {command: python train.py}`"
        )
    command, commands = with_arguments(config.train, arguments)
    own = written_lines(config.train, config.written)
    run_id = new_id()
    prepared = prepare_nodes(session.patient())
    return save_run(
        session,
        Run(
            id=run_id,
            cluster=config.name,
            command=command,
            commands=commands,
            written={role: " ".join([own[role], *map(shlex.quote, arguments)]) for role in own},
            tasks=tasks(session.plan, session.nodes),
            state="starting",
            created=moments.now(),
            code=prepared.code,
            image=prepared.image,
            store=f"{session.store.uri.rstrip('/')}/{run_id}",
            resumed_from=resumed_from,
        ),
    )


def with_arguments(train: Train, arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """`train.command` with the words after `--` added to each line: that of all roles, and those of
    single roles. Raises UsageError for a line that no node can start."""
    lines = {"": train.command, **train.commands}
    whole = {
        role: " ".join([line, *map(shlex.quote, arguments)]) if line else ""
        for role, line in lines.items()
    }
    if any(len(line.encode("utf-8", "surrogateescape")) > LONGEST for line in whole.values()):
        raise UsageError(
            f"the command and its arguments exceed {LONGEST:,} bytes: no node can start it",
            hint="put them in a file that `code:` delivers",
        )
    return whole.pop(""), whole


def new_id() -> str:
    """Id that sorts by time (UTC); its random end separates two of one second."""
    alphabet = string.ascii_lowercase + string.digits
    end = "".join(secrets.choice(alphabet) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(moments.now())) + "-" + end
