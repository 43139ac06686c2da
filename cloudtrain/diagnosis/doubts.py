"""Doubts about a task that has ended with 0, by the end of its log, its files and its duration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from posixpath import basename, dirname

from cloudtrain.core.metrics import LogLine, counts, last_loss
from cloudtrain.core.run_record import Doubt
from cloudtrain.diagnosis.hints import hint_for, texts
from cloudtrain.training.log_text import TRACEBACK, headline, last_exception, program_lines

SHORT = 60.0
"""Seconds: TensorFlow alone takes several to start, and no training is shorter."""

FOLLOWING = 30
"""Lines after a traceback up to which it ends the log: TensorFlow's messages are long."""

ENDING = 12
"""Lines at the end of a log in which a message without a traceback counts."""

_GOES_ON = re.compile(
    r"\b(?:retr(?:y|ied|ies|ying)|again|attempt|skip(?:ped|ping)?|fall(?:ing|s)?[ -]?back|fallback"
    r"|ignor(?:ed|ing)|recover(?:ed|ing)|resum(?:ed|ing)|continu(?:es|ed|ing)|succeeded"
    r"|successfully|sav(?:ed|ing)|export(?:ed|ing)|wrote|written|upload(?:ed|ing)|download(?:ed|ing)"
    r"|interpreter shutdown)\b",
    re.IGNORECASE,
)
"""Words by which a script says that it went on in spite of an error."""

_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception)\b")
_SEVERE = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\b(?:[Ff]ailed|[Cc]rashed|[Aa]borted)\b"
    r"|\b(?:\w+\.)*\w*(?:Error|Exception)\b"
)
_NAMED = re.compile(r"\b\w+(?:Error|Exception): .*")
_MILD = re.compile(r"warn|\bno errors?\b|\b0 errors\b", re.IGNORECASE)


def swallowed(task: str, log: bytes) -> Doubt | None:
    """A task that ended with 0 after a traceback, or after a message with a hint, that neither a
    step nor a word of going on follows."""
    lines = program_lines(log)
    since = max((n + 1 for n, line in enumerate(lines) if _counts(line)), default=0)
    ending = lines[since:]
    starts = [number for number, line in enumerate(ending) if line == TRACEBACK]
    if starts:
        last = ending[starts[-1] :]
        raised = next((n for n, line in enumerate(last) if n and not line.startswith(" ")), 0)
        about = ending[max(0, starts[0] - 1) :]
        if len(last) - raised > FOLLOWING or any(_goes_on(line) for line in about):
            return None
        text = last_exception("\n".join(ending).encode())
    else:
        severe = (line for line in ending[-ENDING:] if _SEVERE.search(line))
        about = [line for line in severe if not _MILD.search(line)]
        if not about or any(_goes_on(line) for line in ending[-ENDING:]):
            return None
        text = about[-1]
    hint = hint_for("exit", text.encode())
    if not starts and hint is None:
        return None
    named = _NAMED.search(text) if not starts else None
    why = named[0] if named else headline(text.encode()) or text.splitlines()[-1]
    return Doubt(task=task, kind="error", text=f"{task} exited with 0 after {why[:200]}", hint=hint)


def _goes_on(line: str) -> bool:
    """False also for the lines of a traceback, whose words are the error's."""
    return not line.startswith("  ") and not _RAISED.match(line) and bool(_GOES_ON.search(line))


def _counts(text: str) -> bool:
    """True for a line with a step, an epoch or a loss."""
    line = [LogLine(task="", seen=0.0, text=text)]
    return bool(counts(line, "step") or counts(line, "epoch")) or last_loss(line) is not None


# ── Checkpoints ──────────────────────────────────────────────────────────────

_PART = re.compile(r"(?P<prefix>.+?)_temp(?:_[0-9a-f]+)?/part-\d{5}-of-\d{5}\b.*")
"""Of a save that has not been merged (tensorflow/python/checkpoint/functional_saver.py, 2.21.0)."""
_DATA = re.compile(r"(?P<prefix>.+)\.data-(?P<part>\d{5})-of-(?P<all>\d{5})")
_NUMBER = re.compile(r"(\d+)$")


def incomplete(task: str, mine: Collection[str], everything: Collection[str]) -> Doubt | None:
    """A checkpoint of TensorFlow among the files of a task that is not whole, unless its folder has
    a newer one that is. `everything`: the files of all tasks, as each ps may have a part."""
    there = frozenset(everything)
    wanted = {
        each["prefix"]: int(each["all"]) for path in sorted(mine) if (each := _DATA.fullmatch(path))
    }
    lacks = {prefix: tuple(_lacking(prefix, number, there)) for prefix, number in wanted.items()}
    parts = {
        each["prefix"]: path
        for path in sorted(mine)
        if (each := _PART.fullmatch(path)) and f"{each['prefix']}.index" not in there
    }
    whole = [prefix for prefix, lacking in lacks.items() if not lacking]
    said = [
        f"{prefix} lacks {' and '.join(lacking)}"
        for prefix, lacking in lacks.items()
        if lacking and not _replaced(prefix, whole) and not _PART.match(prefix)
    ]
    said += [
        f"{path} is a part that was never merged"
        for prefix, path in parts.items()
        if not _replaced(prefix, whole)
    ]
    if not said:
        return None
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    hint = (
        texts()["own_disk"]
        if parts
        else "its save was interrupted: look at the end of the task's log"
    )
    text = f"{task} left an incomplete checkpoint: {said[0]}{more}"
    return Doubt(task=task, kind="checkpoint", text=text, hint=hint)


def _lacking(prefix: str, number: int, there: Collection[str]) -> Iterator[str]:
    names = [f"data-{part:05d}-of-{number:05d}" for part in range(number)]
    missing = [name for name in names if f"{prefix}.{name}" not in there]
    yield from missing[:2]
    if f"{prefix}.index" not in there:
        yield "its index"


def _replaced(prefix: str, whole: Collection[str]) -> bool:
    """True if the folder has a whole checkpoint that is newer, or has no number either."""
    return any(
        dirname(each) == dirname(prefix) and _number(each) >= _number(prefix) for each in whole
    )


def _number(prefix: str) -> int:
    found = _NUMBER.search(basename(prefix))
    return int(found[1]) if found else -1


_FIGURES = re.compile(
    r"accuracy|\bacc\b|\bmae\b|\bmse\b|\bauc\b|metric|score|iteration|batch|train(?:ed|ing)\b|/s\b",
    re.IGNORECASE,
)
"""Words of a training that counts in a way of its own."""


def untrained(
    task: str, logs: Mapping[str, bytes], *, files: int, seconds: float, tensorflow: bool
) -> Doubt | None:
    """A run that ended within seconds, and of which neither a log has a step nor a file landed.
    Without TensorFlow, what a script prints is its work."""
    lines = [line for log in logs.values() for line in program_lines(log)]
    trained = any(_counts(line) or _FIGURES.search(line) for line in lines)
    if files or seconds >= SHORT or trained or (lines and not tensorflow):
        return None
    return Doubt(
        task=task,
        kind="nothing",
        text=f"{task} exited with 0 after {max(0.0, seconds):.0f} s, without a step in its log or a"
        " file: if it was to train, it did not",
        hint="look at its log: a script may return at once for a role, an argument or an empty"
        " dataset",
    )
