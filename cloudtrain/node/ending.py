"""Knows when the node ends, and how many bytes can be uploaded until then."""

import threading

LIMIT = (4 << 30) - (64 << 20)
"""Maximum bytes of files in one archive; a request may store 4 GiB."""

FIRST = 64 << 20
"""Maximum bytes of the first archive near the end while no upload has been measured."""

LEAST = 8 << 20
"""Maximum bytes of an archive, however slow the uploads."""

MEASURABLE = 1 << 20
"""Bytes from which an upload is a measure of the rate."""

SHARE = 4
"""An archive takes at most this part of the remaining time, as the node's end may interrupt it."""

MARGIN = 30.0
"""Seconds that are kept in addition to twice those that uploads took so far."""

EARLIEST = 3600.0
"""Maximum seconds before the node's end at which uploads begin because they are slow."""

SAVING = 30.0
"""Maximum seconds for a task to save its checkpoint after SIGTERM, before that is uploaded."""


class Ending:
    """Unix times: `at` of the node's end, `last` of the first upload before it, `stop` of the
    SIGTERM to its task. `word` says what was announced: `preempted`, `shutdown`, `lifetime`."""

    def __init__(self, at: float, last: float, stop: float) -> None:
        self.at, self.last, self.stop = at, last, stop
        self.latest = last, stop
        self.word = ""
        self.save_until = 0.0
        self.rate = 0.0
        self.lock = threading.Lock()

    def announce(self, word: str, now: float, seconds: float) -> bool:
        """Note that the node ends in `seconds`; returns False if an end was announced before."""
        with self.lock:
            self.at = min(self.at, now + seconds)
            if self.word:
                return False
            self.save_until = now + min(SAVING, max(0.0, self.at - now) / 3)
            self.word = word
            return True

    def is_near(self, now: float) -> bool:
        return self.word != "" or now >= self.last

    def measure(self, size: int, seconds: float) -> None:
        if size >= MEASURABLE:
            self.rate = size / max(seconds, 1e-3)

    def is_in_reach(self, now: float) -> bool:
        """True if slow uploads would have to begin about now, and their rate is known."""
        return self.rate > 0 and not self.word and now >= self.at - EARLIEST

    def plan(self, size: int, checkpoint: int) -> None:
        """Begin early enough for `size` bytes, and the last checkpoint after the task has ended."""
        self.last = min(self.latest[0], self.at - self.seconds_for(size))
        self.stop = min(self.latest[1], self.at - self.seconds_for(checkpoint) / 2)

    def seconds_for(self, size: int) -> float:
        return min(EARLIEST, 2 * size / self.rate + MARGIN) if self.rate else MARGIN

    def room(self, now: float) -> int:
        """Maximum bytes of files in an archive that is begun now."""
        if not self.is_near(now):
            return LIMIT
        if not self.rate:
            return FIRST
        return int(min(LIMIT, max(LEAST, self.rate * max(0.0, self.at - now) / SHARE)))
