"""A lock between machines: a small file beside a cluster's artifacts, valid for a minute unless its
holder renews it.

A lost lease never ends the work that it protects, but for deletions: before each round of them it
is asked for again if this process may have slept past it, and they stop if another machine has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cloudtrain import awake, fence, moments
from cloudtrain.cloud import is_cloud
from cloudtrain.cluster.ownership import this_machine
from cloudtrain.cluster.session import Handle
from cloudtrain.codec import UNIX_TIME, decode
from cloudtrain.errors import CloudtrainError, LeasedError, NoBucketError
from cloudtrain.owner import login
from cloudtrain.protocols import Console, StoreBackend, Swapped
from cloudtrain.state import command_shown

LASTS = 60.0
"""Seconds that a lease is valid after a renewal, by the store's clock."""
EVERY = 20.0
"""Seconds between two renewals of a lease, and between two attempts to take it."""
FIRST_ANSWER_SECONDS = 15.0
"""Seconds to wait for the store's first answer; the lease may still be taken later."""
FAREWELL = 5.0
"""Seconds to wait at the end for the lease to be released."""


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The holder as stored in the lease. Later versions must be able to read it."""

    owner: str
    machine: str
    boot: str
    """Boot id of the host: a lease with another one may belong to a copy of this machine."""
    host: str
    pid: int
    doing: str
    since: float = field(metadata=UNIX_TIME)
    renewed: int = 0
    lasts: float = LASTS
    """Validity in seconds after each renewal."""

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        where = f"pid {self.pid}, of {self.owner} on {self.host}, since {since}"
        return f"{command_shown(self.doing)} ({where})"

    @property
    def is_here(self) -> bool:
        """True if the lease was taken by this machine. As we hold the cluster's lock, its process
        has ended without releasing it.
        """
        return self.machine == this_machine() and self.boot == boot_id() != ""


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def holding_lease(
    handle: Handle, doing: str, console: Console, *, must: bool = True
) -> Iterator[None]:
    """Hold the lease, for the holder of the cluster's lock on this machine.

    Raises LeasedError if another machine works on the cluster; with `must=False`, takes the lease
    later, once it is free. Leases are used only on a cloud and only if the config names a store. If
    the store does not answer, the command continues without a lease.
    """
    config = handle.config
    if not is_cloud(config.provider) or config.artifacts.store is None:
        yield
        return
    renewer = LeaseRenewer(handle, doing, console)
    renewer.start()
    try:
        renewer.await_first(must=must)
        with fence.confirmed_by(renewer.confirm):
            yield
    finally:
        renewer.end()


class LeaseRenewer(threading.Thread):
    """Takes the lease, renews it, takes it again if it was lost, and releases it."""

    def __init__(self, handle: Handle, doing: str, console: Console) -> None:
        super().__init__(name="lease", daemon=True)
        self._cluster, self._config, self._console = handle, handle.config, console
        where = "any_of" if self._config.candidates else self._config.provider
        self._path = f".leases/{where}/{self._config.name}.json"
        self._me = LeaseHolder(
            owner=login(),
            machine=this_machine(),
            boot=boot_id(),
            host=os.uname().nodename,
            pid=os.getpid(),
            doing=doing,
            since=moments.now(),
        )
        self._version = ""
        self._other: LeaseHolder | None = None
        self._asking = threading.Lock()
        self._gaps = awake.gaps()
        """Until the last renewal."""
        self._tried, self._ending = threading.Event(), threading.Event()
        self._said: set[str] = set()

    def await_first(self, *, must: bool) -> None:
        if not self._tried.wait(FIRST_ANSWER_SECONDS):
            self._say_once(
                "silent", f"the store does not answer: no lease on {self._config.name} yet"
            )
        elif must and self._other is not None:
            raise LeasedError(
                f"{self._config.name} is in use on another machine: {self._other}",
                hint="wait until the command there ends; if that machine has stopped, wait "
                f"{LASTS:.0f} s",
            )

    def confirm(self) -> None:
        """Raise LeasedError if what is deleted next may be another machine's by now."""
        if self._other is None and awake.gaps() == self._gaps:
            return
        name, had = self._config.name, bool(self._version)
        try:
            self._keep(self._cluster.store)
        except CloudtrainError as error:
            if not had:
                return  # there never was one: a store that does not answer stops nothing
            raise LeasedError(
                f"this command stood still, and cannot renew its lease on {name}: {error.message}; "
                "nothing more is deleted, as another machine may be at work on it by now",
                hint=f"run it again once the store of {name} answers",
            ) from error
        if self._other is not None:
            raise LeasedError(
                f"{name} is in use on another machine by now: {self._other}; nothing more is "
                "deleted here",
                hint="wait until the command there ends, then look with `cloudtrain status`",
            )

    def end(self) -> None:
        self._ending.set()
        self.join(FAREWELL)

    def run(self) -> None:
        store: StoreBackend | None = None
        while True:
            try:
                store = self._cluster.store
                self._keep(store)
            except CloudtrainError as error:
                self._explain(error)
            first = not self._tried.is_set()
            self._tried.set()
            if self._other is not None and not first:
                self._say_once(
                    "lost", f"another machine works on it too: {self._other}; continuing"
                )
            if self._ending.wait(EVERY):
                break
        if store is not None and self._version:
            with contextlib.suppress(CloudtrainError):
                store.swap(self._path, None, self._version)

    def _keep(self, store: StoreBackend) -> None:
        """Take or renew the lease; if another machine has it, set `_other` to its holder."""
        with self._asking:
            gaps = awake.gaps()
            self._me = replace(self._me, renewed=self._me.renewed + 1)
            data = json.dumps({"format": 1, **asdict(self._me)}).encode()
            answer = store.swap(self._path, data, self._version)
            if not answer.done and self._may_take(answer):
                answer = store.swap(self._path, data, answer.version)
            self._version = answer.version if answer.done else ""
            self._other = None if answer.done else holder_of(answer)
            self._gaps = gaps

    def _may_take(self, there: Swapped) -> bool:
        """True if the lease is free, expired, from this machine, or our own from a request whose
        answer was lost.
        """
        if not there.version:
            return True
        found = holder_of(there)
        return there.age > min(LASTS, found.lasts) or found.is_here

    def _explain(self, error: CloudtrainError) -> None:
        if isinstance(error, NoBucketError) and self._config.artifacts.create:
            return  # it is about to be created
        self._say_once("none", f"no lease on {self._config.name} in its store: {error.message}")

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._console.say(text)


def holder_of(there: Swapped) -> LeaseHolder:
    """Parse a lease. An unreadable one belongs to another holder until it expires."""
    try:
        return decode(LeaseHolder, json.loads(there.data))
    except ValueError:
        nobody = "unknown"
        return LeaseHolder(
            owner=nobody, machine=nobody, boot="", host=nobody, pid=0, doing="…", since=0.0
        )
