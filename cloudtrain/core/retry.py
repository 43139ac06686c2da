"""Retry policies, polling, and every limit of a wait: how often, with what backoff, until when."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.moments import awake

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

LONG_WAIT = 10.0
"""Seconds after which a wait is reported."""
REPEATED_AFTER = 30.0
"""Seconds in which the same text is reported only once, over all threads."""


def _chance() -> float:
    import random

    return random.random()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Source of time and chance; tests inject others."""

    now: Callable[[], float] = moments.now
    """Unix time, for moments: no jump of this machine's clock changes it."""
    monotonic: Callable[[], float] = time.monotonic
    """For durations."""
    awake: Callable[[], float] = awake
    """For silence: seconds in which this process listened."""
    sleep: Callable[[float], object] = time.sleep
    """True ends the wait for good, as `Event.wait` does once the event is set by Ctrl-C."""
    chance: Callable[[], float] = _chance
    """Uniform in [0, 1)."""


CLOCK = Clock()


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A retry policy, or the pace of a poll. All durations in seconds. Another growth of the pauses
    is another field, so that docs/internals/states.md shows it."""

    pause: float
    """Pause before the second try."""
    backoff: float = 1.0
    """Factor for each further pause."""
    longest: float = math.inf
    """Maximum pause, except for a Retry-After."""
    jitter: float = 0.0
    """Share of each pause that is random."""
    tries: float = math.inf
    within: float = math.inf
    """Counted from the first try's start. No pause exceeds it, except for a Retry-After."""
    at_least: int = 2
    """Tries made even after that time: the first one alone may have taken that long."""
    answers: tuple[type[Exception], ...] = ()
    """Errors that prove the other side alive: limited by `tries`, not by `within`."""

    def pause_after(self, failures: int) -> float:
        """Backoff after a number of tries, without jitter, `within` and Retry-After."""
        try:
            return min(self.longest, self.pause * self.backoff ** (failures - 1))
        except OverflowError:
            return self.longest

    def call(
        self,
        work: Callable[[], T],
        *,
        on: type[E] | tuple[type[E], ...],
        unless: Callable[[E], bool] | None = None,
        before_pause: Callable[[E, float, float], None] | None = None,
        clock: Clock = CLOCK,
    ) -> T:
        """Call `work`, retrying while it raises one of `on`; return its result or raise its last
        error. Only for idempotent work. A `retry_after` of the error is honoured. `before_pause` is
        called with the error, the pause, and the seconds so far."""
        begun, failures = clock.monotonic(), 0
        while True:
            try:
                return work()
            except on as error:
                failures += 1
                taken = clock.monotonic() - begun
                pause = self._next_pause(failures, taken, error, clock)
                if pause is None or (unless is not None and unless(error)):
                    raise
                if before_pause is not None:
                    before_pause(error, pause, taken)
                if clock.sleep(pause):
                    raise

    def _next_pause(
        self, failures: int, taken: float, error: Exception, clock: Clock
    ) -> float | None:
        left = math.inf if isinstance(error, self.answers) else self.within - taken
        if failures >= self.tries or (left <= 0 and failures >= self.at_least):
            return None
        pause = self.pause_after(failures)
        if self.jitter:
            pause *= 1 - self.jitter * (1 - clock.chance())
        retry_after: float | None = getattr(error, "retry_after", None)
        return max(min(pause, max(0.0, left)), retry_after or 0.0)


class _NotYet(Exception):
    pass


def poll_until(
    ask: Callable[[], T | None], every: Retry, *, waits_for: str = "", clock: Clock = CLOCK
) -> T | None:
    """The first answer that is not None; None once its time is over. Polls at least once,
    and once more at the end. `waits_for` is shown to users once the wait is long."""

    def once() -> T:
        answer = ask()
        if answer is None:
            raise _NotYet
        return answer

    def report(_: _NotYet, __: float, taken: float) -> None:
        if waits_for:
            report_wait(f"waiting, {every.within:.0f} s at most: {waits_for}", taken=taken)

    try:
        return replace(every, at_least=1).call(once, on=_NotYet, before_pause=report, clock=clock)
    except _NotYet:
        return None


_listeners: list[Callable[[str], None]] = []
_reported: dict[str, float] = {}
_lock = threading.Lock()


@contextmanager
def waits_reported_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Report long waits inside to this function only."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_wait(text: str, *, taken: float) -> None:
    """Report a wait if it is long; `taken` is its duration, planned or so far, in seconds."""
    with _lock:
        now = time.monotonic()
        lately = now - _reported.get(text, -REPEATED_AFTER) < REPEATED_AFTER
        if taken < LONG_WAIT or not _listeners or lately:
            return
        _reported[text] = now
        listener = _listeners[-1]
    listener(text)


# ── Limits: every wait of a run and of `down` ─────────────────────────────────────────────────
# docs/internals/states.md is generated from this table. The config sets others (docs/config.md):
# `train.start_timeout`, `stall_timeout`, `deadline`, `grace`, `evaluator_grace`; `limits.wait`,
# `max_lifetime`.
# In seconds, at most: until what, and what happens else.


# ── A new cluster ────────────────────────────────────────────────────────────

FIRST_LOGIN = 600.0
"""Until a new node accepts the first login. Else `up` fails on that node, with the last refusal;
`up` again continues."""
CLOUD_INIT = 120.0
"""Until the cloud-init of a new node has ended. Else the setup begins, and says that cloud-init
still runs."""

