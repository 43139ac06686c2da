"""`cloudtrain down`: lands the artifacts, deletes everything, lists what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cloudtrain.artifacts.land import not_landed
from cloudtrain.artifacts.spool import ingest_or_warn
from cloudtrain.cluster.lease import EVERY, LASTS, holding_cluster, refuse_being_created
from cloudtrain.cluster.ownership import (
    is_recorded,
    refuse_other_owners,
    refuse_other_owners_resources,
)
from cloudtrain.cluster.place_choice import each_account
from cloudtrain.cluster.session import (
    Handle,
    open_session,
    recorded_config,
    refuse_other_account,
    refuse_other_folder,
    without_keys,
)
from cloudtrain.commands.stop_run import stop_run
from cloudtrain.core import errors, events, moments
from cloudtrain.core.errors import raise_all
from cloudtrain.core.model import ClusterConfig, Holding, Node
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.protocols import Console, Provider, Stage
from cloudtrain.core.retry import CLOCK, IDLE_DOWN, OUTAGE, Clock, Retry
from cloudtrain.report import notify
from cloudtrain.runs import idle
from cloudtrain.runs.idle import ensure_idle_process, recorded_budget
from cloudtrain.runs.landing_steps import cluster_seen, end_lost_run, land_everything
from cloudtrain.runs.state_table import next_step
from cloudtrain.runs.supervise import ended_with_everything_landed, passes, retry_outage
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND

LEASE_OF_DESK = Retry(pause=5.0, within=LASTS + EVERY)
"""Until the lease of a deleted desk is over."""


def down(
    name: str,
    config: ClusterConfig | None,
    *,
    discard: bool,
    adopt: bool = False,
    owner: str | None = None,
    order_key: Path | None = None,
    break_lease: str = "",
    console: Console,
    clock: Clock = CLOCK,
) -> None:
    """Delete everything of the cluster, after landing what is only on its nodes.

    A cluster with candidates that is not on record here is looked for in all their accounts. One
    that is away is ended by its desk, which is then deleted too. `break_lease`: ID of another
    machine's lease. Raises NotLanded (exit 5, nodes kept) unless `discard`, also for an active run
    whose nodes were gone; LeftoverError (exit 6), LockedError, CreatedAnewError."""
    from cloudtrain.away.away_orders import end_desk, report_end  # slow to import

    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_account(config, records)
    refuse_other_folder(config, records, adopt=adopt)
    desk = end_desk(config, order_key, discard=discard, console=console, clock=clock)
    destroy = partial(destroy_at_last, discard=discard, owner=owner, desk_ended=desk is not None)
    destroy = partial(destroy, console=console, clock=clock)
    everywhere = partial(_destroy_everywhere, config, destroy, break_lease, console)
    if desk is None:
        return everywhere()
    with holding_cluster(desk, "down", console, breaks=break_lease):
        destroy_cluster(desk, discard=True, owner=owner, console=console)
    report_end(config, console, clock)  # before the order key is deleted
    return LEASE_OF_DESK.call(everywhere, on=errors.LeasedError, clock=clock)


def _destroy_everywhere(
    config: ClusterConfig, destroy: Callable[[Handle], None], break_lease: str, console: Console
) -> None:
    """In each account that may have some of it, even if it fails in one of them."""
    wait = await_lock(Records(config.name), console)
    failures: dict[str, BaseException] = {}
    with holding_cluster(Handle(config), "down", console, wait=wait, breaks=break_lease):
        for each in each_account(config):
            try:
                destroy(Handle(each))
            except errors.CloudtrainError as error:
                failures[each.provider] = error
    raise_all(failures)


def await_lock(records: Records, console: Console) -> float:
    """Seconds to wait for the lock. A background supervisor is asked to stop its run, and an idle
    cluster's `down` is waited for. A user's command is not interrupted: LockedError names it."""
    holder = records.holder()
    if holder is not None and holder.doing == idle.DOING:
        console.say(f"{records.name} is already going down as idle (limits.idle): waiting")
        return IDLE_DOWN
    if holder is not None and holder.doing == ATTEND and records.active_run() is not None:
        stop_run(records.name, console=console)
    return 0.0


def destroy_at_last(
    handle: Handle,
    *,
    discard: bool = False,
    owner: str | None = None,
    desk_ended: bool = False,
    console: Console,
    clock: Clock = CLOCK,
) -> None:
    """`destroy_cluster`, tried again while a store or the cloud is away. After `OUTAGE` it raises
    the last error, and the idle process goes on trying."""
    destroy = partial(destroy_cluster, discard=discard, owner=owner, desk_ended=desk_ended)
    try:
        retry_outage(
            lambda: destroy(handle, console=console),
            handle.records,
            lambda: handle.plan,
            console,
            clock=clock,
        )
    except errors.CloudtrainError as error:
        if OUTAGE and not discard and owner is None and passes(error) and handle.records.is_open():
            handle.records.journal(events.DownOrdered(why=error.message))
            ensure_idle_process(handle.records)
            console.warn(
                f"a background process goes on trying: `cloudtrain status {handle.config.name}` "
                "shows when"
            )
        raise


def destroy_cluster(
    handle: Handle,
    *,
    discard: bool,
    owner: str | None = None,
    desk_ended: bool = False,
    console: Console,
) -> None:
    """`down` for the holder of the lock. Deletes the nodes even if the local disk is full.
    `desk_ended`: their desk, which may have been creating them, is deleted."""
    config, records, provider = handle.config, handle.records, handle.provider
    records.goes_on_without_room = True
    nodes = provider.find(config.name)
    refuse_other_owners(records, provider, nodes, owner=owner)
    held = () if nodes else refuse_other_owners_resources(records, provider, owner=owner)
    refuse_being_created(
        records, nodes, held, owner, console, discard=discard, desk_ended=desk_ended
    )
    unseen = () if nodes or discard else places_that_may_hold_it(provider, nodes)
    try:
        land_first(handle, nodes, owner, console, discard=discard)
    except _LostMeanwhile as lost:
        console.warn(f"{lost} lost meanwhile: landing what the others hold")
        return destroy_cluster(
            handle, discard=discard, owner=owner, desk_ended=desk_ended, console=console
        )
    lost_run = None
    if discard and (active := records.active_run()) is not None:
        console.warn(f"ending active run {active.id}: what has not landed is lost")
        code = errors.RunFailed.exit_code
        records.save_run(replace(active, state="stopped", ended=moments.now(), exit_code=code))
    elif not discard:
        runs = records.runs()  # of which archives that cannot be landed stay, for `fetch`
        for run in [run for run in runs if run.ended is None or run == runs[-1]]:
            ingest_or_warn(records, run, lambda: handle.store, console)
        lost_run = end_lost_run(handle) if not nodes and not unseen else None
    delete_all(handle, nodes, held, unseen, console)
    if lost_run is not None:
        raise lost_run
    return None


class _LostMeanwhile(Exception):
    """Nodes that ended while the others' files were landed: their names."""


