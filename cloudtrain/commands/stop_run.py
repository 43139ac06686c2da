"""`cloudtrain stop-run`: ends the run on every node and lands its artifacts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloudtrain.cluster.lease import holding_cluster, holding_lease
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.core.errors import LockedError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, STOP_HANDED_OVER, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run
from cloudtrain.runs.idle import starting_idle_process
from cloudtrain.runs.landing_steps import LandingSteps, record_seen
from cloudtrain.runs.state_table import Seen, next_step, run_recorded
from cloudtrain.runs.supervise import supervise_run
from cloudtrain.runs.tasks import unknown_run
from cloudtrain.state import Records

POLL = Retry(pause=0.2, within=STOP_HANDED_OVER)
"""Polls whether the run's supervisor is done, or gone."""


def stop_run(
    name: str,
    *,
    config: ClusterConfig | None = None,
    order_key: Path | None = None,
    console: Console,
    clock: Clock = CLOCK,
) -> Run:
    """Stop and land the active run. Its supervisor does the work; if there is none, this process. A
    run that is away is stopped by its desk, from any machine with a `config` and the order key."""
    from cloudtrain.away.away_orders import order_stop  # slow to import
    from cloudtrain.away.find_away import attended, find_away

    desk = find_away(name, config)
    state = attended(desk, clock.now())
    if desk is not None and state is not None:
        return order_stop(desk, state, order_key, console, clock)
    records = Records(name)
    run = records.active_run()
    if run is None:
        return stop_orphans(records, console)
    records.ask_stop(run.id)
    console.say(f"stopping run {run.id}")
    stopped = poll_until(lambda: stopped_here(records, run.id, console), POLL, clock=clock)
    if stopped is None:
        raise LockedError(
            f"run {run.id} has not ended {STOP_HANDED_OVER:.0f} s after {records.holder()} was "
            "asked to stop it",
            hint="run the command again to wait on; if that process hangs, kill it",
        )
    return stopped


def stopped_here(records: Records, id: str, console: Console) -> Run | None:
    """The run at its end; None while another process attends to it."""
    try:
        with starting_idle_process(records), records.lock("stop-run"):
            run = records.run(id)
            if run.ended is not None:
                return run
            handle = Handle(recorded_config(records))
            with (
                holding_lease(handle, "stop-run", console),
                open_session(handle, console) as session,
            ):
                return supervise_run(session, run)
    except LockedError:
        run = records.run(id)
        return run if run.ended is not None else None


def stop_orphans(records: Records, console: Console) -> Run:
    """End and land a run whose tasks outlived it, as their node was away when it ended."""
    nothing = UsageError(f"{records.name} has no active run", hint="`cloudtrain status` lists runs")
    running = Seen(
        node="running",
        run=run_recorded(None, had_one=bool(records.runs())),
        record=record_seen(records),
    )
    if not records.is_open() or next_step("stop-run", [running]) == "nothing":
        raise nothing
    handle = Handle(recorded_config(records))
    with (
        starting_idle_process(records),
        holding_cluster(handle, "stop-run", console),
        open_session(handle, console) as session,
    ):
        steps = LandingSteps(session)
        steps.take_all("stop-run")
        if not steps.ended:
            raise nothing
        lost = replace(unknown_run(session, max(steps.ended), ()), state="stopped")
    known = (run for run in reversed(records.runs()) if run.id in steps.ended)
    return next(known, records.latest_run() or lost)
