"""Report of a rehearsal: the outcome of the job under each fault; pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from cloudtrain.artifacts.manifest import Manifest, is_record
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.metrics import LogLine, counts, last_loss, repeated, training, unit_of
from cloudtrain.core.model import Artifact, ClusterConfig
from cloudtrain.core.paths import shown, size_text, some
from cloudtrain.core.run_record import Run
from cloudtrain.runs import root_cause
from cloudtrain.runs.state_machine import is_retryable
from cloudtrain.script.facts import ScriptFacts

# ── what has landed ────────────────────────────────────────────────────────────
# Two trainings are never the same, and a restart writes more checkpoints and event files than one
# attempt. So names are compared with their numbers left out, and not how many there are of a kind;
# sizes for what is empty, or less than half as large. Contents are not.


_CHANGING = re.compile(r"tmp[a-z0-9_]{8}|[0-9a-f]{8,}|\d+")
"""Parts of names that differ between two runs: those of `tempfile`, digests, steps, times, pids."""

_COMPARED_FROM = 1000
"""Bytes below which half the size means nothing."""

_EVENTS = "events.out.tfevents"
"""TensorBoard's files, which an attempt begins anew."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Files that are missing, or smaller than in the undisturbed run."""

    missing: tuple[str, ...] = ()
    """Paths, as the undisturbed run landed them, of which nothing landed, or only empty files."""
    smaller: tuple[str, ...] = ()
    """`chief0/history.csv: 1.2 kB instead of 5.0 kB`"""


NOTHING_LESS = Compared()


def compared(
    reference: Manifest | None, found: Manifest | None, *, without: Collection[str] = ()
) -> Compared:
    """`without`: tasks without which the run was allowed to end."""
    before, after = _by_name(reference), _by_name(found)
    missing, smaller = [], []
    for name, files in before.items():
        task = name[0]
        if task in without:
            continue
        usual, now = _largest(files), _largest(after.get(name, ()))
        if name not in after or (usual and not now):
            missing.append(files[0].path)
        elif _EVENTS not in name[1] and usual >= _COMPARED_FROM and now < usual / 2:
            text = f"{size_text(now)} instead of {size_text(usual)}"
            smaller.append(f"{after[name][0].path}: {text}")
    return Compared(missing=tuple(missing), smaller=tuple(smaller))


def _by_name(manifest: Manifest | None) -> Mapping[tuple[str, str], list[Artifact]]:
    """Files of tasks, by task and name without numbers."""
    found = defaultdict(list)
    for path, file in sorted(manifest.files.items()) if manifest else ():
        if not is_record(path):
            task, _, name = path.partition("/")
            found[task, _CHANGING.sub("#", name)].append(file)
    return found


def _largest(files: Collection[Artifact]) -> int:
    return max((file.size for file in files), default=0)


