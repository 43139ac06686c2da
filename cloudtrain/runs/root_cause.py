"""Finds the root cause of a failed attempt: one task; the others failed because of it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import CAUSES, Cause, CauseKind, Task
from cloudtrain.diagnosis.hints import hint_for
from cloudtrain.runs.attempt_state import AttemptState, TaskView, never_served, serves
from cloudtrain.runs.task_commands import OutOfMemory
from cloudtrain.training import log_text


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Known facts about one task. 64 KiB of `log` are plenty.

    `started`: its port is open, or it has none to wait for. `joined`: False if it has ended and
    certainly never opened its port. `stopped`: this program stopped it, so its exit code means
    nothing. `ended` is Unix time; `oom`: the kernel's log has a line about it."""

    task: Task
    lost: bool = False
    silent: bool = False
    """Its node does not answer now; it may yet."""
    announced: str = ""
    """How its node ended: `preempted`, `shutdown` or `lifetime`; "" if that was not announced."""
    frozen: bool = False
    started: bool = True
    joined: bool = True
    stopped: bool = False
    oom: bool = False
    exit_code: int | None = None
    """Negative for a signal; a shell's 128 + n means the same."""
    ended: float | None = None
    log: bytes = b""


def find_root_cause(observations: Sequence[Observation]) -> Cause | None:
    """Root cause of the attempt's failure, by kind and then by time; None if nothing failed."""
    failed = [seen for seen in observations if _rank(seen) < NOTHING]
    if all(_rank(seen) == SILENT for seen in failed):  # it may answer again
        return None
    first = min(failed, key=lambda seen: (_rank(seen), seen.ended or float("inf")))
    ended = (seen for seen in failed if _rank(seen) not in (NOT_STARTED, SILENT))
    others = (seen for seen in ended if seen is not first)
    code = first.exit_code
    number = None if code is None else _signal_number(code)
    kind, text = _kind_and_text(first, number)
    cause = Cause(
        task=first.task.name,
        node=first.task.node,
        kind=kind,
        text=text,
        exit_code=code if number is None else -number,
        last_lines=log_text.last_lines(first.log),
        hint=hint_for(kind, first.log, number, ended=code is not None),
        collateral=tuple(seen.task.name for seen in others),
        lost_peer=_rank(first) == COLLATERAL,
    )
    return _left_alone(cause, first, observations)


def _left_alone(cause: Cause, first: Observation, observations: Sequence[Observation]) -> Cause:
    """The cause, with peers that had ended with 0 before, if its task then lacked them."""
    text = log_text.last_exception(first.log)
    if cause.kind != "exit" or not (log_text.reports_lost_peer(text) or _OUT_OF_STEP.search(text)):
        return cause
    finished = tuple(
        (seen.task.name, (first.ended or seen.ended) - seen.ended)
        for seen in observations
        if seen.exit_code == 0
        and not seen.stopped
        and seen.task.role != "evaluator"
        and seen.ended is not None
        and seen.ended <= (first.ended or seen.ended)
    )
    if not finished:
        return cause
    ps = any(seen.task.role == "ps" for seen in observations)
    return replace(
        cause,
        hint=finished_first(cause.task, text, finished, ps=ps),
        finished_before=tuple(name for name, _ in finished),
        lost_peer=False,
    )


def is_certain(observations: Sequence[Observation]) -> bool:
    """True if the cause is certain by now. If not, a worse one may still follow: exits that only
    report a lost peer come 4–20 s after the event, the peer's own may come later still."""
    return any(_rank(seen) < NOT_STARTED for seen in observations)


def sentence(cause: Cause) -> str:
    """Format `worker1 on mnist-worker1: killed by SIGKILL`; the text alone without a task."""
    place = " on ".join(filter(None, (cause.task, cause.node)))
    return f"{place}: {cause.text}" if place else cause.text


def describe(cause: Cause) -> str:
    """The sentence, the task's last lines if they say more, and the tasks that failed after it."""
    lines = [sentence(cause)]
    lines += [f"  {line}" for line in cause.last_lines if line not in lines[0]]
    if cause.collateral:
        lines.append(f"failed after it: {', '.join(cause.collateral)}")
    return "\n".join(lines)


CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals of a program's own fault, before which it may say why. It ranks as `SIGNAL` in any case:
its peers' exits come of its death."""
LOST, FROZEN, SIGNAL, EXIT, NOT_STARTED, SILENT, COLLATERAL, NOTHING = range(8)


def _rank(seen: Observation) -> int:
    """Rank of a failure; smaller is nearer to the root."""
    if seen.lost or seen.announced:
        return LOST
    if seen.frozen:
        return FROZEN
    if seen.exit_code is None and not seen.started:
        return NOT_STARTED
    if seen.exit_code is None:
        return SILENT if seen.silent else NOTHING
    if seen.exit_code == 0 or seen.stopped:
        return NOTHING
    number = _signal_number(seen.exit_code)
    # TensorFlow may crash while it winds up after a peer's death.
    if number in (None, signal.SIGABRT, signal.SIGSEGV) and log_text.reports_lost_peer(
        log_text.last_exception(seen.log)
    ):
        return COLLATERAL
    return EXIT if number is None else SIGNAL


def _signal_number(exit_code: int) -> int | None:
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in {known.value for known in signal.Signals} else None


