"""Progress and loss of a training script, as its log shows them; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["step", "epoch"]

_STEP = re.compile(r"\b(?:global[_ ])?steps?\b\s*[:=#]?\s*(\d+)", re.IGNORECASE)
"""`step 120`, `Step: 120`, `global_step = 120`; not `10 steps`."""
_EPOCH = re.compile(r"\bepoch\b\s*[:=#]?\s*(\d+)", re.IGNORECASE)
"""`Epoch 3/10` of Keras, `epoch: 3` of custom loops."""
_LOSS = re.compile(
    r"(?<![\w])(?:final[_ ]|train[_ ])?loss\b\s*[:=]?\s*(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I
)
"""`loss: 0.1234` of Keras' bar and of most loops; not `val_loss`."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a task's log, and when it was seen."""

    task: str
    seen: float
    """Unix time."""
    text: str


def unit_of(lines: Iterable[Line]) -> Unit | None:
    """Unit in which the script counts: steps, if its log has any; None if it counts nothing."""
    found: Unit | None = None
    for line in lines:
        if _STEP.search(line.text):
            return "step"
        if _EPOCH.search(line.text):
            found = "epoch"
    return found


def training(lines: Iterable[Line], unit: Unit | None) -> list[Line]:
    """The lines with a number of this unit; all lines if the script has none."""
    return [line for line in lines if unit is None or counts([line], unit)]


def counts(lines: Iterable[Line], unit: Unit) -> list[int]:
    """Every number of a step or an epoch, in the order of the lines."""
    pattern = _STEP if unit == "step" else _EPOCH
    return [int(found[1]) for line in lines if (found := pattern.search(line.text))]


def span_of(lines: Iterable[Line], unit: Unit | None) -> tuple[int, int] | None:
    """First and highest number of an undisturbed run; None if it counts nothing, or up to one."""
    numbers = counts(lines, unit) if unit else []
    return (numbers[0], max(numbers)) if numbers and numbers[0] < max(numbers) else None


def has_reached(
    lines: Iterable[Line], unit: Unit | None, span: tuple[int, int] | None, share: float
) -> bool:
    """True if a run has come to this share of what the undisturbed run counted."""
    if unit is None or span is None:
        return False
    first, last = span
    return any(number >= first + share * (last - first) for number in counts(lines, unit))


def last_loss(lines: Iterable[Line]) -> float | None:
    """The last loss that was printed."""
    last = None
    for line in lines:
        found = _LOSS.findall(line.text)
        if found:
            last = float(found[-1])
    return last


def repeated_of(attempts: Iterable[list[int]]) -> int:
    """Number of steps or epochs that attempts began after an earlier attempt had begun them, by the
    numbers of each.
    """
    found = reached = 0
    for numbers in attempts:
        if numbers:
            found += max(0, min(reached, max(numbers)) - numbers[0] + 1)
            reached = max(reached, *numbers)
    return found


def repeated(before: Iterable[Line], after: Iterable[Line], unit: Unit) -> int | None:
    """Steps or epochs that were begun before a fault and again after it; None if there is no number
    on both sides.
    """
    seen, again = counts(before, unit), counts(after, unit)
    return max(0, max(seen) - again[0] + 1) if seen and again else None
