"""Ends the desk of a cluster that is away, before `down` asks the cloud what is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloudtrain.away.away_orders import has_order_key, order_down
from cloudtrain.away.delivery import Process, process_of
from cloudtrain.away.find_away import FoundAway, find_away
from cloudtrain.away.orders import load_order_key
from cloudtrain.away.own_desk import own_desk
from cloudtrain.away.published import AwayState, write_state
from cloudtrain.cluster.cluster_offers import each_account
from cloudtrain.cluster.session import Handle, open_session
from cloudtrain.core.errors import CloudtrainError, NotLanded, StoreError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import Clock
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.folder import ORDER_KEY


def end_desk(
    config: ClusterConfig,
    order_key: Path | None,
    *,
    discard: bool,
    console: Console,
    clock: Clock,
) -> Handle | None:
    """Order the desk to end, and wait for it. Returns its own cluster, to be deleted with what it
    left; None if the cluster has no desk.

    With `discard` it is not asked: the deletion ends it. Without, it is, as it alone has the keys
    of the nodes; unless it is known to have ended, or there are none. Raises UsageError without the
    order key, NotLanded.
    """
    is_up_from_here = config.name in known_clusters() and Records(config.name).is_open()
    is_away = Records(config.name).is_away()
    found = state = None
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
    except StoreError as error:
        if is_away and not discard:
            raise
        console.warn(f"whether it has a controller is not known: {error.message}")
        if not discard:
            return None
    is_sent = is_away or found is not None
    if not is_sent and (is_up_from_here or config.away.identity is None):
        return None
    desk = own_desk(config)
    if desk is None or discard or is_over(desk, config, found, state, order_key, console, clock):
        return desk
    assert found is not None
    order_down(found, state, order_key, console, clock)
    return desk


def is_over(
    desk: Handle,
    config: ClusterConfig,
    found: FoundAway | None,
    state: AwayState | None,
    order_key: Path | None,
    console: Console,
    clock: Clock,
) -> bool:
    """True if nothing is lost with the desk, False if it is to be ordered to end.

    That it has ended is believed if its report is signed, if it says so over SSH, or if the account
    lists it no more. Raises NotLanded for one that has the keys of nodes and takes no orders.
    """
    name, has_signed = desk.config.name, state is not None and not state.unsigned
    has_ended = state is not None and state.phase == "ended"
    if state is not None and has_signed and is_working(state, clock.now()):
        return False
    if is_gone(desk, config):
        if state is not None and not has_ended:
            console.warn(f"the controller of {config.name} is gone")
        return True
    process = "ended" if has_signed and has_ended else process_there(desk, console)
    if found is not None and process == "running":
        return False
    if process in ("ended", "none"):
        why = f"the command of {name} has ended or never began"
    elif state is None:
        why = f"the controller {name} has not reported to the store"
    elif found is not None and (not state.unsigned or has_order_key(found, order_key)):
        return False
    else:
        why = f"what the store has of {name} is {state.unsigned}"
    refuse_to_lose_keys(config, why)
    return True


def is_working(state: AwayState, now: float) -> bool:
    """True by a report of the desk's own. "starting" is what its client says before it starts the
    process: only the machine knows whether it has.
    """
    return state.phase not in ("starting", "ended") and not state.is_silent(now)


def process_there(desk: Handle, console: Console) -> Process | None:
    """State of the desk's process, as the desk says; None if this machine has no key to the desk
    or cannot reach it.
    """
    if not desk.records.has_keys():
        return None
    try:
        with open_session(desk, console) as session:
            return process_of(session, desk.config.name) if session.nodes else None
    except CloudtrainError:
        return None


def is_gone(desk: Handle, config: ClusterConfig) -> bool:
    """True if no place of the account lists it, and all answered; also if its machine has stopped,
    as its process and the secrets were in memory, and nothing starts them again.

    Raises NotLanded if it has stopped and there are nodes: their keys are on its disk alone.
    """
    listed = desk.provider.find(desk.config.name)
    if any(not each.foreign for each in listed.not_asked) or any(
        node.state not in ("stopped", "gone") for node in listed
    ):
        return False
    stopped = [node.name for node in listed if node.state == "stopped"]
    if stopped:
        refuse_to_lose_keys(config, f"{', '.join(stopped)} has stopped")
    return True


def refuse_to_lose_keys(config: ClusterConfig, why: str) -> None:
    """Raise NotLanded if the cluster has nodes, or may have some where the cloud does not answer:
    their keys are on the desk's disk alone.
    """
    if nodes := nodes_left(config):
        raise NotLanded(
            f"{why}, and the keys of {nodes} are on its disk alone",
            hint="nodes store by themselves what has not landed, before their lifetime ends; "
            f"`cloudtrain down {config.name} --discard` gives the rest up and deletes all",
        )


def nodes_left(config: ClusterConfig) -> str:
    """Names of the nodes that the cluster has in any account, or where it may have some, as the
    cloud does not answer there; "" if it has none.
    """
    found = [Handle(account).provider.find(config.name) for account in each_account(config)]
    left = [node.name for nodes in found for node in nodes if node.state != "gone"]
    silent = [each.place for nodes in found for each in nodes.not_asked if each.silent]
    if not left and silent:
        return f"nodes in {', '.join(silent)}, which does not answer,"
    return some(left)


def report_end(config: ClusterConfig, console: Console, clock: Clock) -> None:
    """Tell other machines of the end of a desk that did not report it itself: signed if the order
    key is here, and what it ends is signed too.
    """
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
        if found is None or state is None or state.phase == "ended":
            return
        here = Records(config.name).folder / ORDER_KEY
        signs = found.record is not None and not state.unsigned and here.exists()
        key = load_order_key(here) if signs else None
        error = "ended by `cloudtrain down`: its controller did not report its end"
        ended = replace(state, phase="ended", error=error, exit_code=1, as_of=clock.now())
        write_state(found.store, replace(ended, sequence=state.sequence + 1), key)
    except CloudtrainError as error:
        console.warn(f"the store still has it as running: {error.message}")
