"""Starts a run attempt: nodes, checkpoint, preflight, proof, then every task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from cloudtrain.artifacts.checkpoints import put_checkpoints
from cloudtrain.artifacts.land import land_so_far, take_checkpoint
from cloudtrain.cluster.plan import serving_tasks, start_order
from cloudtrain.cluster.session import Session
from cloudtrain.cluster.task_launch import LaunchInputs, TaskLaunch, task_launches
from cloudtrain.config import read_secrets
from cloudtrain.core import moments, paths, ship
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import (
    CloudtrainError,
    DataError,
    NodeError,
    NodeUnreachable,
    StoreError,
    UsageError,
)
from cloudtrain.core.events import AttemptBegun, AttemptStarted, was_ready
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import AWAY
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.core.shell import Command, Secret, script
from cloudtrain.datasets.delivery import deliver_data
from cloudtrain.node.formats import SHARED, SHARED_BY_OTHER
from cloudtrain.playbooks import code_packages, containers, tensorflow
from cloudtrain.runs import task_commands
from cloudtrain.runs.node_replacement import keeping, replace_lost_nodes
from cloudtrain.runs.preflight import run_preflight
from cloudtrain.runs.proof import prove_nodes
from cloudtrain.runs.resume_source import source_of
from cloudtrain.runs.state_table import TaskSeen, of_run
from cloudtrain.runs.tasks import (
    all_ends_known,
    end_orphans,
    folder_of,
    ingest_left_spools,
    landing_of,
    node_of,
    nodes_of,
    save_run,
    tag_of,
    task_statuses,
    with_attempt,
)
from cloudtrain.setup.prepare import prepare_nodes
from cloudtrain.setup.shared_folder import prove_shared, share_run_folder
from cloudtrain.training.strategies import strategy_of


def start_attempt(session: Session, run: Run) -> tuple[Session, Run]:
    """Start every task in its next attempt, or the missing ones of an interrupted start."""
    is_new = not run.attempts or run.attempts[-1].ended is not None
    run = record_attempt(session, run)
    again = run.attempts[-1].number > 1
    if again:
        session = session.refreshed()
        whole = replace_lost_nodes(session, run, keep=keeping(session))
        if whole is None:
            return session, save_run(session, replace(run, state="landing"))
        session = whole
        if not was_ready(session.records.events()):  # all nodes were given back, and are new
            session.records.journal(AttemptBegun(run=run.id, attempt=run.attempts[-1].number))
    quick = session.transport
    session = session.patient()
    if again:
        prepare_nodes(session, run)
    if of_run("start", run, "unasked" if again else tasks_of_others(session, run)) == "end_orphans":
        end_orphans(session, keep=[tag_of(run, task) for task in run.tasks])
    if again:
        ingest_left_spools(session, run)
    unstarted = is_new or all(
        each.state == "absent" for each in task_statuses(session, run).values()
    )
    checkpoints = session.config.train.checkpoints
    if again and unstarted and checkpoints is None:
        clear_work_folders(session, run)
    data = deliver_data(session, run)
    shared = share_run_folder(session, run, lambda: source_of(run, session.config))
    work = create_work_folders(session, run, shared)
    inputs = launch_inputs(session, run, work, data, shared)
    if unstarted and checkpoints is not None and not shared:
        if again or run.resumed_from:
            restore_checkpoint(session, run, checkpoints)
        create_part_folders(session, run, checkpoints)
    if unstarted:
        prove_shared(session, run)
        run = run_preflight(session, run)
        if run.resumed_from and not again:
            compare_packages(session, run, run.resumed_from.run)
    launches = task_launches(session.plan, run, inputs)
    if unstarted:
        run = prove_nodes(session, run, launches)
    run = with_attempt(run, addresses=dict(inputs.addresses))
    start_tasks(session, run, launches)
    session.records.journal(AttemptStarted(run=run.id, attempt=run.attempts[-1].number))
    session = replace(session, transport=quick)
    return session, save_run(session, replace(run, state="running"))


def compare_packages(session: Session, run: Run, earlier: str) -> None:
    """Say which packages are not those of the run that this one resumes, if its record is here."""
    try:
        before = session.records.run(earlier).environments
    except CloudtrainError:
        return
    had, has = (
        {line for each in found for line in each.packages} for found in (before, run.environments)
    )
    other = sorted(had - has)
    if other and has:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        session.console.warn(
            f"run {earlier} had {', '.join(other[:3])}{more}, this one has not: name its run.json "
            "in `setup.requirements` for exactly its packages"
        )


def tasks_of_others(session: Session, run: Run) -> TaskSeen:
    """State of other runs' tasks by the record: `unasked` if some may still be on the nodes."""
    runs, unreadable = session.records.runs_and_faults()
    known = all(all_ends_known(one) for one in runs if one.id != run.id)
    return "exited" if known and not unreadable else "unasked"