def _kind_and_text(seen: Observation, number: int | None) -> tuple[CauseKind, str]:
    node, lost = seen.task.node, CAUSES["lost"].words
    if seen.announced == "lifetime":
        return "expired", CAUSES["expired"].words.format(node=node)
    if seen.announced:
        how = "was shut down" if seen.announced == "shutdown" else "was preempted"
        return "lost", lost.format(node=node, how=how)
    if seen.lost:
        return "lost", lost.format(node=node, how="no longer answers")
    if seen.frozen:
        return "frozen", CAUSES["frozen"].words
    if seen.exit_code is None and seen.started:
        return "lost", lost.format(node=node, how="did not answer when its peers gave it up")
    if seen.exit_code is None:
        return "not_started", CAUSES["not_started"].words.format(port=seen.task.port)
    if number == signal.SIGKILL and seen.oom:
        return "oom", CAUSES["oom"].words
    early = "" if seen.joined else " (before it joined the cluster)"
    for kind, facts in CAUSES.items() if number is None or number in CRASHES else ():
        if facts.log is not None and re.search(facts.log, log_text.last_exception(seen.log)):
            return kind, facts.words.format(code=seen.exit_code) + early
    if number is not None:
        return "signal", CAUSES["signal"].words.format(signal=signal.Signals(number).name) + early
    reason, text = log_text.headline(seen.log), CAUSES["exit"].words.format(code=seen.exit_code)
    text += f": {reason}" if reason else ""
    return "exit" if seen.joined else "not_started", text + early


# ── tasks that had finished too early ──────────────────────────────────────────


_OUT_OF_STEP = re.compile(
    r"Collective instance \d+ expected|Shape mismatch in the collective instance"
    r"|Barrier timed out|Barrier .*DEADLINE_EXCEEDED"
)
"""Messages of TensorFlow, beside those of a lost peer, that follow when a task has gone: the ranks
called different collectives, or one of them none any more (seen on 2.21.0)."""


def finished_first(task: str, text: str, finished: Sequence[tuple[str, float]], *, ps: bool) -> str:
    """Advice on a task whose peers ended with 0 before it failed. `text`: the task's last
    exception; `finished`: the peers' names, each with the seconds that it had ended before; `ps`:
    whether the run has parameter servers.

    Keras' `evaluate` and `save` call collectives on every rank:
    https://github.com/tensorflow/tensorflow/issues/38635, #36153, #37112 (a batch more), #31252."""
    frame = log_text.own_frame(text)
    names = some([name for name, _ in finished])
    first, last = min(ago for _, ago in finished), max(ago for _, ago in finished)
    span = f"{first:.0f} to {last:.0f}" if round(first) != round(last) else f"{last:.0f}"
    ended = f"{names} had finished (exit 0, {span} s before)"
    where = f" at {frame.place}" if frame is not None else ""
    if ps:
        return (
            f"{ended} while {task} still needed it{where}: a worker and a ps serve"
            " until the chief ends (`server.join()`)"
        )
    return (
        f"{ended} while {task} was still in a collective{where}: evaluate and save on"
        " every rank, or give every rank as many batches"
    )


def failure_of(state: AttemptState, view: TaskView) -> Cause | None:
    """Cause for which this task failed by itself."""
    return root_cause_of(state, [replace(observation(state, view), stopped=False)])


def observation(state: AttemptState, view: TaskView) -> Observation:
    failed = view.lost is not None or bool(view.exit_code)
    return Observation(
        task=view.task,
        lost=view.lost is not None,
        silent=view.unreachable_since is not None and not view.ended,
        announced=view.announced if view.notice is not None and failed else "",
        frozen=view.stopped_since is not None and not view.ended,
        started=view.port_open or not serves(state, view.task),
        joined=not never_served(state, view),
        # The run went on without it, or is about to restart it.
        stopped=view.task.name in state.warned or view.restart_at is not None,
        oom=view.starved is not None,
        exit_code=view.exit_code,
        ended=view.ended_at,
        log=view.tail,
    )


def tolerated_failures(state: AttemptState) -> tuple[Cause, ...]:
    """Causes for which the tasks failed without which the run went on."""
    causes = (failure_of(state, state.tasks[name]) for name in state.tolerated)
    return tuple(cause for cause in causes if cause is not None)


def root_cause_of(state: AttemptState, observations: list[Observation]) -> Cause | None:
    """Root cause; for a lost node with how that was noticed, for memory with figures."""
    cause = find_root_cause(observations)
    if cause is None or cause.kind not in ("lost", "expired", "oom"):
        return cause
    view = state.tasks[cause.task]
    if cause.kind == "oom":
        return replace(cause, text=cause.text + figures(view.starved))
    if view.notice is not None:
        given = time.strftime("%H:%M:%S UTC", time.gmtime(view.notice))
        return replace(cause, text=f"{cause.text} (notice at {given})")
    return replace(cause, text=view.lost or cause.text)


def figures(starved: OutOfMemory | None) -> str:
    """Format ` (it used 15.2 GB; at most 15.9 of 16.0 GB were in use)`, as far as reported."""
    if starved is None:
        return ""
    parts = []
    if starved.rss is not None:
        parts.append(f"it used {starved.rss / 1e9:.1f} GB")
    if starved.peak is not None and starved.limit is not None:
        parts.append(
            f"at most {starved.peak / 1e9:.1f} of {starved.limit / 1e9:.1f} GB were in use"
        )
    elif starved.limit is not None:
        parts.append(f"the limit is {starved.limit / 1e9:.1f} GB")
    return f" ({'; '.join(parts)})" if parts else ""
