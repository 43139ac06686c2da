"""The end of an idle cluster, or of its budget, by its record, and the process that watches it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal, NamedTuple

from cloudtrain.core import events, own_python
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Limits
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.money.budget import BudgetState, budget_state
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND, UnlockedUse

DOING = "idle"
"""Purpose of the lock while an idle cluster is landed and destroyed; `down` waits for it."""


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """Idle state. `due`: Unix time at which the cluster is destroyed, None while it is in use.
    `fault`: error of the last attempt to land or destroy it, `again`: Unix time of the next one.
    `alone`: seconds after the last use until the nodes end themselves; `ends`: the Unix time."""

    due: float | None
    fault: str | None = None
    again: float | None = None
    alone: float | None = None
    ends: float | None = None


def idle_limit(records: Records) -> float | None:
    """Idle limit in seconds; None if `limits.idle` is off or no cluster is open, or if its desk
    attends to it, whose runs are not on record here."""
    if not records.is_open() or records.is_away():
        return None
    try:
        return decode(Limits, records.config().get("limits")).idle
    except (CloudtrainError, InvalidRecord):
        return None


def is_watched(records: Records) -> bool:
    """True if `limits.idle`, `limits.budget` or an order may have the idle process end it."""
    if idle_limit(records) is not None or recorded_budget(records, 0.0) is not None:
        return True
    return is_ordered(records)


def is_ordered(records: Records) -> bool:
    """True if a command that could not take the cluster down has left it to the idle process."""
    return records.is_open() and events.is_down_ordered(records.events())


def idle_state(records: Records) -> IdleState | None:
    """Idle state; None if `limits.idle` is off and no attempt to go down has failed."""
    limit, failed = idle_limit(records), events.down_fault(records.events())
    if limit is None and (failed is None or not records.is_open()):
        return None
    use = use_of(records)
    due = None if limit is None or use.now else use.last + limit
    own = events.own_ends(records.events())
    alone = own.idle if own is not None else None
    state = IdleState(due=due, alone=alone, ends=alone and due and use.last + alone)
    return state if failed is None else replace(state, fault=failed.why, again=failed.again)


@dataclass(frozen=True, kw_only=True)
class ClusterUse:
    """Use of a cluster. `last`: Unix time at which a use last began or ended, by the record."""

    now: bool
    last: float


class UseFacts(NamedTuple):
    """One use, as docs/commands.md says it. `when_due`: until it ends, it keeps the cluster up even
    once its budget is spent or `down` was ordered."""

    words: str
    is_on: Callable[[Records], bool]
    trace: Callable[[Records], float]
    """Unix time at which it last began or ended, by the record; 0 if never."""
    when_due: bool = False


UseKind = Literal["command", "run", UnlockedUse]


def _unlocked(use: UnlockedUse, words: str) -> UseFacts:
    return UseFacts(words, lambda records: records.is_in_use(use), Records.last_use)


USES: Mapping[UseKind, UseFacts] = {
    "command": UseFacts(
        "a command that holds the cluster",
        lambda records: records.holder() is not None,
        Records.configured,
        when_due=True,
    ),
    "run": UseFacts(  # also one whose process was killed
        "a run",
        lambda records: records.active_run() is not None,
        lambda records: events.last_use(records.events()),
        when_due=True,
    ),
    "ssh": _unlocked("ssh", "an open `cloudtrain ssh`"),
    "exec": _unlocked("exec", "a `cloudtrain exec`"),
    "fetch": _unlocked("fetch", "a `fetch` from nodes"),
}
"""All uses that keep a cluster up. One without the cluster's lock is an `UnlockedUse` of
state/lock.py, which its command names: `records.in_use("exec")`."""


def use_of(records: Records, *, but: UseKind | None = None, due: bool = False) -> ClusterUse:
    """Use of the cluster, which is to go down if it is `due`; `but` does not count as use now."""
    count = [facts for kind, facts in USES.items() if kind != but and (facts.when_due or not due)]
    return ClusterUse(
        now=any(facts.is_on(records) for facts in count),
        last=max(facts.trace(records) for facts in USES.values()),
    )


def recorded_budget(records: Records, now: float) -> BudgetState | None:
    """State of the budget on record; None without one, or if no cluster is open."""
    if not records.is_open():
        return None
    try:
        config = records.config()
        limit = decode(Limits, config.get("limits")).budget
    except (CloudtrainError, InvalidRecord):
        return None
    cloud = cloud_of(config.get("provider"))
    if limit is None or cloud is None:
        return None
    return budget_state(limit, cloud, records.events(), now)


# ── background processes ───────────────────────────────────────────────────────


def attend_in_background(records: Records, run: Run, console: Console) -> None:
    """Start `cloudtrain attend`, which restarts, ends and lands the run as this process would have.
    The tasks on the nodes need neither; without it nobody would stop a parameter server or land the
    artifacts. Secrets reach it by its environment only, as they reached this process."""
    start_process(records, ATTEND)
    console.say(
        f"run {run.id} continues in the background: `cloudtrain logs -f {run.cluster}` follows it, "
        f"`cloudtrain stop-run {run.cluster}` stops it"
    )


def ensure_idle_process(records: Records) -> bool:
    """Start `cloudtrain idle` if `limits.idle` or `limits.budget` is set and no such process runs;
    True if one runs now. It ends with the cluster. It does not survive a restart of this machine:
    every command that reads the cluster's state calls this."""
    if not is_watched(records):
        return False
    if records.idle_process() is None:
        start_process(records, "idle")
    return True


@contextmanager
def starting_idle_process(records: Records) -> Iterator[None]:
    """Start the idle process at the end of this command, however it ends."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # report the first error
            ensure_idle_process(records)
        raise
    ensure_idle_process(records)


def start_process(records: Records, command: str) -> None:
    """Start `cloudtrain COMMAND NAME` detached; its output: COMMAND.log of the cluster's folder."""
    log = records.folder / f"{command}.log"
    with log.open("ab") as file:
        log.chmod(0o600)
        subprocess.Popen(
            own_python.module("cloudtrain", command, records.name),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=own_python.NEUTRAL,
        )