def record_attempt(session: Session, run: Run) -> Run:
    """Record the attempt before anything of it exists; an attempt that was begun is continued."""
    if run.attempts and run.attempts[-1].ended is None:
        return run
    run = next_attempts(run, {task.name for task in run.tasks})
    attempt = RunAttempt(number=len(run.attempts) + 1, started=moments.now())
    session.records.journal(AttemptBegun(run=run.id, attempt=attempt.number))
    return save_run(session, replace(run, attempts=(*run.attempts, attempt)))


def next_attempts(run: Run, names: Collection[str]) -> Run:
    """The run with the tasks of these names in their next attempts."""
    tasks = (
        replace(task, attempt=task.attempt + 1) if task.name in names else task
        for task in run.tasks
    )
    return replace(run, tasks=tuple(tasks))


def clear_work_folders(session: Session, run: Run) -> None:
    """Give tasks that start together from the beginning new work folders; others keep theirs."""
    if strategy_of(session.config).restart == "as_left" or len(run.tasks) == 1:
        session.console.warn(
            "train.checkpoints is not set: this attempt starts with the work folders as they are"
        )
        return
    session.console.warn(
        "train.checkpoints is not set: this attempt starts from the beginning, except for what the "
        "script keeps outside its work folder"
    )
    land_so_far(landing_of(session), run, nodes_of(session, run))

    def set_aside(task: Task) -> None:
        done = session.transport.run(node_of(session, task), set_work_aside(run, task))
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(task.node, f"its work folder could not be set aside: {words}")

    fan_out(run.tasks, set_aside, name=lambda task: task.node)


def restore_checkpoint(session: Session, run: Run, folder: str) -> None:
    """Land the chief's checkpoint and copy it to every task's node. A chief on a new node has none:
    then the last one that landed is used, or, before the first, the one from which the run
    resumes."""
    nodes = {task.name: node_of(session, task) for task in run.tasks}
    if run.attempts[-1].number > 1:
        take_checkpoint(landing_of(session), run, nodes)
    source = source_of(run, session.config)
    try:
        step = put_checkpoints(
            run,
            nodes,
            folder,
            session.transport,
            session.store,
            source=source,
            say=session.console.say,
        )
    except StoreError as error:
        if source is None or run.attempts[-1].number > 1:
            raise
        raise DataError(error.message, hint=error.hint) from error  # nodes hold nothing yet
    session.console.say(
        f"resumes from {step}" if step else "no checkpoint has landed: starts from the beginning"
    )


def start_tasks(session: Session, run: Run, ready: tuple[TaskLaunch, ...]) -> None:
    """Start ps first, then chief, workers, evaluator; tasks of one role side by side."""
    number = run.attempts[-1].number
    ordered = start_order(tuple(launch.task for launch in ready))
    with session.console.stage(f"start run {run.id}, attempt {number}", len(ordered)) as stage:

        def start_one(launch: TaskLaunch) -> None:
            start_task(session, run, launch)
            stage.done(launch.task.node, launch.task.name)

        for role in dict.fromkeys(task.role for task in ordered):
            group = [launch for launch in ready if launch.task.role == role]
            fan_out(group, start_one, name=lambda launch: launch.task.node)


def start_task(session: Session, run: Run, launch: TaskLaunch) -> None:
    """Start a task. Starting it twice is one start, so that a lost reply is simply retried."""
    node = node_of(session, launch.task)
    command, environment = launch.command, launch.environment
    if run.image:
        inside = containers.contained(
            session.config,
            run,
            launch.task,
            node,
            command=launch.command,
            environment=launch.environment,
            folders=launch.folders,
        )
        command, environment = inside.command, inside.environment
    remote = task_commands.start(
        folder_of(run, launch.task),
        tag=tag_of(run, launch.task),
        work=paths.work_folder(run.cluster, run.id, launch.task.name),
        command=command,
        environment=environment,
        port=launch.task.port
        if launch.task.name in serving_tasks(run.tasks, session.config)
        else None,
        nccl_address=launch.nccl_address,
        grace=session.config.train.grace,
    )
    done = AWAY.call(
        lambda: session.transport.run(node, remote.command, stdin=remote.stdin, timeout=60.0),
        on=NodeUnreachable,
        clock=session.clock,
    )
    if task_commands.parse_start(node.name, done) == "stopped":
        raise NodeError(node.name, "the task was stopped before it started")