# ── A node ───────────────────────────────────────────────────────────────────

NODE_AWAY = 60.0
"""Until a node that did not answer a command answers. Else the command fails on that node; `down`
keeps the nodes."""
NODE_KNOWN = 60.0
"""Until every node's state is known (`hosts`). Else `train` refuses, naming the nodes."""
HOST_ANSWER = 60.0
"""Until a machine of your own (`hosts`) has answered one question of the provider. Else it counts
as a machine that does not answer."""
PROXY_ANSWER = 60.0
"""Until the command of `network.ssh_proxy` has connected to the node. Else the node counts as one
that does not answer, with what the command wrote."""
PROXY_END = 1.0
"""Until the command of `network.ssh_proxy` has ended with its connection. Else it is sent TERM, and
after as long again KILL."""
NODE_LISTED = 60.0
"""Until a cloud lists a node that was requested a moment ago. Else for `up` it is lost, for `down`
it was never created."""
NODE_STARTS = 300.0
"""Until nodes run that a killed command was starting. Else `down` tries to land from them as they
are."""
NODE_TAKEN = 180.0
"""Until a preempted node has disappeared. Else the next attempt starts with the nodes that are
there."""
ADDRESS_FREED = 300.0
"""Until the address of a deleted node is free for the node that is recreated for its worker. Else
the run continues without that worker."""
HOST_RETURNS = 600.0
"""Until a host answers again whose worker is to be restarted alone (`hosts`). Else that restart has
failed, and counts."""

NODE_SILENT = 120.0
"""Until a byte of a listing, checksum or stream arrives from a node. Else the node counts as
unreachable, and what was read from it fails."""
PROOF_ANSWER = 60.0
"""Until a node answers the proof for the first time. Else that node has failed the proof."""
PROOF_SILENT = 60.0
"""Until a heartbeat of a node's proof arrives. Else that node has failed the proof."""

# ── A running attempt ────────────────────────────────────────────────────────

LOST_AFTER = 60.0
"""Until a silent node answers, while another node does. Else its task counts as lost."""
ALONE_LOST_AFTER = 300.0
"""Until a silent node answers, while none does but the provider: more likely our own network
failed. Else its task counts as lost."""
PROVIDER_SILENT = 24 * 3600.0
"""Until a silent node answers, or its provider. Else its task counts as lost."""
FROZEN_AFTER = 15.0
"""Until a stopped process (SIGSTOP) goes on. Else its task counts as frozen."""
LOG_SILENT = 15.0
"""Until a byte of a task's log or a heartbeat (every 5 s) arrives. Else the connection counts as
dead, and another one follows the task."""
JOINED_LATE = 10.0
"""Until a report of an open port arrives after its task's end: ports are checked once a second, and
heartbeats come every five. Else the task counts as never joined."""
STILL = 300.0
"""Until a task that runs writes a log line or a file, or computes. Else a warning says where each
task waits; nothing is ended."""
PEER_GONE = 60.0
"""Until the same, once a task that the others are connected to has ended with 0. Else a warning
says for whom they wait; nothing is ended."""
SETTLE = 1.0
"""Until a failure arrives that outranks a certain cause. Else the cause is declared."""
WINDOW = 20.0
"""Until all tasks have ended, or one cause is certain. Else the likeliest cause is declared."""
OTHERS_GRACE = 60.0
"""Until the other tasks end after the deciding ones have succeeded. Else they are stopped, and the
run has succeeded."""
STOP_ANSWER = 30.0
"""Until a node says, after `train.grace`, that its task was stopped. Else a warning; the landing
ends what still runs."""
ORPHANS_ANSWER = 120.0
"""Until a node says that no task runs there any more. Else a warning; files that still change keep
`down` from destroying the node."""
LAST_WORDS = 15.0
"""Until the last bytes of stopped tasks' logs arrive. Else the landing takes the logs as they are
here."""

# ── The end ──────────────────────────────────────────────────────────────────

OUTAGE = 1800.0
"""Until a store or a cloud that is away at the end of a run, or of `run` and `down`, answers. Else
the command fails; of `run` and `down`, a background process goes on trying, until the nodes' own
end."""

# ── Another process ──────────────────────────────────────────────────────────

LOCK_HANDED_OVER = 30.0
"""Until the process that has started or ended a run releases the cluster's lock. Else the next
command is refused, naming the holder."""
STOP_HANDED_OVER = 3600.0
"""Until the process that supervises the run has stopped and landed it. Else `stop-run` and `down`
are refused, naming that process; nothing is destroyed."""
IDLE_DOWN = 3600.0
"""Until a `down` that `limits.idle` has started is over. Else `down` is refused, naming that
process; nothing is destroyed."""
ORDER_RECEIVED = 300.0
"""Until the controller of a run that is away confirms an order. Else `stop-run` and `down` fail,
and say how to end the run without its controller."""
ORDER_DONE = 3600.0
"""Until a controller has carried out the order that it has confirmed. Else `stop-run` and `down`
fail; the controller goes on."""


AWAY = Retry(pause=1.0, within=NODE_AWAY)
"""For a node that does not answer: its sshd restarts, or accepts no more logins (MaxStartups)."""
