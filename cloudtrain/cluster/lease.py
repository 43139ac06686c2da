"""A lock between machines: a small file beside a cluster's artifacts, valid for a minute unless its
holder renews it.

A lost lease never ends the work that it protects, but for creations and deletions: before each
round of them it is asked for again if this process may have slept past it, and they stop if another
machine has it.

Whoever may write to the store can renew a lease for ever. So `down` may break it, by its ID: the
holder finds its ID among those that were broken, within two renewals, and creates and deletes
nothing more, even if it wakes up when that `down` has ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cloudtrain.cluster.ownership import (
    described,
    is_recorded,
    owner_lines,
    refuse_other_owners,
    this_machine,
)
from cloudtrain.cluster.session import (
    Handle,
    open_provider,
    recorded_config,
    refuse_other_account,
    store_at,
)
from cloudtrain.console.times import clock
from cloudtrain.core import fence, moments
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.codec import UNIX_TIME, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, ConfigError, LeasedError, NoBucketError, if_told
from cloudtrain.core.events import generations
from cloudtrain.core.model import ClusterConfig, Holding, Node, Owner, is_being_created
from cloudtrain.core.owner import login
from cloudtrain.core.protocols import Console, StoreBackend, Swapped
from cloudtrain.state import Records, command_shown
from cloudtrain.state.away_record import away_record

LASTS = 60.0
"""Seconds that a lease is valid after a renewal, by the store's clock."""
EVERY = 20.0
"""Seconds between two renewals of a lease, and between two attempts to take it."""
FIRST_ANSWER_SECONDS = 15.0
"""Seconds to wait for the store's first answer; the lease may still be taken later."""
FAREWELL = 5.0
"""Seconds to wait at the end for the lease to be released."""
LONG = 86400.0
"""Seconds after which a lease that is still renewed is named by `status`, `ls --cloud` and `gc`."""
ANY = "any"
"""Instead of an ID: whatever lease is in the way."""
RACES = 50
"""How often a lease is to be broken whose holder renews it at that moment."""
BROKEN_KEPT = 16
"""IDs of broken leases that are kept for holders that sleep."""
SHOWN = 60
"""Characters of what another machine wrote that are shown."""


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
    broken: tuple[str, ...] = ()
    """IDs of leases that were broken here, the last at the end."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        where = f"pid {self.pid}, of {_shown(self.owner)} on {_shown(self.host)}, since {since}"
        return f"{command_shown(_shown(self.doing))} ({where})"

    @property
    def id(self) -> str:
        """The same over all renewals, and another for each command."""
        words = f"{self.owner} {self.machine} {self.boot} {self.host} {self.pid} {self.since}"
        return hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:8]

    @property
    def is_here(self) -> bool:
        """True if the lease was taken by this machine. As we hold the cluster's lock, its process
        has ended without releasing it."""
        return self.machine == this_machine() and self.boot == boot_id() != ""


def _shown(text: str) -> str:
    """Text that another machine wrote, shortened to one line."""
    words = "".join(c if c.isprintable() else " " for c in text[: 2 * SHOWN])
    return " ".join(words.split())[:SHOWN]


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def holding_cluster(
    handle: Handle, doing: str, console: Console, *, wait: float = 0.0, breaks: str = ""
) -> Iterator[None]:
    """Hold the cluster's lock on this machine, and its lease against others (`holding_lease`)."""
    with (
        handle.records.lock(doing, wait=wait),
        holding_lease(handle, doing, console, breaks=breaks),
    ):
        yield


@contextlib.contextmanager
def holding_lease(
    handle: Handle, doing: str, console: Console, *, must: bool = True, breaks: str = ""
) -> Iterator[None]:
    """Hold the lease, for the holder of the cluster's lock on this machine. `breaks`: ID of the
    lease to take from its holder, who is given time to notice before anything is done.

    Raises LeasedError if another machine works on the cluster; with `must=False`, takes the lease
    later, once it is free. Leases are used only on a cloud and only if the config names a store. If
    the store does not answer, the command continues without a lease."""
    config = handle.config
    if not is_cloud(config.provider) or config.artifacts.store is None:
        yield
        return
    renewer = LeaseRenewer(handle, doing, console, breaks)
    renewer.start()
    try:
        renewer.await_first(must=must)
        with fence.confirmed_by(renewer.confirm):
            yield
    finally:
        renewer.end()