def land_first(
    handle: Handle, nodes: PartialList[Node], owner: str | None, console: Console, *, discard: bool
) -> None:
    """Land what is only on the nodes, unless that was done, or is to be discarded. Raises
    NotLanded, LeftoverError, UsageError, and `_LostMeanwhile` for what may be tried again."""
    config, records = handle.config, handle.records
    if not discard and ended_themselves(handle, nodes, owner, console):
        return
    landed = (
        records.is_open()
        and events.being_destroyed(records.events())
        and is_recorded(records, nodes)
    )
    seen = cluster_seen(records, nodes, files="landed" if landed else "unasked")
    step = next_step("down --discard" if discard else "down", seen)
    if step == "keep":
        raise unlandable(config, nodes, owner)
    if step == "destroy":
        return
    try:
        with open_session(handle, console, owner=owner) as session:
            land_everything(session)
    except errors.UsageError:
        raise
    except errors.CloudtrainError as error:
        if lost := lost_meanwhile(handle.provider, config.name, nodes):
            raise _LostMeanwhile(", ".join(lost)) from error
        console.warn("the nodes are kept; `cloudtrain down --discard` destroys them unlanded")
        raise not_landed(error) from error


def ended_themselves(
    handle: Handle, nodes: Sequence[Node], owner: str | None, console: Console
) -> bool:
    """True if all nodes have ended themselves, with everything landed (node/own_end.py)."""
    records = handle.records
    over = all(node.state in ("stopped", "gone") for node in nodes)
    if not over or events.own_ends(records.events()) is None or not records.has_keys():
        return False
    if not nodes and records.active_run() is None:
        return False
    with open_session(handle, console, owner=owner) as session:
        return ended_with_everything_landed(session)


def delete_all(
    handle: Handle,
    nodes: Sequence[Node],
    held: Sequence[Holding],
    unseen: Sequence[str],
    console: Console,
) -> None:
    """Delete everything of the cluster but what is in places that could not be queried (`unseen`),
    and close its record. Raises LeftoverError."""
    config, records, provider = handle.config, handle.records, handle.provider
    claimed = [generation for each in held for generation in each.generations]
    expected = events.pending_nodes(records.events())
    if not unseen:  # else the next `down` has to land what those places hold
        records.journal(events.DownBegun(nodes=tuple(node.name for node in nodes)))
    with console.stage(f"destroy on {provider.name}", len(nodes)) as stage:
        with deletion_progress(stage, [node.name for node in nodes], "being deleted"):
            not_asked = provider.destroy(
                config.name, records.journal, expected, spared=unseen, claimed=claimed
            )
        for node in nodes:
            stage.done(node.name, "gone")
    records.close()
    report_not_asked(not_asked, console)
    if records.left_out:
        console.warn(f"{records.folder}: disk full: the record of this `down` is incomplete")
    console.say(f"{config.name}: {provider.name} lists nothing of it any more")


