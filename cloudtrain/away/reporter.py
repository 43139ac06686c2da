"""Reports what a desk does to the store, and takes the orders that are given there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from cloudtrain.away.job import Job
from cloudtrain.away.orders import Order, OrderInbox
from cloudtrain.away.published import REPORTS_EVERY, AwayState, EventReader, Phase, Publisher
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import being_destroyed, lacks_room, nodes_standing
from cloudtrain.core.retry import CLOCK, Clock
from cloudtrain.state import Records

EVERY = 3.0
"""Seconds between two looks at the orders, and at what is new to report."""
JOIN = 120.0
"""Seconds to wait for the last look: a store that hangs does not keep the machine."""
ENDABLE: tuple[Phase, ...] = ("starting", "creating", "waiting")
"""Phases in which an interrupt ends the command: later its run is stopped, or it is deleted."""


def phase_of(records: Records) -> Phase:
    """Phase of the desk's work, by the record of the cluster."""
    run = records.active_run()
    if run is not None:
        return "landing" if run.state == "landing" else "training"
    events = records.events()
    if records.configured() and (records.run_ids() or being_destroyed(events)):
        return "deleting"
    if not records.configured():
        return "starting"
    waits = not records.is_open() or (lacks_room(events) and not nodes_standing(events))
    return "waiting" if waits else "creating"


class Reporter:
    """State, log and orders of one desk, in a thread of their own."""

    def __init__(
        self,
        job: Job,
        records: Records,
        publisher: Publisher,
        inbox: OrderInbox,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        self._job, self._records = job, records
        self._publisher, self._inbox = publisher, inbox
        self._clock = clock
        self._reader, self._text = EventReader(), ""
        self._open: list[Order] = []
        """Orders that were taken and not yet carried out."""
        self._over = threading.Event()
        self._reported, self._sequence = ("", 0.0), 0
        self.kept: str = ""
        """Why the nodes are kept and wait for an order; "" if they do not."""
        self.down = threading.Event()
        """Set by each order `down`."""
        self.may_interrupt = True
        """True until an order has interrupted the command, or it has ended."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:

        def look_again() -> None:
            while True:
                with contextlib.suppress(CloudtrainError):  # the next look may succeed
                    self.look()
                if self._over.wait(EVERY):
                    return

        thread = threading.Thread(target=look_again, name="reporter", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(JOIN)

    def heard(self, data: bytes) -> None:
        """Append to the log, and remember the latest of its texts for the state."""
        self._publisher.log(data)
        for event in self._reader.feed(data):
            self._text = event.text or event.stage or self._text

    def report(self, phase: Phase, *, exit_code: int | None = None, error: str = "") -> bool:
        """Publish the state; False if the store did not take it."""
        run, now = self._records.latest_run(), self._clock.now()
        self._sequence = max(self._sequence + 1, int(now * 1000))  # also above an earlier process's
        state = AwayState(
            cluster=self._job.config.name,
            desk=self._job.desk,
            phase=phase,
            text=self._text,
            run=run.id if run is not None else None,
            exit_code=exit_code,
            as_of=now,
            began=self._job.began,
            expires=self._job.expires,
            node=self._job.name,
            place=self._job.place,
            price_per_hour=self._job.price_per_hour,
            error=error or None,
            sequence=self._sequence,
        )
        self._reported = (f"{phase} {state.run}", self._clock.now())
        return self._publisher.state(state)

    def answer(self, failure: str = "") -> None:
        """Answer every open order: carried out, or not, and why."""
        while self._open:
            order, now = self._open.pop(0), self._clock.now()
            self._inbox.answer(order, "failed" if failure else "done", failure, now=now)

    def look(self) -> None:
        """Take new orders, send the log, and report the state if it changed or is due."""
        for order in self._inbox.take(self._clock.now()):
            self._carry_out(order)
        self._publisher.send_log()
        phase: Phase = "landing" if self.kept else phase_of(self._records)
        run = self._records.latest_run()
        known, when = self._reported
        is_due = self._clock.now() - when >= REPORTS_EVERY
        if is_due or known != f"{phase} {run.id if run is not None else None}":
            self.report(phase, error=self.kept)

    def interrupted(self, *_: object) -> None:
        """Handle SIGINT, in the main thread: Ctrl-C, once."""
        if self.may_interrupt:
            self.may_interrupt = False
            raise KeyboardInterrupt

    def _carry_out(self, order: Order) -> None:
        run = self._records.active_run()
        if order.verb == "stop-run" and (run is None or order.run not in (None, run.id)):
            which = f"run {order.run}" if order.run else "a run"
            text = f"{which} is not active"
            self._inbox.answer(order, "refused", text, now=self._clock.now())
            return
        self._open.append(order)
        if run is not None:
            self._records.ask_stop(run.id)
        elif not self.kept and phase_of(self._records) in ENDABLE:
            os.kill(os.getpid(), signal.SIGINT)
        if order.verb == "down":
            self.down.set()