class LeaseRenewer(threading.Thread):
    """Takes the lease, renews it, takes it again if it was lost, and releases it."""

    def __init__(self, handle: Handle, doing: str, console: Console, breaks: str = "") -> None:
        super().__init__(name="lease", daemon=True)
        self._breaks, self._broke, self._is_broken = breaks, False, False
        self._cluster, self._config, self._console = handle, handle.config, console
        self._path = path_of(self._config)
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
        self._gaps = moments.gaps()
        """Until the last renewal."""
        self._tried, self._ending = threading.Event(), threading.Event()
        self._said: set[str] = set()

    def await_first(self, *, must: bool) -> None:
        if not self._tried.wait(FIRST_ANSWER_SECONDS):
            self._say_once(
                "silent", f"the store does not answer: no lease on {self._config.name} yet"
            )
        elif must and self._other is not None and not self._broke:
            name, id = self._config.name, self._other.id
            raise LeasedError(
                f"{name} is in use on another machine: {self._other}",
                hint="wait until the command there ends; if that machine has stopped, wait "
                f"{LASTS:.0f} s; if it neither ends nor stops, `cloudtrain down {name} "
                f"--break-lease {id}` goes on without it",
                lease=id,
            )
        elif self._broke:
            self._console.say(
                f"broke the lease of another machine: waiting {2 * EVERY:.0f} s, in which its "
                "holder notices and creates and deletes nothing more"
            )
            self._ending.wait(2 * EVERY)

    def confirm(self) -> None:
        """Raise LeasedError if what is created or deleted next may be another machine's by now."""
        if self._broke:
            return  # the user's decision: nobody who writes to the store can stop it again
        if self._is_broken:
            raise self._broken()
        if self._other is None and moments.gaps() == self._gaps:
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
        if self._is_broken:
            raise self._broken()
        if self._other is not None:
            raise LeasedError(
                f"{name} is in use on another machine by now: {self._other}; nothing more is "
                "deleted here",
                hint="wait until the command there ends, then look with `cloudtrain status`",
            )

    def _broken(self) -> LeasedError:
        return LeasedError(
            f"the lease of this command on {self._config.name} was broken by `cloudtrain down "
            "--break-lease`: nothing more is created or deleted here",
            hint=f"look with `cloudtrain status {self._config.name}`; `cloudtrain down "
            f"{self._config.name} --break-lease any` ends it from here",
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
            if self._is_broken:
                self._say_once("broken", self._broken().message)
                return
            if self._other is not None and not first and not self._broke:
                self._say_once(
                    "lost", f"another machine works on it too: {self._other}; continuing"
                )
            if self._ending.wait(EVERY):
                break
        if store is not None and self._version:
            with contextlib.suppress(CloudtrainError):
                # What stays there: nothing, or an ended lease with the IDs of broken ones.
                over = _as_json(replace(self._me, lasts=0.0)) if self._me.broken else None
                store.swap(self._path, over, self._version)

    def _keep(self, store: StoreBackend) -> None:
        """Take or renew the lease; if another machine has it, set `_other` to its holder."""
        with self._asking:
            gaps = moments.gaps()
            self._me = replace(self._me, renewed=self._me.renewed + 1)
            answer = store.swap(self._path, _as_json(self._me), self._version)
            if not (answer.done or self._breaks) and self._me.id in holder_of(answer).broken:
                self._is_broken, self._version = True, ""
                return
            for _ in range(RACES if self._breaks else 1):
                if answer.done:
                    break
                there = holder_of(answer)
                to_break = self._breaks in (there.id, ANY) and not is_over(answer)
                # Ours if it is from this machine, also if the answer to a request was lost.
                if not (is_over(answer) or there.is_here or to_break):
                    break
                if to_break:
                    self._broke = True
                    there = replace(there, broken=(*there.broken, there.id))
                kept = dict.fromkeys((*there.broken, *self._me.broken))
                self._me = replace(self._me, broken=tuple(kept)[-BROKEN_KEPT:])
                answer = store.swap(self._path, _as_json(self._me), answer.version)
            self._version = answer.version if answer.done else ""
            self._other = None if answer.done else holder_of(answer)
            self._gaps = gaps

    def _explain(self, error: CloudtrainError) -> None:
        if isinstance(error, NoBucketError) and self._config.artifacts.create:
            return  # it is about to be created
        self._say_once("none", f"no lease on {self._config.name} in its store: {error.message}")

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._console.say(text)


def is_over(there: Swapped) -> bool:
    """True without a lease, or with one that was not renewed. One of the future, beyond the
    difference of two clocks, was not renewed by the store's clock either."""
    lasts = holder_of(there).lasts
    lasts = min(LASTS, lasts) if lasts >= 0.0 else 0.0  # also for NaN
    return not there.version or there.age > lasts or there.age < -LASTS


def _as_json(holder: LeaseHolder) -> bytes:
    return json.dumps({"format": 1, **asdict(holder)}).encode()


def held_long(config: ClusterConfig) -> str:
    """Line on a lease that is held for over a day or is unreadable; "" if there is none to name."""
    if not is_cloud(config.provider) or config.artifacts.store is None:
        return ""
    store = config.artifacts.store
    there = if_told(lambda: store_at(store, config).peek(path_of(config)), None)
    if there is None:
        return ""
    holder = holder_of(there)
    age = moments.now() - holder.since
    if is_over(there) or age < LONG:
        return ""
    since = f"for {age / LONG:.0f} days" if holder.since else "by a file that cannot be read"
    return (
        f"its lease is held {since}: {holder}: if nothing is at work there, `cloudtrain down "
        f"{config.name} --break-lease {holder.id}` goes on without it"
    )


def path_of(config: ClusterConfig) -> str:
    where = "any_of" if config.candidates else config.provider
    return f".leases/{where}/{config.name}.json"


def holder_of(there: Swapped) -> LeaseHolder:
    """Parse a lease. An unreadable one belongs to another holder until it expires."""
    try:
        return decode(LeaseHolder, json.loads(there.data))
    except (ValueError, RecursionError):
        nobody = "unknown"
        return LeaseHolder(
            owner=nobody, machine=nobody, boot="", host=nobody, pid=0, doing="…", since=0.0
        )


# ── what a command may be creating ─────────────────────────────────────────────
# Labels say until when a command may be doing so. Nobody is at work on what this machine's commands
# created: each holds the cluster's lock, which whoever deletes takes; unless a desk that was sent
# from here created it. Nobody else is asked: their owner, once named, is taken at their word.


PROGRAM = "program"
"""Folder in the desk's record with this program, as it is delivered."""


def may_be_creating(records: Records, held: Holding) -> bool:
    """True if a command may be creating what is held: one here, its desk, or another machine's."""
    if not is_being_created(held.creating_until, moments.now()):
        return False
    if not held.owners or any(owner.machine != this_machine() for owner in held.owners):
        return True
    has_desk = is_recorded_desk(records.name) and Records(f"{records.name}-desk").is_open()
    return has_desk or records.holder() is not None


def refuse_being_created(
    records: Records,
    nodes: Sequence[Node],
    held: Sequence[Holding],
    owner: str | None,
    console: Console,
    *,
    discard: bool,
    desk_ended: bool,
) -> None:
    """Raise LeasedError if another machine is creating these nodes, or without nodes what is
    `held`, or has created what is to be discarded anew since this one did, unless its `owner` is
    named; else warn that it may be at work on the nodes. Its lease is in a store that may not be
    known here. `desk_ended`: this command has deleted what was creating them."""
    ours = set(generations(records.events()))
    found = [(node.owner, {node.generation}, node.creating_until) for node in nodes]
    found += [
        (one, set(h.generations), h.creating_until) for h in held for one in h.owners or (Owner(),)
    ]
    others = [one for one in found if not one[1] <= ours and one[0].machine != this_machine()]
    if not others:
        return
    owners = {described(one): one for one, _, _ in others}
    where, who = ", ".join(sorted(owners)), ", ".join(sorted({o.name for o in owners.values()}))
    now = moments.now()
    until = max((t for _, _, t in others if t is not None and is_being_created(t, now)), default=0)
    force = f"add `--owner {who or 'WHO'}{' --discard' if nodes else ''}`"
    if discard and owner is None and not is_recorded(records, nodes):
        raise LeasedError(
            f"{records.name} is another cluster by now than the one on record here: owned by "
            f"{where}",
            hint=f"end it there; {force} to delete it all the same",
        )
    if until and owner is None and not desk_ended:
        raise LeasedError(
            f"{records.name} is being created until {clock(until)} at the latest: owned by {where}",
            hint=f"end it there, or wait until then; if nobody creates it any more, {force} to "
            "delete it now",
        )
    if any(node.generation for node in nodes):
        console.warn(
            f"{records.name} was not created from here (owned by {where}): a command there may be "
            "at work on it"
        )


def is_recorded_desk(cluster: str) -> bool:
    """True if the records here are those of a desk that was created here for this cluster."""
    own = Records(f"{cluster}-desk")
    try:
        record, config = away_record(Records(cluster)), recorded_config(own)
    except ConfigError:
        return False
    delivers = config.code.path == str(own.folder / PROGRAM)
    return record is not None and record.node == own.name and delivers


def describe_owner(name: str, config: ClusterConfig | None, *, owner: str | None) -> list[str]:
    """Lines on the owner of a cluster whose keys are not here, by its provider: the last check
    before the cluster is deleted. Raises UsageError if the cluster belongs to another owner than
    us, or than `owner`."""
    records = Records(name)
    config = config or recorded_config(records)
    refuse_other_account(config, records)
    provider = open_provider(config)
    nodes = provider.find(name)
    refuse_other_owners(records, provider, nodes, owner=owner)
    return owner_lines(nodes) if nodes else []
