"""A process that attends to a run as a desk does: `cloudtrain run`, reported to the store, which
reads orders there. `python -m tests.support.desk_stand_in CONFIG DESK PUBLIC_KEY DESK_KEY`
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from cloudtrain.away.orders import Order, OrderInbox
from cloudtrain.away.published import AwayState, Phase, Publisher, log_stream
from cloudtrain.away.signatures import SigningKey, load_key
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.run import run
from cloudtrain.config import load
from cloudtrain.console.event_stream import EventStream
from cloudtrain.console.plain import PlainConsole
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state import Records, home
from cloudtrain.stores import open_store

EVERY = 0.3


class Desk(threading.Thread):
    """Reports and reads orders, beside the run."""

    def __init__(
        self, store: ArtifactStore, cluster: str, desk: str, order_key: str, own: SigningKey
    ) -> None:
        super().__init__(daemon=True)
        folder = home() / "desk"
        self.plain = PlainConsole(err=sys.stderr, out=sys.stdout)
        self.records, self.desk = Records(cluster), desk
        self.publisher = Publisher(
            store, cluster, desk, log_file=folder / "log", warn=self.plain.warn, key=own
        )
        self.inbox = OrderInbox(
            store, cluster, desk, order_key, folder / "seen", warn=self.plain.warn, key=own
        )
        self.began, self.over = time.time(), threading.Event()
        self.taken: list[Order] = []

    def state(self, phase: Phase, **end: object) -> None:
        latest = self.records.latest_run()
        self.publisher.state(
            AwayState(
                cluster=self.records.name,
                desk=self.desk,
                node=f"{self.records.name}-desk",
                phase=phase,
                run=latest.id if latest else None,
                as_of=time.time(),
                began=self.began,
                place="local",
                sequence=int(time.time() * 1000),
                **end,  # type: ignore[arg-type]
            )
        )

    def run(self) -> None:
        while not self.over.wait(EVERY):
            self.publisher.send_log()
            active = self.records.active_run()
            working: Phase = "landing" if active and active.state == "landing" else "training"
            self.state(working if active else "creating")
            for order in self.inbox.take(time.time()):
                self.carry_out(order)

    def carry_out(self, order: Order) -> None:
        self.taken.append(order)
        if order.verb == "stop-run" and order.run:
            self.records.ask_stop(order.run)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self, code: int, error: str | None) -> None:
        self.over.set()
        self.join()
        for order in self.taken:
            self.inbox.answer(order, "done", f"exit code {code}", now=time.time())
        self.state("ended", exit_code=code, error=error)


def main(path: str, desk_id: str, order_key: str, desk_key: str) -> int:
    config = load(Path(path))
    store = open_store(config.artifacts.store or "")
    own = load_key(Path(desk_key), "key of this controller")
    desk = Desk(store, config.name, desk_id, order_key, own)
    console = EventStream(desk.plain, log_stream(desk.publisher.log))
    desk.start()
    code, error = 1, None
    try:
        code = run(make_plan(config), console=console).exit_code or 0
    except CloudtrainError as failed:
        code, error = failed.exit_code, failed.message
    except KeyboardInterrupt:
        error = "interrupted"
    finally:
        console.flush()
        desk.end(code, error)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
