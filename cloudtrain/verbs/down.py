"""`cloudtrain down`: lands the artifacts, destroys everything, asks what is left."""

from __future__ import annotations

from cloudtrain.errors import CloudtrainError, NotLanded, RunFailed, UsageError
from cloudtrain.landing.land import land, not_landed, unlanded
from cloudtrain.model import ClusterConfig, Run
from cloudtrain.nodes import asked_for, revive
from cloudtrain.plan import tasks as planned
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.session import (
    Session,
    open_provider,
    open_session,
    recorded_config,
    refuse_other_account,
    refuse_other_folder,
)
from cloudtrain.training import idle
from cloudtrain.training.attend import attend
from cloudtrain.training.background import DOING
from cloudtrain.verbs.parcels import take_before_down
from cloudtrain.verbs.stop_run import stop_run


def down(
    name: str,
    config: ClusterConfig | None,
    *,
    discard: bool,
    adopt: bool = False,
    console: Console,
) -> None:
    """Nothing of the cluster is left, and nothing that was only on its nodes is lost.

    Raises NotLanded (exit 5, nodes kept) unless `discard`, LeftoverError (exit 6), LockedError.
    """
    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_account(config, records)
    refuse_other_folder(config, records, adopt=adopt)
    with records.lock("down", wait=take_over(records, console)):
        bring_down(config, records, discard=discard, console=console)


ALREADY = 3600.0
"""Seconds that are waited for a `down` by `limits.idle` that has begun."""


def take_over(records: Records, console: Console) -> float:
    """How long to wait for the lock. A background process that attends to a run lands and leaves,
    one that takes an idle cluster down does what is wanted; a person's command is not disturbed,
    and named by the lock's error."""
    holder = records.holder()
    if holder is not None and holder.doing == idle.DOING:
        console.say(f"{records.name} goes down already, as it was idle (limits.idle): waiting")
        return ALREADY
    if holder is not None and holder.doing == DOING and records.active_run() is not None:
        stop_run(records.name, console=console)
    return 0.0


def bring_down(config: ClusterConfig, records: Records, *, discard: bool, console: Console) -> None:
    """`down` for who holds the lock already."""
    provider = open_provider(config)
    nodes = provider.nodes(config.name)
    if nodes and not discard and not being_destroyed(records):
        try:
            with open_session(config, records, console) as session:
                land_everything(session)
        except UsageError:
            raise
        except CloudtrainError as error:
            console.warn("the nodes are kept; `cloudtrain down --discard` destroys what they hold")
            raise not_landed(error) from error
    if not discard:
        take_before_down(config, records, console)
    expected = asked_for(records.events())
    records.journal("down", nodes=[node.name for node in nodes])
    with console.stage(f"destroy on {provider.name}", len(nodes)) as stage:
        provider.destroy(config.name, records.journal, expected)
        for node in nodes:
            stage.done(node.name, "gone")
    left = provider.nodes(config.name)
    assert not left, "a provider's destroy raises LeftoverError for what is left"
    records.close()
    console.say(f"{config.name}: {provider.name} lists nothing of it any more")


def being_destroyed(records: Records) -> bool:
    """An earlier `down` had landed everything, or was told to discard it, and was cut off.

    One that came to its end says nothing of a cluster that somebody has made since.
    """
    if not records.is_open():
        return False
    milestones = [event["event"] for event in records.events() if event["event"] in MILESTONES]
    return milestones[-1:] == ["down"]


MILESTONES = frozenset({"up", "start", "down"})


def land_everything(session: Session) -> None:
    """Ends the run that goes on, and lands what the nodes hold of every run, asked of both sides.

    Without a run on record nothing has ever run there: a record is written before the first task
    starts, in the folder of the keys without which no task can be started.
    """
    if not session.records.runs():
        return
    session = revive(session)
    end_active_run(session)
    left = ask_unlanded(session)
    for run_id in sorted({path.split("/")[0] for path in left}):
        session.console.say(f"landing run {run_id}")
        land_again(session, run_id, left)
    left = ask_unlanded(session)
    if left:
        raise NotLanded(
            f"{len(left)} files are only on the nodes, which are kept: {', '.join(left[:5])}",
            hint="`cloudtrain down` tries again; with --discard it destroys them",
        )


def end_active_run(session: Session) -> None:
    active = session.records.active_run()
    if active is None:
        return
    if active.state != "landing":
        session.records.ask_stop(active.id)
    try:
        attend(session, active)
    except (RunFailed, NotLanded) as error:
        session.console.warn(error.message)


def ask_unlanded(session: Session) -> tuple[str, ...]:
    return unlanded(
        session.nodes,
        session.config.name,
        session.config.artifacts,
        checkpoints=session.config.train.checkpoints,
        transport=session.transport,
        store=session.store,
    )


def land_again(session: Session, run_id: str, left: tuple[str, ...]) -> None:
    known = {run.id: run for run in session.records.runs()}
    run = known.get(run_id) or unknown_run(session, run_id, left)
    land(
        run,
        {node.task: node for node in session.nodes},
        session.config.artifacts,
        checkpoints=session.config.train.checkpoints,
        transport=session.transport,
        store=session.store,
        console=session.console,
        final=True,
    )


def unknown_run(session: Session, run_id: str, left: tuple[str, ...]) -> Run:
    """A run that only the nodes' disks know of."""
    names = {path.split("/")[1] for path in left if path.startswith(f"{run_id}/")}
    tasks = tuple(task for task in planned(session.plan) if task.name in names)
    return Run(
        id=run_id,
        cluster=session.config.name,
        command="",
        tasks=tasks,
        state="landing",
        created=0.0,
    )
