"""What time it is: by this machine's clock as it was when this process began, by the time passed
since, and by what clouds say.

The only module that reads the wall clock (tests/unit/test_time_is_an_input.py), as a wall clock
can jump: it is set anew, or was wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

OFF = 60.0
"""Seconds from which a wrong clock is said and corrected: a `Date` has whole seconds, and no end
of a machine is more exact than a minute."""

SLOW = 10.0
"""Seconds of a request from which its `Date` says nothing: it may be a retry, or waited for us."""

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds since this machine booted, those in which it was suspended included
    (clock_gettime(2), CLOCK_BOOTTIME).
    """
    return time.clock_gettime(_SINCE_BOOT)


class Moments:
    """Unix times. For many threads."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = since_boot,
    ) -> None:
        self._wall, self._passed = wall, passed
        self._begin = wall() - passed()
        self._listener: Callable[[str], None] | None = None
        self._unsaid = ""
        self._lock = threading.Lock()
        self.offset = 0.0
        """Seconds by which this machine's clock is behind the clouds'; 0 below `OFF`."""

    def now(self) -> float:
        """Unix time. Later changes of this machine's clock do not change it."""
        return self._begin + self._passed() + self.offset

    def files(self) -> float:
        """Unix time as this machine's clock says now, by which its files are stamped."""
        return self._wall()

    def hear(self, date: str | None, *, asked: float, who: str) -> None:
        """Hear the `Date` header (RFC 9110, 6.6.1) of an answer that has just come to a request
        sent at `asked`, by `since_boot`. What is no date is ignored.
        """
        from email.utils import parsedate_to_datetime

        answered = self._passed()
        if date is None or answered - asked > SLOW:
            return
        try:
            theirs = parsedate_to_datetime(date).timestamp() + 0.5
        except (TypeError, ValueError, OverflowError):
            return
        behind = theirs - (self._begin + (asked + answered) / 2)
        with self._lock:
            new = behind if abs(behind) >= OFF else 0.0
            if abs(new - self.offset) < OFF:
                return
            self.offset = new
            self._unsaid = said(new, who) if new else ""
        self._say()

    def tell(self, listener: Callable[[str], None]) -> None:
        """Say to this function that the clock is wrong, once this is known."""
        self._listener = listener
        self._say()

    def _say(self) -> None:
        with self._lock:
            text, listener = self._unsaid, self._listener
            if listener is not None:
                self._unsaid = ""
        if text and listener is not None:
            listener(text)


def said(offset: float, who: str) -> str:
    """`the clock of this machine is 20 h ahead of Azure's: …`."""
    way = "behind" if offset > 0 else "ahead of"
    return (
        f"the clock of this machine is {_amount(abs(offset))} {way} that of {who}: ends are set "
        "and compared by theirs; set the clock right, as the times of files and logs go by it"
    )


def _amount(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if round(seconds / size) >= 2:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


MOMENTS = Moments()
now = MOMENTS.now
files = MOMENTS.files
hear = MOMENTS.hear
