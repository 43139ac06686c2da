"""Runs beside a task and uploads what no client has landed.

While no client is connected, the agent uploads archives (archiver.py): before the node's end, at a
preemption notice, at the machine's shutdown, at the task's end, and at intervals. It reads its
order from stdin; the presigned uploads in the order stay in memory and are never logged.
"""

import contextlib
import json
import os
import signal
import threading
import time
import traceback
from typing import Any

from cloudtrain.node import archiver, client, formats, listing, metadata, own_end, web

RESERVE = 6
"""Number of archives reserved for the node's end."""

LEFT = 100
"""Maximum number of folders named that do not fit into the last archive."""

WAITING = 60.0
"""Seconds between two looks while all that is left is beyond the limit: the end is minutes away."""

REPLAN = 30.0
"""Seconds between two estimates of what is left to upload, in the node's last hour."""


def main() -> None:
    """Kill an earlier agent, confirm the start, and continue without the client."""
    order = client.order()
    os.umask(0o077)
    home = os.getcwdb()
    os.chdir(client.plain(order["folder"]))  # `down` on machines of `hosts` finds it by this
    order["alone"], word = own_end.seen_from_here(order.get("alone"))
    client.detach(formats.AGENT_LOCK.encode(), formats.AGENT_LOG, word)
    try:
        Agent(order, home).keep()
    except Exception as error:  # noqa: BLE001 - without its text, which may contain a URL
        traceback.print_tb(error.__traceback__)
        client.say(type(error).__name__)