def lost_meanwhile(provider: Provider, cluster: str, before: Sequence[Node]) -> tuple[str, ...]:
    """Nodes that ran before and do not now, such as spot nodes that were taken: nothing more can be
    landed from them. None if the provider does not answer."""
    try:
        now = {node.name for node in provider.nodes(cluster) if node.state == "running"}
    except errors.CloudtrainError:
        return ()
    return tuple(n.name for n in before if n.state == "running" and n.name not in now)


@contextmanager
def deletion_progress(stage: Stage, names: Sequence[str], text: str) -> Iterator[None]:
    """Report every second to the stage that a slow, silent deletion is in progress."""
    over = threading.Event()

    def say() -> None:
        began = time.monotonic()
        while not over.wait(1.0):
            for name in names[:1]:
                stage.node(name, f"{text} for {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=say, name="deletion progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def places_that_may_hold_it(provider: Provider, found: PartialList[Node]) -> tuple[str, ...]:
    """Places that could not be queried and may have nodes, whose files have not landed."""
    where = provider.whereabouts
    if where is None:
        return tuple(each.place for each in found.not_asked if each.silent)
    unknown = [each.place for each in found.not_asked if where.leaves_unknown(each)]
    return tuple(place for place in unknown if not where.complete or where.has(place))


def report_not_asked(not_asked: Sequence[NotAsked], console: Console) -> None:
    """Report places that did not answer and in which, by the record, the cluster never was; and
    what has labels that cannot be ours."""
    silent = [str(each) for each in not_asked if each.silent]
    denied = [each.place for each in not_asked if each.denied]
    for each in not_asked:
        if each.foreign:
            console.warn(f"{each}; it is left alone")
    if silent:
        console.warn(f"not checked: {', '.join(silent)}; by the record, it was never there")
    if denied:
        console.warn(f"not checked, access denied: {', '.join(denied)}")


def unlandable(
    config: ClusterConfig, nodes: tuple[Node, ...], owner: str | None
) -> errors.CloudtrainError:
    """NotLanded for a cluster whose keys are not here: nothing can be landed without them.
    LeftoverError if only hosts that do not answer are left: their contents are unknown."""
    why = without_keys(config, nodes)
    if isinstance(why, errors.NodesError):
        return errors.LeftoverError(why.message, hint=why.hint)
    places = ", ".join(sorted({node.owner.machine for node in nodes} - {""}))
    machine = f"the machine that created it{f' ({places})' if places else ''}"
    hint = f"run `cloudtrain down` on {machine} to land them"
    if not owner:
        hint += "; here, --discard destroys them unlanded"
    if Records(config.name).is_away():
        hint = (
            "its controller had them, and is gone: --discard destroys the nodes unlanded, and what "
            "they have stored unattended stays, for `cloudtrain fetch`"
        )
    return errors.NotLanded(
        f"{why.message}: what the nodes hold cannot be landed from here; the nodes are kept",
        hint=hint,
    )


@contextmanager
def down_when_spent(handle: Handle, console: Console, *, clock: Clock = CLOCK) -> Iterator[None]:
    """After the block, however it ended, take the cluster down if its budget is spent. The holder
    of the cluster's lock calls it. Nodes whose artifacts could not be landed are kept until their
    lifetime ends. A second error never replaces the first."""
    try:
        yield
    except (errors.NotLanded, errors.StoreError):
        raise
    except errors.CloudtrainError as error:
        try:
            _go_down_if_spent(handle, console, clock)
        except errors.CloudtrainError as second:
            raise errors.NodesError({"run": error, "down": second}) from error
        raise
    _go_down_if_spent(handle, console, clock)


def is_spent(records: Records, clock: Clock = CLOCK) -> bool:
    """True once the rest of the budget pays for landing and going down alone."""
    now = clock.now()
    found = recorded_budget(records, now)
    return found is not None and found.is_spent(now)


def _go_down_if_spent(handle: Handle, console: Console, clock: Clock) -> None:
    now = clock.now()
    found = recorded_budget(handle.records, now)
    if found is not None and found.is_spent(now):
        console.warn(f"limits.budget: {found} are spent: taking {handle.config.name} down")
        destroy_at_last(handle, console=console, clock=clock)
        notify.cluster_ended(handle.records, handle.config, "budget", notify.SPENT, console)
