"""`cloudtrain run`: up, train, land the artifacts, down in one command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from cloudtrain.checks.check import refuse, refuse_missing_script
from cloudtrain.cluster.lease import holding_cluster
from cloudtrain.cluster.place_choice import in_first_with_room
from cloudtrain.cluster.provision import lost_as_no_capacity
from cloudtrain.cluster.rollback import report_billed
from cloudtrain.cluster.session import Handle, open_session, record_cluster, refuse_other_use
from cloudtrain.commands.down import destroy_at_last, is_spent
from cloudtrain.commands.train import new_run
from cloudtrain.commands.up import create_cluster, make_store
from cloudtrain.core import errors
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import ResumedFrom, Run
from cloudtrain.runs.finish import failure
from cloudtrain.runs.idle import ensure_idle_process, starting_idle_process
from cloudtrain.runs.landing_steps import NOTHING, decide_drift
from cloudtrain.runs.resume_source import resume_source
from cloudtrain.runs.supervise import end_with_its_nodes, passes, supervise_run
from cloudtrain.state import Records
from cloudtrain.state.folder import ENDED


def run(
    plan: Plan,
    *,
    keep_on_failure: bool = False,
    adopt: bool = False,
    ignore: Collection[str] = (),
    resume: str | None = None,
    arguments: Sequence[str] = (),
    wait: float | None = None,
    console: Console,
) -> Run:
    """Create the cluster, train, land, delete the cluster; returns the landed run.

    Whatever happens, even an interrupt, ends in `down`. The exceptions: nodes whose artifacts
    cannot be landed are kept (exit 5), and with `keep_on_failure` those of a failed run. An active
    run of a killed `cloudtrain run` is joined, not started again. `resume`: the run whose landed
    checkpoint it begins with (`resume_source`). `arguments` are added to `train.command`. `wait` as
    in `up`. With candidates, a run that lost a node for which there is no capacity goes on in the
    next one, from its last landed checkpoint."""
    handle = Handle(plan.config, plan)
    before = frozenset(run.id for run in handle.records.runs())
    with starting_idle_process(handle.records), holding_cluster(handle, "run", console):
        refuse_other_use(handle.config, handle.records, adopt=adopt)
        source = beginning(handle, resume, console)
        attempt = partial(create_train_delete, before, source, arguments, keep_on_failure)
        accept = partial(refuse, ignore=ignore)
        return in_first_with_room(handle, accept, attempt, console, wait=wait)


def beginning(handle: Handle, resume: str | None, console: Console) -> ResumedFrom | None:
    """The checkpoint with which the run begins, if any. Raises UsageError, also if an active run,
    which is joined, has begun otherwise."""
    active = handle.records.active_run()
    if active is None:
        refuse_missing_script(handle.config)
        return resume_source(handle, resume, console) if resume is not None else None
    if resume is not None and active.resumed_from is None:
        name = handle.config.name
        raise errors.UsageError(
            f"run {active.id} of {name} is active and does not resume another run",
            hint=f"omit --resume to join it, or end it with `cloudtrain stop-run {name}`",
        )
    return None


def create_train_delete(
    before: Collection[str],
    source: ResumedFrom | None,
    arguments: Sequence[str],
    keep_on_failure: bool,
    handle: Handle,
    console: Console,
) -> Run:
    """Create the cluster in one place, train, land and delete it. A run that this call has lost in
    another place goes on here."""
    begun = lost_run(handle.records, before)
    begins_with = source if begun is None else where_it_was(handle, begun, source, console)
    handle.records.create()
    with open_session(handle, console) as session:
        decide_drift(session, NOTHING)
    record_cluster(handle.config, handle.records)
    make_store(handle, console)
    try:
        done = up_and_train(handle, begins_with, arguments, console)
    except BaseException as error:
        away = isinstance(error, errors.NotLanded | errors.StoreError) and passes(error)
        if away and not keep_on_failure:
            return landed_later(handle, error, before, console)
        if keeps_nodes(error, keep_on_failure, handle.config.name, console):
            report_billed(handle.config, handle.provider, console)
        else:
            clean_up(handle, console, error)
        raise
    try:
        destroy_at_last(handle, console=console)
    except errors.NotLanded:
        report_billed(handle.config, handle.provider, console)
        raise
    return done


def lost_run(records: Records, before: Collection[str]) -> str | None:
    """Id of the last run that this call has begun and that has ended; None for none."""
    ids = [run.id for run in records.runs() if run.id not in before and run.state in ENDED]
    return ids[-1] if ids else None


def where_it_was(
    handle: Handle, run: str, given: ResumedFrom | None, console: Console
) -> ResumedFrom | None:
    """The checkpoint with which a run goes on elsewhere; that of `--resume` if it landed none."""
    if handle.config.train.checkpoints is None:
        console.warn(f"the next run begins anew: run {run} has no train.checkpoints")
        return given
    try:
        return resume_source(handle, run, console)
    except errors.UsageError as error:
        console.warn(f"the next run begins anew: {error.message}")
        return given


def up_and_train(
    handle: Handle, source: ResumedFrom | None, arguments: Sequence[str], console: Console
) -> Run:
    with open_session(handle, console) as session:
        if (ended := end_with_its_nodes(session)) is not None:
            return ended
        session = create_cluster(session, decide_drift(session, NOTHING))
        if handle.config.limits.budget is not None:  # should this process be killed
            ensure_idle_process(session.records)
        begun = session.records.active_run()
        if begun is not None:
            session.console.say(f"joining active run {begun.id}")
        else:
            with lost_as_no_capacity(session):
                begun = new_run(session, arguments, source)
        return supervise_run(session, begun)


def keeps_nodes(error: BaseException, keep_on_failure: bool, name: str, console: Console) -> bool:
    """True for nodes that hold what could not be landed, and those of a failed run that the user
    keeps, unless its budget is spent."""
    if isinstance(error, errors.DataError):
        return False
    if isinstance(error, errors.NotLanded | errors.StoreError):
        console.warn(
            f"the nodes of {name} are kept: `cloudtrain down {name}` lands what they hold and "
            "destroys them, --discard destroys them unlanded"
        )
        return True
    return keep_on_failure and isinstance(error, errors.RunFailed) and not is_spent(Records(name))


def landed_later(
    handle: Handle, error: BaseException, before: Collection[str], console: Console
) -> Run:
    """Go down after a landing for which a store or the cloud was away: lands what the nodes hold,
    as soon as it can. Returns the run as it ended, or raises how it failed; the error if it has not
    landed, or nothing was to land."""
    clean_up(handle, console, error)
    landed = lost_run(handle.records, before)
    if landed is None:
        raise error
    run = handle.records.run(landed)
    if run.state != "succeeded":
        raise failure(run)
    return run


def clean_up(handle: Handle, console: Console, error: BaseException) -> None:
    """Run `down` after a failure. A second error is attached to the first, never replaces it."""
    name = handle.config.name
    if not isinstance(error, errors.CloudtrainError):
        console.warn(f"interrupted: ending the run and taking {name} down")
    try:
        destroy_at_last(handle, console=console)
    except errors.CloudtrainError as second:
        raise errors.NodesError({"run": error, "down": second}) from error
    except KeyboardInterrupt:
        console.warn(
            f"interrupted again: nodes may be left; `cloudtrain down {name}` destroys them"
        )
        raise
