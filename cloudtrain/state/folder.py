"""A cluster's folder: its resolved config, its event log, its runs and their logs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.core import metrics, moments
from cloudtrain.core.codec import decode
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.paths import some
from cloudtrain.core.retry import CLOCK, LOCK_HANDED_OVER, Clock
from cloudtrain.core.run_record import Run, run_to_json
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.state.files import (
    NO_FOLDER,
    DiskFull,
    append_line,
    make_folder,
    named_faults,
    write_whole,
)
from cloudtrain.state.lock import (
    ATTEND,
    LockHolder,
    UnlockedUse,
    begin_session,
    end_session,
    holder,
    last_used,
    living_uses,
    locked,
)

if TYPE_CHECKING:
    from cloudtrain.core.events import Event, Line

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
NAMED = 5
"""Clusters that an error lists."""
ENDED = frozenset({"succeeded", "failed", "stopped"})
AWAY = "away.json"
"""The record of `cloudtrain run --away`, of cloudtrain.state.away_record."""
AWAY_SEEN = "away_seen"
"""The last report of a desk that was read here: the desk's id, and the report's number."""
ORDER_KEY = "order_key.pem"
"""Private half of the key that signs orders to the desk."""


def home() -> Path:
    """`$CLOUDTRAIN_HOME`, or this user's folder for state."""
    chosen = os.environ.get("CLOUDTRAIN_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_state_dir

    return Path(user_state_dir("cloudtrain"))


def known_clusters() -> tuple[str, ...]:
    try:
        with os.scandir(home() / "clusters") as entries:
            names = [e.name for e in entries if CLUSTER_NAME.match(e.name) and e.is_dir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", hint=NO_FOLDER) from error
    return tuple(sorted(names))


def without_desks(names: Sequence[str]) -> tuple[str, ...]:
    """The clusters that a user has named: each desk's own cluster belongs to one of them."""
    desks = set()
    for name in names:
        with suppress(OSError, ValueError, LookupError, TypeError):
            desks.add(json.loads((home() / "clusters" / name / AWAY).read_bytes())["node"])
    return tuple(name for name in names if name not in desks)


def resolve(name: str | None) -> str:
    """Resolve the cluster's name: `name`, or the only cluster known here. Raises UsageError.
    Destroyed clusters count only by name, or if there is no other."""
    names = known_clusters()
    if name in names:
        return name
    if name is not None:
        raise UsageError(f"no cluster {name!r} is known here", hint=_nearest(name, names))
    names = without_desks(names)
    names = tuple(name for name in names if Records(name).is_open()) or names
    if not names:
        raise UsageError("no cluster is known here", hint="run `cloudtrain up FILE` to create one")
    if len(names) > 1:
        listed = _listed(names)
        raise UsageError(f"{len(names)} clusters are known here: {listed}", hint="name one of them")
    return names[0]


class Records:
    """The folder of one cluster. Reading needs no lock; a command that changes it takes `lock`."""

    def __init__(self, name: str) -> None:
        if not CLUSTER_NAME.match(name):
            raise UsageError(
                f"{name!r} is not a valid cluster name",
                hint="use a lowercase letter, then up to 29 lowercase letters, digits or dashes",
            )
        self.name = name
        self.folder = home() / "clusters" / name
        self._events = self.folder / "events.jsonl"
        self._runs = self.folder / "runs"
        self._closed = self.folder / "closed"
        self._uses = self.folder / "uses"
        self._lock_path = self.folder.with_name(f"{name}.lock")
        self._idle_lock = self.folder.with_name(f"{name}.idle.lock")
        self._stops: set[str] = set()
        self.goes_on_without_room = False
        """True if records that do not fit on the disk are skipped (`down`) instead of an error."""
        self.left_out = False

    @contextmanager
    def _as_it_can(self) -> Iterator[None]:
        try:
            yield
        except DiskFull:
            if not self.goes_on_without_room:
                raise
            self.left_out = True

    def create(self) -> None:
        """Create the folder (mode 0700), or reopen a closed one with its content."""
        from cloudtrain.core.events import ClusterGone  # 30 classes that `status` does not need

        make_folder(self.folder)
        if not self.is_open():
            self.journal(ClusterGone())
        with named_faults(self._closed):
            self._closed.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the record of a destroyed cluster: deletes keys, keeps config, events and runs."""
        import shutil  # 5 ms that `status` need not wait for

        with named_faults(self.folder):
            shutil.rmtree(self.folder / "host_keys", ignore_errors=True)
            for name in ("key", "key.pub", "known_hosts", "ssh_config", "end_key", ORDER_KEY):
                (self.folder / name).unlink(missing_ok=True)
        with self._as_it_can():
            make_folder(self.folder)
            write_whole(self._closed, b"")

    def remove(self) -> None:
        import shutil

        hidden = self.folder.with_name(f".forgotten-{self.name}")
        with named_faults(self.folder):
            shutil.rmtree(hidden, ignore_errors=True)  # left by an interrupted removal
            self.folder.rename(hidden)
            shutil.rmtree(hidden)

    def has_keys(self) -> bool:
        return (self.folder / "key").exists()

    def is_open(self) -> bool:
        """True if the cluster was created and not yet destroyed, as far as this machine knows."""
        return not self._closed.exists()

    def is_away(self) -> bool:
        """True if a desk attends to it, or did until the end: this machine has no runs of it."""
        return (self.folder / AWAY).exists()

    def end_away(self) -> None:
        """Record that the cluster is attended to from here again."""
        with named_faults(self.folder):
            (self.folder / AWAY).unlink(missing_ok=True)

    def lock(
        self, doing: str, *, wait: float = 0.0, clock: Clock = CLOCK
    ) -> AbstractContextManager[None]:
        """One command at a time: `with records.lock("train"):`. Raises LockedError after `wait` s;
        a process in the background whose run has ended is waited for in any case. The kernel
        releases it when its holder dies; its file does not stay behind."""
        found = self.holder()
        if found is not None and found.doing == ATTEND and self.active_run() is None:
            wait = max(wait, LOCK_HANDED_OVER)
        return locked(self._lock_path, self.name, doing, folder=self.folder, wait=wait, clock=clock)

    def holder(self) -> LockHolder | None:
        """The command that works on this cluster now."""
        return holder(self._lock_path)

    def idle_process_lock(self) -> AbstractContextManager[None]:
        """Lock of the one process that destroys an idle cluster. Raises LockedError."""
        folder = self.folder / "watched"  # as a command may hold the cluster's own
        return locked(self._idle_lock, self.name, "idle", folder=folder, wait=0.0)

    def idle_process(self) -> LockHolder | None:
        """The process that destroys this cluster when it is idle."""
        return holder(self._idle_lock)

    @contextmanager
    def in_use(self, use: UnlockedUse) -> Iterator[None]:
        """Mark the nodes as in use, without the lock: they are not idle."""
        self.begin_use(use)
        try:
            yield
        finally:
            end_session(self._uses)

    def begin_use(self, use: UnlockedUse) -> None:
        """Mark the nodes as in use until this process ends, also after exec."""
        begin_session(self._uses, use)

    def is_in_use(self, use: UnlockedUse) -> bool:
        return use in living_uses(self._uses)

    def last_use(self) -> float:
        """Unix time of the last start, or noticed end, of such a use; 0 if never."""
        return last_used(self._uses)

    def save_config(self, data: Mapping[str, Any]) -> None:
        """Save the resolved config; a Secret in it is refused (TypeError)."""
        text = json.dumps(data, indent=1)
        make_folder(self.folder)
        write_whole(self.folder / "config.json", text.encode())

    def config(self) -> dict[str, Any]:
        """The saved config. Raises ConfigError naming an unreadable file."""
        path = self.folder / "config.json"
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict):
                return data
            fault = "it is not a JSON object"
        except FileNotFoundError:
            fault = "the cluster's config was never saved"
        except (OSError, ValueError) as error:
            fault = f"it cannot be read: {error}"
        hint = f"use the config FILE instead of the name {self.name}"
        raise _unreadable(path, fault, hint)

    def configured(self) -> float:
        """Unix time at which the config was last saved; 0 if never."""
        try:
            return (self.folder / "config.json").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def journal(self, event: Event, /) -> None:
        """Append one event, on disk on return: what is about to be done, before it is done."""
        from cloudtrain.core.events import to_line

        line = to_line(event, time=round(moments.now(), 3), pid=os.getpid())
        with self._as_it_can():
            make_folder(self.folder)
            append_line(self._events, json.dumps(line).encode())

    def events(self) -> tuple[Line, ...]:
        """All lines in order, for `core/events`; a line torn by a crash is skipped."""
        return tuple(self._read_events())

    def since(self) -> float | None:
        """Unix time of the first event."""
        first: Line = next(self._read_events(), {})
        time_written = first.get("time")
        return time_written if isinstance(time_written, int | float) else None

    def save_run(self, run: Run) -> None:
        folder = self._runs / self._checked(run.id)
        with self._as_it_can():
            make_folder(folder)
            write_whole(folder / "run.json", json.dumps(run_to_json(run), indent=1).encode())

    def run(self, run: str) -> Run:
        """One run by its id. Raises UsageError, or ConfigError naming an unreadable file."""
        path = self._runs / self._checked(run) / "run.json"
        try:
            return decode(Run, json.loads(path.read_bytes()))
        except FileNotFoundError:
            listed = ", ".join(self.run_ids()) or "none"
            raise UsageError(
                f"{self.name} has no run {run!r}", hint=f"its runs: {listed}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            fault = f"this run's record cannot be read: {error}"
            raise _unreadable(path, fault, "the other runs are not affected") from error

    def runs(self) -> tuple[Run, ...]:
        """Every readable run, sorted by id and so by time."""
        return self.runs_and_faults()[0]

    def runs_and_faults(self, latest: int = 0) -> tuple[tuple[Run, ...], tuple[str, ...]]:
        """Readable runs, so many of the `latest` or all, and the errors of records among them that
        are not."""
        runs: list[Run] = []
        faults = []
        for run in reversed(self.run_ids()):
            if latest and len(runs) == latest:
                break
            try:
                runs.append(self.run(run))
            except UsageError:
                continue  # only its folder was created before a crash
            except ConfigError as error:
                faults.append(error.message)
        return tuple(reversed(runs)), tuple(reversed(faults))

    def latest_run(self) -> Run | None:
        return next(reversed(self.runs()), None)

    def active_run(self) -> Run | None:
        """The latest run that has not ended, according to its record."""
        return next((run for run in reversed(self.runs()) if run.state not in ENDED), None)

    def log_path(self, run: str, task: str, attempt: int) -> Path:
        return self._runs / self._checked(run) / f"{task}.{attempt}.log"

    def metrics_path(self, run: str, task: str, attempt: int) -> Path:
        """Path here of the node's metrics during one attempt of one task."""
        return self.log_path(run, task, attempt).with_suffix(metrics.SUFFIX)

    def listing_path(self, run: str, name: str) -> Path:
        return self._runs / self._checked(run) / f"data-{name}.json.gz"

    def ask_stop(self, run: str) -> None:
        """Ask the process that supervises the run to stop it."""
        folder = self._runs / self._checked(run)
        self._stops.add(run)
        with self._as_it_can():
            make_folder(folder)
            write_whole(folder / "stop", b"")

    def stop_asked(self, run: str) -> bool:
        return run in self._stops or (self._runs / self._checked(run) / "stop").exists()

    def _checked(self, run: str) -> str:
        if not RUN_ID.match(run):
            raise UsageError(
                f"{run!r} is not a valid run id", hint="`cloudtrain status` lists the runs"
            )
        return run

    def run_ids(self) -> list[str]:
        """Ids of the runs on record, sorted; a crash may have left one without a record."""
        try:
            with os.scandir(self._runs) as entries:
                return sorted(entry.name for entry in entries if RUN_ID.match(entry.name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _read_events(self) -> Iterator[Line]:
        try:
            with self._events.open("rb") as lines:
                for line in lines:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(entry, dict):
                        yield entry
        except FileNotFoundError:
            return


def _unreadable(path: Path, fault: str, hint: str) -> ConfigError:
    from cloudtrain.core.model import Problem

    return ConfigError([Problem(file=str(path), line=None, field="", text=fault)], hint=hint)


def _nearest(name: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    if not names:
        return "there are none: run `cloudtrain up FILE` to create one"
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    """Those that are up first, five at most."""
    own = without_desks(names)
    up = [name for name in own if Records(name).is_open()]
    down = [name for name in own if name not in up]
    mark = " (up)" if down else ""
    return some([*(f"{name}{mark}" for name in up), *down], NAMED)
