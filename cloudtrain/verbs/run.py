"""`cloudtrain run`: up, train, land the artifacts, down: one command, nothing left."""

from __future__ import annotations

from collections.abc import Collection

from cloudtrain.cluster.session import (
    Handle,
    Session,
    open_session,
    record,
    refuse_other_account,
    refuse_other_folder,
)
from cloudtrain.errors import CloudtrainError, NodesError, NotLanded, RunFailed, StoreError
from cloudtrain.lease import leased
from cloudtrain.model import Plan, Run
from cloudtrain.protocols import Console
from cloudtrain.training.attend import attend
from cloudtrain.training.background import idle_is_watched
from cloudtrain.verbs.billed import tell_billed
from cloudtrain.verbs.check import refuse, refuse_missing_script
from cloudtrain.verbs.down import bring_down
from cloudtrain.verbs.exchange import NOTHING, settle_drift
from cloudtrain.verbs.train import new_run
from cloudtrain.verbs.up import make_store, raise_cluster


def run(
    plan: Plan,
    *,
    keep_on_failure: bool = False,
    adopt: bool = False,
    ignore: Collection[str] = (),
    console: Console,
) -> Run:
    """The landed run, its cluster gone. Whatever happens, also an interrupt, ends in `down`.

    The exceptions: what cannot be landed keeps its nodes (exit 5), and `keep_on_failure` those of
    a failed run. A run that goes on from a killed `cloudtrain run` is joined, not started again.
    """
    handle, config = Handle(plan.config, plan), plan.config
    records = handle.records
    with idle_is_watched(records), records.lock("run"), leased(handle, "run", console):
        refuse_other_account(config, records)
        refuse_other_folder(config, records, adopt=adopt)
        refuse(handle, ignore)
        if records.active_run() is None:
            refuse_missing_script(config)
        records.create()
        with open_session(handle, console) as session:
            settle_drift(session, NOTHING)
        record(config, records)
        make_store(handle, console)
        try:
            done = up_and_train(handle, console)
        except (NotLanded, StoreError):
            console.warn(
                f"the nodes of {config.name} are kept: `cloudtrain down {config.name}` lands what "
                "they hold and destroys them, with --discard it destroys it too"
            )
            tell_billed(config, handle.provider, console)
            raise
        except BaseException as error:
            if isinstance(error, RunFailed) and keep_on_failure:
                tell_billed(config, handle.provider, console)
                raise
            clean_up(handle, console, error)
            raise
        bring_down(handle, discard=False, console=console)
        return done


def up_and_train(handle: Handle, console: Console) -> Run:
    with open_session(handle, console) as session:
        session = raise_cluster(session, settle_drift(session, NOTHING))
        return attend(session, joined(session) or new_run(session, ()))


def joined(session: Session) -> Run | None:
    active = session.records.active_run()
    if active is not None:
        session.console.say(f"joining run {active.id}, which goes on")
    return active


def clean_up(handle: Handle, console: Console, error: BaseException) -> None:
    """`down` after a failure. The first error stays the one that is told; a second joins it."""
    name = handle.config.name
    if not isinstance(error, CloudtrainError):
        console.warn(f"interrupted: ending the run and taking {name} down")
    try:
        bring_down(handle, discard=False, console=console)
    except CloudtrainError as second:
        raise NodesError({"run": error, "down": second}) from error
    except KeyboardInterrupt:
        console.warn(f"interrupted again: nodes may be left; `cloudtrain down {name}` ends them")
        raise
