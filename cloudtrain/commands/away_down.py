"""Ends the desk of a cluster that is away, before `down` asks the cloud what is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloudtrain.away.desk_cluster import ROLE
from cloudtrain.away.published import AwayState, write_state
from cloudtrain.away.record import away_record
from cloudtrain.cluster.cluster_offers import each_account
from cloudtrain.cluster.session import Handle, recorded_config
from cloudtrain.commands.away_orders import order_down
from cloudtrain.commands.find_away import attended, find_away
from cloudtrain.errors import CloudtrainError, ConfigError, NotLanded, StoreError
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import Console
from cloudtrain.retry import Clock
from cloudtrain.state import Records, known_clusters
from cloudtrain.words import some


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
    of the nodes; unless it is gone. Raises UsageError without the order key, NotLanded.
    """
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
        at_work = attended(found, clock.now())
    except StoreError as error:
        if Records(config.name).is_away() and not discard:
            raise
        console.warn(f"whether it has a desk is not known: {error.message}")
        return desk_of(config, None) or (unreported_desk(config) if discard else None)
    desk = desk_of(config, state)
    if desk is None and state is None:
        desk = unreported_desk(config)
        if desk is not None and not discard:
            refuse_to_lose_keys(
                config, f"the desk {desk.config.name} has not reported to the store"
            )
        return desk
    if found is None or at_work is None or discard:
        return desk
    if at_work.is_silent(clock.now()) and desk is not None and is_gone(desk, config):
        console.warn(f"the desk of {config.name} is gone")
        return desk
    order_down(found, at_work, order_key, console, clock)
    return desk


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


def desk_of(config: ClusterConfig, state: AwayState | None) -> Handle | None:
    """The desk's own cluster: on record here, or in the account of the config."""
    record = away_record(Records(config.name))
    name = record.node if record is not None else state.node if state is not None else ""
    if not name or (record is not None and not Records(name).is_open()):
        return None
    try:
        return Handle(recorded_config(Records(name)))
    except ConfigError:
        return Handle(replace(config, name=name, candidates=()))


def unreported_desk(config: ClusterConfig) -> Handle | None:
    """A desk in the account of which neither a record here nor the store says anything: whoever
    sent the cluster away from another machine was killed before it had begun its work.
    """
    name = f"{config.name}-{ROLE}"
    is_up_from_here = config.name in known_clusters() and Records(config.name).is_open()
    if config.away.identity is None or is_up_from_here:
        return None
    desk = Handle(replace(config, name=name, candidates=()))
    is_there = any(held.cluster == name for held in desk.provider.sweep())
    return desk if is_there else None


def report_end(config: ClusterConfig, console: Console, clock: Clock) -> None:
    """Tell other machines of the end of a desk that did not report it itself."""
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
        if found is None or state is None or state.phase == "ended":
            return
        error = "ended by `cloudtrain down`: its desk did not report its end"
        write_state(
            found.store, replace(state, phase="ended", error=error, exit_code=1, as_of=clock.now())
        )
    except CloudtrainError as error:
        console.warn(f"the store still has it as running: {error.message}")
