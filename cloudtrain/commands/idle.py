"""Processes in the background: `cloudtrain idle` takes a cluster down after `limits.idle`, or when
`limits.budget` is spent, and `cloudtrain attend` supervises a detached run."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.cluster.lease import holding_cluster, holding_lease
from cloudtrain.cluster.rollback import report_billed_on_failure
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.commands.down import destroy_cluster, down_when_spent, is_spent
from cloudtrain.core.errors import CloudtrainError, LockedError, RunFailed
from cloudtrain.core.events import DownFailed
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, LOCK_HANDED_OVER, Clock, Retry
from cloudtrain.core.run_record import Run
from cloudtrain.report import notify
from cloudtrain.runs.idle import DOING, idle_limit, is_ordered, is_watched, use_of
from cloudtrain.runs.supervise import supervise_run
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND

POLL = 5.0
"""Seconds between polls of the records; less if the limit is short."""

DOWNS = Retry(pause=60.0, backoff=2.0, longest=1800.0)
"""Tries to take it down, until one succeeds; the first pause is no longer than the limit."""


def idle(name: str, *, console: Console, clock: Clock = CLOCK) -> None:
    """Watch until the cluster is down, nothing may take it down any more, or another process
    watches. Holds no lock of the cluster while it waits. Retries what failed."""
    records = Records(name)
    while is_watched(records):
        try:
            with records.idle_process_lock():
                down_when_due(records, console, clock)
        except LockedError:
            return
        # An `up` in the meantime saw this process and started none: check once more.


def down_when_due(records: Records, console: Console, clock: Clock) -> None:
    """Take the cluster down once it is idle, its budget spent or a command has left it to this
    process, whoever has a shell open."""
    busy, not_before, failures = 0.0, 0.0, 0
    seen, began = use_of(records).last, clock.now()
    while is_watched(records):
        now, limit = clock.now(), idle_limit(records)
        due = is_ordered(records) or is_spent(records, clock)
        # A run that no command attends to does not count: `finish` supervises it.
        use = use_of(records, but="run", due=due)
        if use.last != seen:  # just now, whatever a clock that jumped wrote
            seen, busy = use.last, now
        if use.now:
            busy, not_before, failures = now, 0.0, 0
        elif now >= not_before and (
            due or (limit is not None and now >= max(busy, min(seen, began)) + limit)
        ):
            try:
                finish(records, limit, seen, console, clock)
                failures = 0
            except LockedError:
                continue
            except CloudtrainError as error:
                failures += 1
                first = DOWNS.pause if limit is None else min(limit, DOWNS.pause)
                pause = replace(DOWNS, pause=first).pause_after(failures)
                not_before = clock.now() + pause
                records.journal(DownFailed(why=str(error), again=not_before))
                console.warn(f"{error}\nthe nodes are kept; retrying in {pause:.0f} s")
        clock.sleep(POLL if limit is None else min(POLL, limit / 4))


def finish(
    records: Records, limit: float | None, seen: float, console: Console, clock: Clock
) -> None:
    """Take the cluster down, unless it was used since its last use was `seen`. An unattended run
    (its process was killed) is supervised first: it lands, and is never ended for being
    unattended."""
    if records.active_run() is not None:
        console.say(f"the run of {records.name} is unattended: supervising it")
        try:
            attend(records.name, console=console, wait=0.0)
        except RunFailed as error:
            console.warn(error.message)
        return
    handle = Handle(recorded_config(records))
    with holding_cluster(handle, DOING, console):
        # A command may have used it, or a shell been opened, before the lock was taken.
        spent, ordered = is_spent(records, clock), is_ordered(records)
        due = spent or ordered
        use = use_of(records, but="command", due=due)
        if use.now or (use.last != seen and not due):
            return
        why = f"was idle for {limit or 0:.0f} s (limits.idle)"
        if spent:
            why = notify.SPENT
        elif ordered:
            why = "is to go down, which a command could not do"
        console.say(f"{records.name} {why}: taking it down")
        destroy_cluster(handle, discard=False, console=console)
        if not ordered or spent:
            kind: notify.Kind = "budget" if spent else "idle"
            notify.cluster_ended(records, handle.config, kind, why, console)


def attend(name: str, *, console: Console, wait: float = LOCK_HANDED_OVER) -> Run | None:
    """Supervise the cluster's active run to its end and return it; None if there is none."""
    records = Records(name)
    with records.lock(ATTEND, wait=wait):
        run = records.active_run()
        if run is None:
            return None
        handle = Handle(recorded_config(records))
        with (
            holding_lease(handle, ATTEND, console, must=False),
            down_when_spent(handle, console),
            open_session(handle, console) as session,
            report_billed_on_failure(session),
        ):
            return supervise_run(session, run)