def launch_inputs(
    session: Session,
    run: Run,
    work: Mapping[str, str],
    data: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    shared: str = "",
) -> LaunchInputs:
    """Inputs of launches. By node: `work`, the tasks' work folders; `data`, folders of datasets.
    `shared`: the run's part of the shared folder."""
    config, nodes = session.config, session.nodes
    return LaunchInputs(
        addresses={node.name: node.internal for node in nodes},
        work=work,
        bin_folder={
            task.node: f"{paths.environment_folder(run.cluster, run.id, task.name)}/bin"
            if tensorflow.environment_folder(config, node_of(session, task)) is not None
            else None  # `setup:` needs no environment
            for task in run.tasks
        },
        extra={node.name: tensorflow.environment(config, node) for node in nodes},
        secrets=secrets_of_tasks(config),
        data=data,
        shared=shared,
    )


def secrets_of_tasks(config: ClusterConfig) -> dict[str, Secret]:
    """All secrets but those of the code's repository and the package index: no task needs them."""
    values = read_secrets(config)
    return {name: value for name, value in values.items() if name not in config.own_secrets}


# ── work folders ───────────────────────────────────────────────────────────────


def create_work_folders(session: Session, run: Run, shared: str = "") -> Mapping[str, str]:
    """Create a work folder for each task, with a link to the shared folder, and its layer over the
    environment of `setup:`; returns the work folders' absolute paths by node name."""
    config = session.config

    def work(task: Task) -> str:
        node = node_of(session, task)
        below = code_packages.environment_folder(config, node, run.code)
        command = prepare_work(config, run, task, below, shared_link(session, task, shared))
        done = AWAY.call(
            lambda: session.transport.run(node, command, timeout=600.0),
            on=NodeUnreachable,
            clock=session.clock,
        )
        if done.exit_code == 3:
            raise UsageError(done.stderr.decode("utf-8", "replace").strip())
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(node.name, f"its work folder could not be created: {words}")
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    folders = fan_out(run.tasks, work, name=lambda task: task.node)
    return {task.node: folder for task, folder in zip(run.tasks, folders, strict=True)}


def create_part_folders(session: Session, run: Run, folder: str) -> None:
    """Create the checkpoint folder on every ps: TensorFlow 1's Saver has each ps write its part on
    its own disk, and SaveV2 creates no parent folders (run on 1.15.5 and 2.21.0, 2026-11-22)."""

    def work(task: Task) -> None:
        place = f"{paths.work_folder(run.cluster, run.id, task.name)}/{folder}"
        done = session.transport.run(node_of(session, task), script(MKDIR, place), timeout=60.0)
        if done.exit_code != 0:
            words = done.stderr.decode("utf-8", "replace").strip()
            raise NodeError(task.node, f"its folder {folder} could not be created: {words}")

    fan_out([task for task in run.tasks if task.role == "ps"], work, name=lambda task: task.node)


def prepare_work(
    config: ClusterConfig,
    run: Run,
    task: Task,
    environment: str | None = None,
    link: tuple[str, ...] = (),
) -> Command:
    """Copy the delivered code to the task's own folder, once, and print the absolute path. `work`
    is a link to `train.dir` inside that copy, created last: an interrupted copy has none. With an
    `environment` on the node, the task gets a layer over it. `link`: see `shared_link`."""
    source = paths.code_folder(config.name, run.code) if run.code != NO_CODE else ""
    work = paths.work_folder(config.name, run.id, task.name)
    own = paths.environment_folder(config.name, run.id, task.name)
    layer = (own, environment) if environment else ("", "")
    home = "" if facts_of(config.provider).takes_hosts else "."
    made = work, source, config.train.dir, home, *layer, *link
    return ship.whole("work_folder", *made)


def shared_link(session: Session, task: Task, shared: str) -> tuple[str, ...]:
    """Name in the work folder of the link to the run's part of the shared folder, that part, and
    the record of it beside the work folder: of the first task, from which it lands, or of others.
    """
    config = session.config
    if not shared or config.shared is None:
        return ()
    is_first = task.node == session.plan.nodes[0].name
    return config.shared.folder, shared, SHARED if is_first else SHARED_BY_OTHER


def set_work_aside(run: Run, task: Task) -> Command:
    """Move the last attempt's work folder out of the way; prepare_work then creates a new one."""
    work = paths.work_folder(run.cluster, run.id, task.name)
    return script(SET_ASIDE, work, f"code.attempt-{task.attempt - 1}")


NO_CODE = "none"
"""`Run.code` if the config has no `code:`."""

MKDIR = 'exec mkdir -p -- "$1"'

SET_ASIDE = """
set -eu
work=$1 aside=$2
cd "$(dirname "$work")" 2>/dev/null || exit 0
# In this order: if interrupted, it leaves no folder that work_folder.py would take for its own.
if [ -e code ] && ! [ -e "$aside" ]; then mv code "$aside"; fi
rm -f work
"""
