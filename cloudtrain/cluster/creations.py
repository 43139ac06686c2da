"""Checks whether a command may be creating what an account lists of a cluster.

Labels say until when a command may be doing so. Nobody is at work on what this machine's commands
created: each holds the cluster's lock, which whoever deletes takes; unless it was created by a desk
that was sent from here. Nobody else is asked: their owner, once named, is taken at their word.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cloudtrain.cluster.ownership import described, is_recorded, this_machine
from cloudtrain.cluster.session import recorded_config
from cloudtrain.console.times import clock
from cloudtrain.core import moments
from cloudtrain.core.errors import ConfigError, LeasedError
from cloudtrain.core.events import generations
from cloudtrain.core.model import Holding, Node, Owner, is_being_created
from cloudtrain.core.protocols import Console
from cloudtrain.state import Records
from cloudtrain.state.away_record import away_record

PROGRAM = "program"
"""Folder in the desk's record with this program, as it is delivered."""


def may_be_creating(records: Records, held: Holding) -> bool:
    """True if a command may be creating what the account holds: one here, its desk, or one on
    another machine.
    """
    if not is_being_created(held.creating_until, moments.now()):
        return False
    if not held.owners or any(owner.machine != this_machine() for owner in held.owners):
        return True
    has_desk = is_recorded_desk(records.name) and Records(f"{records.name}-desk").is_open()
    return has_desk or records.holder() is not None


def refuse_being_created(
    records: Records,
    nodes: Sequence[Node],
    held: Sequence[Holding],
    owner: str | None,
    console: Console,
    *,
    discard: bool,
    desk_ended: bool,
) -> None:
    """Raise LeasedError if another machine is creating these nodes, or without nodes what is
    `held`, or has created what is to be discarded anew since this one did, unless its `owner` is
    named; else warn that it may be at work on the nodes. Its lease is in a store that may not be
    known here. `desk_ended`: this command has deleted what was creating them.
    """
    ours = set(generations(records.events()))
    found = [(node.owner, {node.generation}, node.creating_until) for node in nodes]
    found += [(one, set(h.generations), h.creating_until) for h in held for one in owners_of(h)]
    others = [one for one in found if not one[1] <= ours and one[0].machine != this_machine()]
    if not others:
        return
    owners = {described(one): one for one, _, _ in others}
    where, who = ", ".join(sorted(owners)), ", ".join(sorted({o.name for o in owners.values()}))
    now = moments.now()
    until = max((t for _, _, t in others if t is not None and is_being_created(t, now)), default=0)
    force = f"add `--owner {who or 'WHO'}{' --discard' if nodes else ''}`"
    if discard and owner is None and not is_recorded(records, nodes):
        raise LeasedError(
            f"{records.name} is another cluster by now than the one on record here: owned by "
            f"{where}",
            hint=f"end it there; {force} to delete it all the same",
        )
    if until and owner is None and not desk_ended:
        raise LeasedError(
            f"{records.name} is being created until {clock(until)} at the latest: owned by {where}",
            hint=f"end it there, or wait until then; if nobody creates it any more, {force} to "
            "delete it now",
        )
    if any(node.generation for node in nodes):
        console.warn(
            f"{records.name} was not created from here (owned by {where}): a command there may be "
            "at work on it"
        )


def owners_of(held: Holding) -> Collection[Owner]:
    return held.owners or (Owner(),)


def is_recorded_desk(cluster: str) -> bool:
    """True if the records here are those of a desk that was created here for this cluster."""
    own = Records(f"{cluster}-desk")
    try:
        record, config = away_record(Records(cluster)), recorded_config(own)
    except ConfigError:
        return False
    delivers = config.code.path == str(own.folder / PROGRAM)
    return record is not None and record.node == own.name and delivers