Verdict = Literal["came through", "failed", "no fault"]
"""`no fault`: the run ended before it came."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault to come: what, to which task, and after which share of the training."""

    kind: str
    task: str
    share: float
    """Of the time between the first and the last step of the undisturbed run, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class FaultOutcome:
    """Outcome of a job under one fault."""

    fault: str
    task: str
    after: float
    """Seconds from the first step (or line) of training."""
    verdict: Verdict
    run: str
    attempts: int
    repeated: int | None = None
    """Steps or epochs that were begun twice; None if the log does not say."""
    unit: str | None = None
    loss: float | None = None
    recovered_after: float | None = None
    """Seconds from the fault to the first step (or line) of the next attempt; None without one."""
    cause: str | None = None
    change: tuple[str, ...] = ()
    """What would make it come through, or lose less."""
    missing: tuple[str, ...] = ()
    """What the undisturbed run landed and this one did not; see `landed.compared`."""
    smaller: tuple[str, ...] = ()
    """What landed with less than half of that size."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Report of a rehearsal."""

    name: str
    seed: int
    store: str
    not_rehearsed: tuple[str, ...]
    seconds: float
    """Length of the undisturbed run, from its first start to its landed end."""
    loss: float | None
    outcomes: tuple[FaultOutcome, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the success of the undisturbed run may be none: nothing is proved by others like it."""

    @property
    def came_through(self) -> bool:
        well = all(outcome.verdict == "came through" for outcome in self.outcomes)
        return well and not (self.doubts and self.outcomes)


def judged(
    config: ClusterConfig,
    fault: Fault,
    run: Run,
    lines: Sequence[LogLine],
    hit: float | None,
    error: CloudtrainError | None,
    *,
    saving: Saving | None = None,
    orphan: str | None = None,
    unmade: str | None = None,
    landed: Compared = NOTHING_LESS,
    doubted: Collection[str] = (),
) -> FaultOutcome:
    """Outcome of a run with a fault, by the record and the log; pure.

    `saving`: what the source says of checkpoints; None if it is not known. `orphan`: what a node
    that came back did wrong, which is a failure of any run. `unmade`: why the fault could not be
    made. `doubted`: what was doubted of the undisturbed run."""
    unit = unit_of(lines)
    begun = training(lines, unit)
    later = next((each.started for each in run.attempts if hit and each.started > hit), None)
    before = [line for line in begun if hit is None or line.seen <= hit]
    after = [line for line in begun if later is not None and line.seen >= later]
    cause = next((each.cause for each in reversed(run.attempts) if each.cause), None)
    why = unmade or orphan or lacks(run, landed, doubted)
    well = run.state == "succeeded" and why is None
    is_early = unmade is None and hit is None and well
    landed = landed if run.state == "succeeded" else NOTHING_LESS
    changes = [*retries(config, run), *resumption(config, run, before, after, saving)]
    return FaultOutcome(
        fault=fault.kind,
        task=fault.task,
        after=round((hit or 0.0) - (begun[0].seen if begun and hit else hit or 0.0), 1),
        verdict="no fault" if unmade or is_early else "came through" if well else "failed",
        run=run.id,
        attempts=len(run.attempts),
        repeated=repeated(before, after, unit) if unit else None,
        unit=unit,
        loss=last_loss(lines),
        recovered_after=round(after[0].seen - hit, 1) if after and hit else None,
        cause=why or (root_cause.sentence(cause) if cause else error.message if error else None),
        missing=landed.missing,
        smaller=landed.smaller,
        change=(*changes, *(["train longer: it ended before the fault"] if is_early else ())),
    )


def lacks(run: Run, landed: Compared, doubted: Collection[str]) -> str | None:
    """Reason for which a success with a fault is less than the one without; None if it is not."""
    if run.state != "succeeded":
        return None
    if landed.missing:
        return (
            "it succeeded without what the undisturbed run landed: "
            f"{some([shown(path) for path in landed.missing])}"
        )
    new = [doubt.text for doubt in run.doubts if doubt.text not in doubted]
    return f"it succeeded, but {new[0]}" if new else None


def retries(config: ClusterConfig, run: Run) -> Iterator[str]:
    """Changes that would have let a failed run go on."""
    cause = next((each.cause for each in reversed(run.attempts) if each.cause), None)
    if run.state == "succeeded" or cause is None:
        return
    train = config.train
    if cause.hint:
        yield cause.hint
    if is_retryable(cause, train.retry_exit_codes):
        if len(run.attempts) > train.max_restarts:
            yield f"set train.max_restarts above {train.max_restarts}"
    elif cause.kind == "exit" and cause.exit_code is not None and cause.exit_code > 0:
        yield (
            f"exit code {cause.exit_code} is not retried: add it to train.retry_exit_codes if "
            "another attempt would succeed"
        )


def resumption(
    config: ClusterConfig,
    run: Run,
    before: Sequence[LogLine],
    after: Sequence[LogLine],
    saving: Saving | None,
) -> Iterator[str]:
    """Changes that would have let a later attempt resume."""
    unit = unit_of(list(before))
    seen, again = (counts(some, unit) if unit else [] for some in (before, after))
    began_again = bool(seen and again) and again[0] <= seen[0] < max(seen)
    resumed = bool(seen and again) and again[0] > seen[0]
    saves_none = saving is not None and saving.use is None
    if began_again or (saves_none and len(run.attempts) > 1 and not resumed):
        folder = config.train.checkpoints
        name = f"in {folder!r}" if folder else "in a folder that train.checkpoints names"
        restore = "restore the latest one at the start"
        if saving is None:
            yield f"it began again: save checkpoints {name}, and {restore}"
        elif saving.use is None:
            yield (
                f"it began again, as the script saves no checkpoint: save one each epoch {name}, "
                f"and {restore} (Keras: BackupAndRestore)"
            )
        else:
            yield (
                f"it began again, although the script saves checkpoints ({saving.use}): save them "
                f"{name}, and {restore}"
            )


HEAD: tuple[str, ...] = ("fault", "task", "at", "verdict", "repeated", "final loss", "recovered")


def table(report: Rehearsal) -> list[str]:
    """The report as lines of text, within 80 columns but for causes and advice."""
    loss = "-" if report.loss is None else f"{report.loss:.6g}"
    lines = [f"undisturbed: {report.seconds:g} s, final loss {loss}"]
    lines += [f"    its success may be none: {text}" for text in report.doubts]
    if not report.outcomes:
        return lines
    rows = [HEAD, *map(_row, report.outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
        if number:
            outcome = report.outcomes[number - 1]
            if outcome.verdict != "came through" and outcome.cause:
                lines.append("    " + outcome.cause.replace("\n", "\n    "))
            lines += [f"    landed: {shown(text)}" for text in outcome.smaller]
            lines += [f"    change: {text}" for text in outcome.change]
    lines.append(f"seed {report.seed}; artifacts and logs: {report.store}")
    return lines


def _row(outcome: FaultOutcome) -> tuple[str, ...]:
    def or_none(value: float | None, form: Callable[[float], str]) -> str:
        return "-" if value is None else form(value)

    unit = outcome.unit or ""
    again = or_none(outcome.repeated, lambda n: f"{n:g} {unit}{'' if n == 1 else 's'}")
    return (
        outcome.fault,
        outcome.task,
        f"{outcome.after:g} s" if outcome.verdict != "no fault" else "-",
        outcome.verdict,
        "none" if outcome.attempts == 1 and outcome.verdict == "came through" else again,
        or_none(outcome.loss, lambda value: f"{value:.6g}"),
        "went on"
        if outcome.attempts == 1 and outcome.verdict == "came through"
        else or_none(outcome.recovered_after, lambda value: f"{value:g} s"),
    )


SAVING = frozenset(
    (
        *("ModelCheckpoint", "BackupAndRestore", "CheckpointManager", "Checkpoint", "Saver"),
        *("PreemptionCheckpointHandler", "CheckpointSaverHook", "MonitoredTrainingSession"),
    )
)
"""Last parts of TensorFlow's and Keras's names with which a training saves as it goes."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Means by which a script saves checkpoints."""

    use: str | None
    """`train.py:64: ModelCheckpoint`; None: with nothing of TensorFlow or Keras."""


def saving_in(facts: ScriptFacts | None) -> Saving | None:
    """None if the source is not known, or not all of it can be read."""
    if facts is None or facts.unreadable:
        return None
    for use in facts.names:
        last = use.name.rpartition(".")[2]
        if last in SAVING or ".estimator." in use.name:
            return Saving(use=f"{use}: {last}")
    return Saving(use=None)
