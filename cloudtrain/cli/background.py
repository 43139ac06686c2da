"""`cloudtrain attend`, `idle` and `desk`: processes in the background, which are not for users."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from cloudtrain.console.plain import PlainConsole


@contextmanager
def without_output(err: TextIO | None = None) -> Iterator[PlainConsole]:
    """Yield a console that drops the output of tasks, and its messages too without `err`."""
    from cloudtrain.console.plain import PlainConsole

    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        yield PlainConsole(err=err or nowhere, out=nowhere)


@click.command(hidden=True)
@click.argument("name")
def attend_command(name: str) -> int:
    """Supervise the active run to its end, as `train` would have. Its logs are on disk already."""
    from cloudtrain.commands.idle import attend

    with without_output(sys.stderr) as console:
        run = attend(name, console=console)
    return run.exit_code or 0 if run is not None else 0


@click.command(hidden=True)
@click.argument("name")
def idle_command(name: str) -> None:
    """Take the cluster down when no run has used it for `limits.idle`."""
    from cloudtrain.commands.idle import idle

    with without_output(sys.stderr) as console:
        idle(name, console=console)


@click.command(hidden=True)
def desk_command() -> int:
    """Run the job in $CLOUDTRAIN_HOME to its end, then delete this machine."""
    from cloudtrain.away.job import STATE_KEY
    from cloudtrain.away.orders import OrderInbox
    from cloudtrain.away.published import Publisher, log_stream
    from cloudtrain.away.reporter import Reporter
    from cloudtrain.away.signatures import load_key
    from cloudtrain.cli.errors import failure_of
    from cloudtrain.cluster.session import artifact_store
    from cloudtrain.commands.desk import desk, prepare, read_job
    from cloudtrain.console.event_stream import EventStream
    from cloudtrain.core.retry import waits_reported_to
    from cloudtrain.state import Records, home

    job = read_job()
    key = load_key(home() / STATE_KEY, "key of this controller")
    prepare(job)
    name, records = job.config.name, Records(job.config.name)
    store = artifact_store(job.config, records)

    def warn(text: str) -> None:
        console.warn(text)

    publisher = Publisher(store, name, job.desk, log_file=home() / "log", warn=warn, key=key)
    inbox = OrderInbox(store, name, job.desk, job.public_key, home() / "orders", warn=warn, key=key)
    reporter = Reporter(job, records, publisher, inbox)
    with without_output() as screen:
        console = EventStream(screen, log_stream(reporter.heard))
        signal.signal(signal.SIGINT, reporter.interrupted)
        with waits_reported_to(console.say):
            return desk(job, reporter=reporter, console=console, describe=failure_of)
