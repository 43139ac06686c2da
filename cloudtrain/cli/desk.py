"""`cloudtrain desk`: the process on the desk of `run --away`; not for users."""

from __future__ import annotations

import os
import signal

import click


@click.command(hidden=True)
def command() -> int:
    """Run the job in $CLOUDTRAIN_HOME to its end, then delete this machine."""
    from cloudtrain.away.event_log import log_stream
    from cloudtrain.away.job import STATE_KEY
    from cloudtrain.away.orders import OrderInbox
    from cloudtrain.away.published import Publisher
    from cloudtrain.away.reporter import Reporter
    from cloudtrain.away.signatures import load_key
    from cloudtrain.cli.errors import failure_of
    from cloudtrain.cluster.session import artifact_store
    from cloudtrain.commands.desk import desk, prepare, read_job
    from cloudtrain.console.event_stream import EventStream
    from cloudtrain.console.plain import PlainConsole
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
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        screen = PlainConsole(err=nowhere, out=nowhere)
        console = EventStream(screen, log_stream(reporter.heard))
        signal.signal(signal.SIGINT, reporter.interrupted)
        with waits_reported_to(console.say):
            return desk(job, reporter=reporter, console=console, describe=failure_of)
