"""`cloudtrain run`: up, train, land the artifacts, down: one command, nothing left."""

from __future__ import annotations

from collections.abc import Collection

from cloudtrain.cluster.session import (
    Session,
    open_session,
    record,
    refuse_other_account,
    refuse_other_folder,
)
from cloudtrain.errors import CloudtrainError, NodesError, NotLanded, RunFailed, StoreError
from cloudtrain.lease import leased
from cloudtrain.model import ClusterConfig, Run
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.training.attend import attend
from cloudtrain.training.background import idle_is_watched
from cloudtrain.verbs.billed import tell_billed
from cloudtrain.verbs.check import refuse, refuse_missing_script
from cloudtrain.verbs.down import bring_down
from cloudtrain.verbs.exchange import NOTHING, settle_drift
from cloudtrain.verbs.train import new_run
from cloudtrain.verbs.up import make_store, raise_cluster


def run(
    config: ClusterConfig,
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
    records = Records(config.name)
    with idle_is_watched(records), records.lock("run"), leased(config, records, "run", console):
        refuse_other_account(config, records)
        refuse_other_folder(config, records, adopt=adopt)
        refuse(config, ignore)
        if records.active_run() is None:
            refuse_missing_script(config)
        records.create()
        with open_session(config, records, console) as session:
            settle_drift(session, NOTHING)
        record(config, records)
        make_store(config, records, console)
        try:
            done = up_and_train(config, records, console)
        except (NotLanded, StoreError):
            console.warn(
                f"the nodes of {config.name} are kept: `cloudtrain down {config.name}` lands what "
                "they hold and destroys them, with --discard it destroys it too"
            )
            tell_billed(config, console)
            raise
        except BaseException as error:
            if isinstance(error, RunFailed) and keep_on_failure:
                tell_billed(config, console)
                raise
            clean_up(config, records, console, error)
            raise
        bring_down(config, records, discard=False, console=console)
        return done


def up_and_train(config: ClusterConfig, records: Records, console: Console) -> Run:
    with open_session(config, records, console) as session:
        session = raise_cluster(session, settle_drift(session, NOTHING))
        return attend(session, joined(session) or new_run(session, ()))


def joined(session: Session) -> Run | None:
    active = session.records.active_run()
    if active is not None:
        session.console.say(f"joining run {active.id}, which goes on")
    return active


def clean_up(
    config: ClusterConfig, records: Records, console: Console, error: BaseException
) -> None:
    """`down` after a failure. The first error stays the one that is told; a second joins it."""
    if not isinstance(error, CloudtrainError):
        console.warn(f"interrupted: ending the run and taking {config.name} down")
    try:
        bring_down(config, records, discard=False, console=console)
    except CloudtrainError as second:
        raise NodesError({"run": error, "down": second}) from error
    except KeyboardInterrupt:
        console.warn(
            f"interrupted again: nodes may be left; `cloudtrain down {config.name}` ends them"
        )
        raise
