"""Keeps what a cloud has said of this machine's clock, for the commands after the one that heard
it: the times of one record agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from cloudtrain.core.codec import decode
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.moments import MOMENTS, OFF
from cloudtrain.state.files import write_whole
from cloudtrain.state.folder import home


@dataclass(frozen=True, kw_only=True)
class HeardOfClock:
    """`offset` holds as long as the machine has booted at `began`, by its clock: until it boots
    anew, or its clock is set."""

    began: float
    offset: float


@contextmanager
def clock_corrected(say: Callable[[str], None]) -> Iterator[None]:
    """Correct this process's moments by what an earlier one has heard; say and keep what this one
    hears."""
    with suppress(OSError, ValueError):
        before = decode(HeardOfClock, json.loads(_file().read_bytes()))
        if abs(before.began - MOMENTS.began) < OFF / 2:
            MOMENTS.offset = before.offset
    MOMENTS.changed = _keep
    with MOMENTS.said_to(say):
        yield


def _keep() -> None:
    heard = HeardOfClock(began=MOMENTS.began, offset=MOMENTS.offset)
    with suppress(CloudtrainError):  # the next command hears it itself
        write_whole(_file(), json.dumps(asdict(heard)).encode())


def _file() -> Path:
    return home() / "clock.json"