class Agent:
    """The order has patterns and checkpoint as in artifacts/landing.py; tickets, each for one
    archive; Unix times `until` (end of the tickets), `end` (of the node), `last` (last sync) and
    `stop` (SIGTERM to the task), which may be infinite; times in seconds."""

    def __init__(self, order: "dict[str, Any]", home: bytes) -> None:
        self.order = order
        self.attempt = f"attempt-{order['attempt']}"
        self.patterns = [str(each) for each in order["patterns"]]
        self.home = home if order["home"] else None
        self.folder = str(order["checkpoint"]) if order["checkpoint"] else None
        self.tickets = order["tickets"]
        self.every, self.until = float(order["every"]), float(order["until"])
        self.ending = archiver.Ending(*(order[k] for k in ("end", "last", "stop")))
        self.replan_at = 0.0
        self.shutting_down = threading.Event()
        self.began = self.sent_at = time.time()
        self.next = 0.0
        self.failures = 0
        self.saw_end = self.is_over = False
        self.has_more = False
        self.lost_at = 0.0
        self.landed = {}  # type: dict[str, Any]
        self.landed_at = 0.0
        self.kept = {}  # type: dict[str, str]
        self.unread = []  # type: list[str]
        self.own_end = own_end.OwnEnd(order.get("alone"), self)

    def keep(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.shutting_down.set())
        threading.Thread(target=self.await_shutdown, daemon=True).start()
        if self.order["metadata"]:
            threading.Thread(target=self.listen, daemon=True).start()
        while self.own_end.goes_on(self.is_busy()):
            if self.is_busy() and self.is_due(time.time()):
                self.send()
            time.sleep(self.order["tick"])

    def is_busy(self) -> bool:
        """True while it may still have to upload something."""
        return bool(self.tickets) and not self.is_over and time.time() < self.until

    def is_due(self, now: float) -> bool:
        self.look()
        ended = self.ended_at()
        if ended and not self.saw_end:
            self.saw_end, self.next = True, 0.0
        if ended and self.landed.get("final"):
            self.is_over = True
        self.foresee(now)
        if self.is_over or now < self.next:
            return False
        if self.ending.is_near(now):
            return True
        quiet = now - max(self.began, self.landed_at)
        if ended:
            return min(quiet, now - ended) >= self.order["patience"] and not is_landing()
        spare = len(self.tickets) - RESERVE
        share = (min(self.until, self.ending.last) - now) / max(1, spare)
        is_time = now - self.sent_at >= max(self.every, share)
        return spare > 0 and self.every > 0 and quiet > 2 * self.every and is_time

    def foresee(self, now: float) -> None:
        """Begin in time before the end of the lifetime, then end the task, so that it can save."""
        if now >= self.replan_at and self.ending.is_in_reach(now):
            self.replan_at = now + REPLAN
            due = self.due(self.everything())
            checkpoint = sum(each.size for each in due if self.is_checkpoint(each))
            self.ending.plan(sum(each.size for each in due), checkpoint)
        if now >= self.ending.stop and not self.ending.word:
            self.announce("lifetime", self.ending.at - now)

    def is_saving(self, now: float) -> bool:
        """True while the task may still be saving a checkpoint after SIGTERM."""
        return self.ending.word != "" and now < self.ending.save_until and not self.ended_at()

    def send(self) -> None:
        """Upload one archive; the next one, with what did not fit, follows at once."""
        found = self.listed()
        chosen, more = self.chosen(found)
        now = time.time()
        if not chosen:
            self.is_over = self.saw_end and not self.has_more
            pause = WAITING if self.saw_end and self.has_more else self.rest(now)
            self.next = 0.0 if self.is_saving(now) else now + pause
            return
        ticket = self.tickets.pop(0)
        left = self.left(found, chosen)
        archive = archiver.Archive(chosen, self.folder, self.together(found), self.checkpoint, left)
        self.sent_at = now
        try:
            archiver.store(ticket["requests"][0], int(ticket["piece"]), archive)
        except (web.Refused, web.Transient, web.Unreachable, OSError) as error:
            if not ticket["piece"]:  # a resumable session may have part of this archive
                self.tickets.insert(0, ticket)
            self.failures += 1
            self.next = time.time() + min(2.0**self.failures * self.order["tick"], 60.0)
            client.say(f"archive {ticket['n']} not uploaded: {web.reason(error)}")
            return
        self.failures = 0
        self.ending.measure(archive.size, time.time() - now)
        whole = archive.whole()
        if not archive.checkpoint_is_whole:
            whole = [each for each in whole if not self.is_checkpoint(each)]
        self.kept.update((each.path, each.stamp) for each in whole)
        client.say(
            f"archive {ticket['n']}: {len(whole)} of {len(chosen)} files, unchanged while read"
        )
        is_last = self.saw_end and len(whole) == len(chosen)
        self.next = 0.0 if more or is_last else time.time() + self.rest(now)

    def rest(self, now: float) -> float:
        """The seconds to wait between archives: the shortest interval near the end,
        otherwise the remaining time divided among the remaining tickets."""
        shortest = float(self.order["rest"])
        if self.ending.word or not self.ending.is_near(now):
            return shortest
        return max(shortest, (self.until - now) / max(1, len(self.tickets)))

    def listed(self) -> "dict[str, listing.File]":
        """List the files of the task. Of those that are not named, as many as fit into the limit;
        all of them before the node's end, as nobody else will land them."""
        found, limit = self.everything(), self.order["limit"]
        self.has_more = False
        if limit is None or self.ending.is_near(time.time()):
            return found
        fits = listing.fitting(found.values(), int(limit))
        fitting = {path: each for path, each in found.items() if each.named or each.path in fits}
        self.has_more = len(fitting) < len(found)
        return fitting

    def everything(self) -> "dict[str, listing.File]":
        work, is_auto = formats.WORK.encode(), self.order["limit"] is not None
        self.unread = []
        return archiver.listed(work, self.patterns, self.home, is_auto, self.unread)

    def due(self, found: "dict[str, listing.File]") -> "list[listing.File]":
        """The files that are not stored yet: those that are named, the smallest first; then
        small and new ones before large and old ones."""

        def order(item: "tuple[str, listing.File]") -> "tuple[object, ...]":
            each = item[1]
            if each.named:
                return (0, each.size, 0)
            return (1, each.size.bit_length(), -listing.times(each.stamp)[0])

        landed = self.landed.get("files") or {}
        return [
            each
            for path, each in sorted(found.items(), key=order)
            if each.stamp not in (landed.get(path), self.kept.get(each.path))
        ]

    def chosen(self, found: "dict[str, listing.File]") -> "tuple[list[listing.File], bool]":
        """Choose the files to archive: the log, the checkpoint, then small files before large ones,
        as far as they fit. A checkpoint that the task may be saving comes later."""
        now = time.time()
        due = self.due(found)
        units = [[each for each in due if self.is_checkpoint(each)]]
        if self.is_saving(now):
            units = []
        units += [[each] for each in due if not self.is_checkpoint(each)]
        chosen = []  # type: list[listing.File]
        room, more = self.ending.room(now), False
        for unit in units:
            size = sum(each.size for each in unit)
            if size > archiver.LIMIT:
                for each in unit:
                    if self.kept.get(each.path) is None:
                        client.say(f"too large for an archive, skipped: {each.path!a}")
                        self.kept[each.path] = ""
            elif not chosen or size <= room:
                chosen += unit
                room -= size
            else:
                more = True
        for log in archiver.logs_of(self.attempt):
            is_new = log.size <= archiver.LIMIT // 64 and self.kept.get(log.path) != log.stamp
            if is_new and (chosen or self.saw_end or not log.path.endswith(formats.METRICS)):
                chosen.insert(0, log)
        return chosen, more

    def left(
        self, found: "dict[str, listing.File]", chosen: "list[listing.File]"
    ) -> "dict[str, int]":
        """Bytes by folder that are lost if no later archive has them, once an end is announced."""
        sizes = {}  # type: dict[str, int]
        for each in self.due(found) if self.ending.word else ():
            if each not in chosen:
                folder = listing.top_of(each.path[len(formats.ARCHIVED_WORK) :])
                sizes[folder] = sizes.get(folder, 0) + each.size
        return dict(sorted(sizes.items(), key=lambda item: -item[1])[:LEFT])

    def is_checkpoint(self, each: "listing.File") -> bool:
        inside = f"{formats.ARCHIVED_WORK}{self.folder}/"
        return self.folder is not None and each.path.startswith(inside)

    def together(self, found: "dict[str, listing.File]") -> "dict[str, str]":
        mine = sorted(path for path, each in found.items() if self.is_checkpoint(each))
        return {path: found[path].stamp for path in mine}

    def checkpoint(self) -> "dict[str, str]":
        if self.folder is None:
            return {}
        below = listing.literal(self.folder) + "/**"
        return self.together(archiver.listed(formats.WORK.encode(), [below]))

    def look(self) -> None:
        """Read the client's report about its last landing: `files` (stamps by path), `final`."""
        try:
            with open(formats.LANDED, "rb") as file:
                told_at = os.fstat(file.fileno()).st_mtime
                if told_at != self.landed_at:
                    self.landed, self.landed_at = json.loads(file.read().decode()), told_at
        except (OSError, ValueError):
            return

    def ended_at(self) -> float:
        """Unix time of the task's end; 0 while it runs. For its records see watcher.py."""
        with contextlib.suppress(OSError):
            return os.lstat(self.attempt + "/exit").st_mtime
        record = self.record()
        if record and not (is_alive(*record[:2]) or is_alive(*record[3:])):
            self.lost_at = self.lost_at or time.time()
            return self.lost_at
        return 0.0

    def record(self) -> "list[str]":
        """Record of the task: process, its start, boot; watcher, its start."""
        try:
            parts = os.readlink(self.attempt + "/task").split(":")
        except OSError:
            return []
        return parts if len(parts) == 5 else []

    # ── What the machine's own end asks (own_end.py) ──

    @property
    def word(self) -> str:
        """The notice that announced the node's end; "" if it was not."""
        return self.ending.word

    def left_to_land(self) -> str:
        """Files that neither a client nor an archive has, once an upload was tried; "" for none."""
        while True:
            self.look()
            left = self.due(self.everything())
            if self.unread:
                return self.unread[0]
            logs = [] if self.landed.get("final") else archiver.logs_of(self.attempt)
            left += [each for each in logs if self.kept.get(each.path) != each.stamp]
            count = len(self.tickets)
            if left and count and time.time() < self.until:
                self.saw_end = True
                self.send()
            if not left or len(self.tickets) == count or self.failures:  # the rest is for later
                return f"{left[0].path!a} ({len(left)} files)" if left else ""

    def held(self) -> "dict[str, str]":
        """The stamp of each file of the task, by its path."""
        return {path: each.stamp for path, each in self.everything().items()}

    def left_out(self) -> "dict[str, int]":
        """Bytes by folder of what the task made or changed and no pattern names."""
        sizes = {}  # type: dict[str, int]
        if self.order["limit"] is None:
            work = formats.WORK.encode()
            for each in listing.Listing(work, self.patterns, self.home, restored=False).changed():
                folder = listing.top_of(each.path)
                sizes[folder] = sizes.get(folder, 0) + each.size
        return dict(sorted(sizes.items(), key=lambda item: -item[1])[:LEFT])

    def exit_code(self) -> "str | None":
        """The task's exit code, as the shell reports it; None if it has no record."""
        try:
            return os.readlink(self.attempt + "/exit")
        except OSError:
            return None

    def end_task(self, kills: bool) -> None:
        record = self.record()
        if record and is_alive(*record[:2]):
            with contextlib.suppress(OSError):
                os.killpg(int(record[0]), signal.SIGKILL if kills else signal.SIGTERM)

    def listen(self) -> None:
        """Wait for the cloud's preemption notice."""
        how = self.order["metadata"]
        while not metadata.preempted(how, how["node"]):
            time.sleep(self.order["poll"])
        self.announce("preempted", how["seconds"])

    def await_shutdown(self) -> None:
        """Wait for SIGTERM, which systemd sends to all processes when the machine shuts down.

        They run until TimeoutStopSec (90 s) has passed or the cloud cuts the power, and with a
        network (suspected: sessions end before network.target does). The seconds are documented:
        https://www.freedesktop.org/software/systemd/man/latest/systemd-system.conf.html
        """
        self.shutting_down.wait()
        self.announce("shutdown", self.order["shutdown"])

    def announce(self, word: str, seconds: float) -> None:
        """End the task, as the node ends in `seconds`. It gets the signal of the machine's own
        shutdown, only earlier: a program that saves at SIGTERM has all these seconds for it."""
        now = time.time()
        if not self.ending.announce(word, now, seconds):
            return
        with contextlib.suppress(OSError), open(f"{self.attempt}/{formats.NOTICE}", "w") as file:
            file.write(f"{now:.0f}" + ("" if word == "preempted" else f" {word}") + "\n")
        client.say(f"this node ends in {max(0.0, seconds):.0f} s: {word}")
        self.next = 0.0
        self.end_task(kills=False)


def is_alive(pid: str, start: str) -> bool:
    """True if the process with this start time is alive and not a zombie (see proc(5))."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            facts = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return facts[0] not in "ZX" and facts[19] == start


def is_landing() -> bool:
    """True if a client is uploading files from this node now."""
    try:
        with open(formats.UPLOAD_LOCK) as file:
            return os.path.samefile(f"/proc/{int(file.read())}/cwd", formats.WORK)
    except (OSError, ValueError):
        return False
