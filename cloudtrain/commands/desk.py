"""`cloudtrain desk`: what the desk of `run --away` does, from its job to its own deletion."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cloudtrain.away.job import (
    REQUIREMENTS,
    DeskPaths,
    Job,
    JobOutcome,
    from_bytes,
    record_outcome,
    recorded_outcome,
    secrets_in,
)
from cloudtrain.away.reporter import Reporter
from cloudtrain.cluster.lease import holding_cluster
from cloudtrain.cluster.ownership import act_for
from cloudtrain.cluster.session import Handle, open_provider
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.commands.run import run
from cloudtrain.core import errors
from cloudtrain.core.model import Problem
from cloudtrain.core.protocols import Console, RentsMachines
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.state import Records, home

Describe = Callable[[BaseException], Mapping[str, Any]]
"""`failure_of` of the command line: `message`, `hint`, `exit_code`."""

LAST_WORDS = Retry(pause=5.0, backoff=2.0, longest=60.0, within=600.0)
"""Tries to publish the end; then the machine is deleted without."""
LEFT = Retry(pause=30.0, backoff=2.0, longest=300.0, tries=4)
"""Tries to delete what a failed deletion has left, and the desk itself."""


def read_job() -> Job:
    """The job that was delivered, completed by what only this machine knows. Raises ConfigError."""
    path = home() / "job.json"
    try:
        job = from_bytes(path.read_bytes())
    except OSError as error:
        text = f"{error.strerror}: only the controller of `run FILE --away` has this file"
        raise errors.ConfigError(
            [Problem(file=str(path), line=None, field="", text=text)]
        ) from error
    config, code = job.config, job.config.code
    if code.path is not None:
        code = replace(code, path=str(Path(code.path).expanduser()))
    source = str(home() / "files" / f"{config.name}.yaml")
    return replace(job, config=replace(config, code=code, source=source))


def prepare(job: Job) -> None:
    """Take on the owner, the addresses, the secrets and the files of the job."""
    act_for(job.owner)
    os.environ.update(job.environment)
    os.environ.update(secrets_in(DeskPaths(name=job.name, desk=job.desk)))
    folder = job.config.folder
    folder.mkdir(mode=0o700, exist_ok=True)
    for path, text in {REQUIREMENTS: "", **job.requirements}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")


def desk(
    job: Job, *, reporter: Reporter, console: Console, describe: Describe, clock: Clock = CLOCK
) -> int:
    """Run the job's command to its end, delete its cluster, publish the end, delete this machine. A
    process that takes over from a killed one goes on where that was. Nodes whose files could not be
    landed are kept, and the desk with them, until an order or its own end."""
    records = Records(job.config.name)
    with reporter.running():
        outcome = recorded_outcome() or attend(job, records, console, describe)
        reporter.may_interrupt = False
        record_outcome(outcome)
        if records.configured() and records.is_open():  # it may have nodes
            outcome = keep_until_destroyed(job, records, reporter, console, outcome, clock)
    reporter.answer()
    poll_until(
        lambda: reporter.report("ended", exit_code=outcome.exit_code, error=outcome.error) or None,
        LAST_WORDS,
        clock=clock,
    )
    delete_itself(job, reporter, console, outcome, clock)
    return outcome.exit_code


def attend(job: Job, records: Records, console: Console, describe: Describe) -> JobOutcome:
    """Run the command. A run that ended before this process began is not run again."""
    try:
        if records.run_ids() and records.active_run() is None:
            handle = Handle(job.config)
            with holding_cluster(handle, "down", console):
                destroy_cluster(handle, discard=False, console=console)
            last = records.latest_run()
            return JobOutcome(exit_code=(last.exit_code or 0) if last is not None else 0)
        done = run(
            Handle(job.config).plan,
            ignore=job.ignore,
            resume=job.resume,
            wait=job.wait,
            console=console,
        )
    except BaseException as error:  # noqa: BLE001 - the desk has nobody to raise it to
        told = describe(error)
        text = "\n".join(filter(None, [told["message"], told["hint"]]))
        console.warn(text)
        code = errors.NotLanded.exit_code if is_unlanded(error) else int(told["exit_code"])
        return JobOutcome(exit_code=code, error=text)
    console.say(f"run {done.id} {done.state}; artifacts: {done.store or 'none'}")
    return JobOutcome(exit_code=done.exit_code or 0)


def is_unlanded(error: BaseException) -> bool:
    """True for an error after which the nodes hold what is nowhere else."""
    if isinstance(error, errors.NodesError):
        return any(map(is_unlanded, error.failures.values()))
    return isinstance(error, errors.NotLanded | errors.StoreError) and not isinstance(
        error, errors.DataError
    )


def keep_until_destroyed(
    job: Job,
    records: Records,
    reporter: Reporter,
    console: Console,
    outcome: JobOutcome,
    clock: Clock,
) -> JobOutcome:
    """Delete what the command has left. Nodes with unlanded files wait for an order, or for their
    end; other failures are tried again, and named at last."""
    handle, failures = Handle(job.config), 0
    unlanded = outcome.exit_code == errors.NotLanded.exit_code
    while True:
        if unlanded:
            reporter.kept = f"the nodes are kept, as they hold what has not landed: {outcome.error}"
            reporter.answer(reporter.kept)
            if not reporter.down.wait(max(0.0, (job.expires or clock.now()) - clock.now())):
                return outcome
            reporter.down.clear()
        try:
            with holding_cluster(handle, "down", console):
                destroy_cluster(handle, discard=False, console=console)
            reporter.kept = ""
            return outcome
        except errors.CloudtrainError as error:
            failures, unlanded = failures + 1, is_unlanded(error)
            outcome = JobOutcome(exit_code=error.exit_code, error=str(error))
            console.warn(str(error))
            if not unlanded and failures >= LEFT.tries:
                return outcome
            if not unlanded:
                clock.sleep(LEFT.pause_after(failures))


def delete_itself(
    job: Job, reporter: Reporter, console: Console, outcome: JobOutcome, clock: Clock
) -> None:
    """Delete the machine that this runs on. A refusal is published: its lifetime ends it then."""
    provider = open_provider(job.itself)
    if job.generation and provider.whereabouts is not None:
        provider.whereabouts = replace(provider.whereabouts, generations=(job.generation,))
    rented = cast(RentsMachines, provider)  # no other nodes have a desk

    def told(error: errors.CloudtrainError, pause: float, _: float) -> None:
        console.warn(f"the controller cannot delete itself: {error}; trying again in {pause:.0f} s")

    try:
        LEFT.call(
            lambda: rented.delete_from_inside(job.name, Records(job.name).journal),
            on=errors.CloudtrainError,
            before_pause=told,
            clock=clock,
        )
    except errors.CloudtrainError as error:
        text = f"{outcome.error}\nthe controller could not delete itself: {error}".strip()
        reporter.report("ended", exit_code=outcome.exit_code, error=text)
