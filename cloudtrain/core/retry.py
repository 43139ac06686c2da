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


class Wait(float):
    """Seconds of a wait, at most. `until`: what ends it; `then`: what happens at the limit."""

    until: str
    then: str

    def __new__(cls, seconds: float, *, until: str = "", then: str = "") -> Wait:
        wait = super().__new__(cls, seconds)
        wait.until, wait.then = until, then
        return wait


# ── A new cluster ────────────────────────────────────────────────────────────

FIRST_LOGIN = Wait(
    600.0,
    until="a new node accepts the first login",
    then="`up` fails on that node, with the last refusal; `up` again continues",
)
CLOUD_INIT = Wait(
    120.0,
    until="the cloud-init of a new node has ended",
    then="the setup begins, and says that cloud-init still runs",
)

# ── A node ───────────────────────────────────────────────────────────────────

NODE_AWAY = Wait(
    60.0,
    until="a node that did not answer a command answers",
    then="the command fails on that node; `down` keeps the nodes",
)
NODE_KNOWN = Wait(
    60.0, until="every node's state is known (`hosts`)", then="`train` refuses, naming the nodes"
)
HOST_ANSWER = Wait(
    60.0,
    until="a machine of your own (`hosts`) has answered one question of the provider",
    then="it counts as a machine that does not answer",
)
PROXY_ANSWER = Wait(
    60.0,
    until="the command of `network.ssh_proxy` has connected to the node",
    then="the node counts as one that does not answer, with what the command wrote",
)
PROXY_END = Wait(
    1.0,
    until="the command of `network.ssh_proxy` has ended with its connection",
    then="it is sent TERM, and after as long again KILL",
)
NODE_LISTED = Wait(
    60.0,
    until="a cloud lists a node that was requested a moment ago",
    then="for `up` it is lost, for `down` it was never created",
)
NODE_STARTS = Wait(
    300.0,
    until="nodes run that a killed command was starting",
    then="`down` tries to land from them as they are",
)
NODE_TAKEN = Wait(
    180.0,
    until="a preempted node has disappeared",
    then="the next attempt starts with the nodes that are there",
)
ADDRESS_FREED = Wait(
    300.0,
    until="the address of a deleted node is free for the node that is recreated for its worker",
    then="the run continues without that worker",
)
HOST_RETURNS = Wait(
    600.0,
    until="a host answers again whose worker is to be restarted alone (`hosts`)",
    then="that restart has failed, and counts",
)

NODE_SILENT = Wait(
    120.0,
    until="a byte of a listing, checksum or stream arrives from a node",
    then="the node counts as unreachable, and what was read from it fails",
)
PROOF_ANSWER = Wait(
    60.0, until="a node answers the proof for the first time", then="that node has failed the proof"
)
PROOF_SILENT = Wait(
    60.0, until="a heartbeat of a node's proof arrives", then="that node has failed the proof"
)

# ── A running attempt ────────────────────────────────────────────────────────

LOST_AFTER = Wait(
    60.0, until="a silent node answers, while another node does", then="its task counts as lost"
)
ALONE_LOST_AFTER = Wait(
    300.0,
    until="a silent node answers, while none does but the provider: more likely our own network "
    "failed",
    then="its task counts as lost",
)
PROVIDER_SILENT = Wait(
    24 * 3600.0, until="a silent node answers, or its provider", then="its task counts as lost"
)
FROZEN_AFTER = Wait(
    15.0, until="a stopped process (SIGSTOP) goes on", then="its task counts as frozen"
)
LOG_SILENT = Wait(
    15.0,
    until="a byte of a task's log or a heartbeat (every 5 s) arrives",
    then="the connection counts as dead, and another one follows the task",
)
JOINED_LATE = Wait(
    10.0,
    until="a report of an open port arrives after its task's end: ports are checked once a second, "
    "and heartbeats come every five",
    then="the task counts as never joined",
)
STILL = Wait(
    300.0,
    until="a task that runs writes a log line or a file, or computes",
    then="a warning says where each task waits; nothing is ended",
)
PEER_GONE = Wait(
    60.0,
    until="the same, once a task that the others are connected to has ended with 0",
    then="a warning says for whom they wait; nothing is ended",
)
SETTLE = Wait(
    1.0, until="a failure arrives that outranks a certain cause", then="the cause is declared"
)
WINDOW = Wait(
    20.0,
    until="all tasks have ended, or one cause is certain",
    then="the likeliest cause is declared",
)
OTHERS_GRACE = Wait(
    60.0,
    until="the other tasks end after the deciding ones have succeeded",
    then="they are stopped, and the run has succeeded",
)
STOP_ANSWER = Wait(
    30.0,
    until="a node says, after `train.grace`, that its task was stopped",
    then="a warning; the landing ends what still runs",
)
ORPHANS_ANSWER = Wait(
    120.0,
    until="a node says that no task runs there any more",
    then="a warning; files that still change keep `down` from destroying the node",
)
LAST_WORDS = Wait(
    15.0,
    until="the last bytes of stopped tasks' logs arrive",
    then="the landing takes the logs as they are here",
)

# ── The end ──────────────────────────────────────────────────────────────────

OUTAGE = Wait(
    1800.0,
    until="a store or a cloud that is away at the end of a run, or of `run` and `down`, answers",
    then="the command fails; of `run` and `down`, a background process goes on trying, until the "
    "nodes' own end",
)

# ── Another process ──────────────────────────────────────────────────────────

LOCK_HANDED_OVER = Wait(
    30.0,
    until="the process that has started or ended a run releases the cluster's lock",
    then="the next command is refused, naming the holder",
)
STOP_HANDED_OVER = Wait(
    3600.0,
    until="the process that supervises the run has stopped and landed it",
    then="`stop-run` and `down` are refused, naming that process; nothing is destroyed",
)
IDLE_DOWN = Wait(
    3600.0,
    until="a `down` that `limits.idle` has started is over",
    then="`down` is refused, naming that process; nothing is destroyed",
)
ORDER_RECEIVED = Wait(
    300.0,
    until="the controller of a run that is away confirms an order",
    then="`stop-run` and `down` fail, and say how to end the run without its controller",
)
ORDER_DONE = Wait(
    3600.0,
    until="a controller has carried out the order that it has confirmed",
    then="`stop-run` and `down` fail; the controller goes on",
)


WAITS = {name: each for name, each in globals().items() if isinstance(each, Wait)}
"""All of them, by their names."""

AWAY = Retry(pause=1.0, within=NODE_AWAY)
"""For a node that does not answer: its sshd restarts, or accepts no more logins (MaxStartups)."""
