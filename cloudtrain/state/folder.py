"""A cluster's folder: its resolved config, its event log, its runs and their logs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.codec import decode
from cloudtrain.errors import ConfigError, UsageError
from cloudtrain.retry import CLOCK, Clock
from cloudtrain.run_record import Run, run_to_json
from cloudtrain.state import session_leases
from cloudtrain.state.files import DiskFull, append_line, make_folder, named_faults, write_whole
from cloudtrain.state.lock import LockHolder, holder, locked

if TYPE_CHECKING:
    from cloudtrain.events import Event, Line

CLUSTER_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
ENDED = frozenset({"succeeded", "failed", "stopped"})


def home() -> Path:
    """`$CLOUDTRAIN_HOME`, or this user's folder for state."""
    chosen = os.environ.get("CLOUDTRAIN_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_state_dir

    return Path(user_state_dir("cloudtrain"))


def known_clusters() -> tuple[str, ...]:
    """Names of the clusters that have a folder here, sorted."""
    try:
        with os.scandir(home() / "clusters") as entries:
            names = [e.name for e in entries if CLUSTER_NAME.match(e.name) and e.is_dir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    return tuple(sorted(names))


def resolve(name: str | None) -> str:
    """The cluster that is meant: `name`, or the only one that there is. Raises UsageError.

    Those that were taken down are meant only by their name, or where there is no other.
    """
    names = known_clusters()
    if name in names:
        return name
    if name is not None:
        raise UsageError(f"no cluster {name!r} is known here", hint=_nearest(name, names))
    names = tuple(name for name in names if Records(name).is_open()) or names
    if not names:
        raise UsageError("no cluster is known here", hint="`cloudtrain up FILE` makes one")
    if len(names) > 1:
        listed = ", ".join(names)
        raise UsageError(f"{len(names)} clusters are known here: {listed}", hint="name one of them")
    return names[0]


class Records:
    """The folder of one cluster. Reading needs no lock; a command that changes it takes `lock`."""

    def __init__(self, name: str) -> None:
        if not CLUSTER_NAME.match(name):
            raise UsageError(
                f"{name!r} cannot be a cluster's name",
                hint="a small letter, then up to 29 small letters, digits and dashes",
            )
        self.name = name
        self.folder = home() / "clusters" / name
        self._events = self.folder / "events.jsonl"
        self._runs = self.folder / "runs"
        self._stops: set[str] = set()
        self.goes_on_without_room = False
        """Whether what there is no room for is left out (`down`) instead of an error."""
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
        """Make the folder (mode 0700), or open a closed one again; what it holds is kept."""
        from cloudtrain.events import ClusterGone  # 30 classes that `status` does not need

        make_folder(self.folder)
        if not self.is_open():
            self.journal(ClusterGone())
        with named_faults(self._closed):
            self._closed.unlink(missing_ok=True)

    def close(self) -> None:
        """The cluster is gone: its keys go too; its config, events, runs and logs are kept."""
        import shutil  # 5 ms that `status` need not wait for

        with named_faults(self.folder):
            shutil.rmtree(self.folder / "host_keys", ignore_errors=True)
            for name in ("key", "key.pub", "known_hosts", "ssh_config"):
                (self.folder / name).unlink(missing_ok=True)
        with self._as_it_can():
            make_folder(self.folder)
            write_whole(self._closed, b"")

    def remove(self) -> None:
        """All of it, runs and logs too."""
        import shutil

        hidden = self.folder.with_name(f".forgotten-{self.name}")
        with named_faults(self.folder):
            shutil.rmtree(hidden, ignore_errors=True)  # of a removal that was cut off
            self.folder.rename(hidden)
            shutil.rmtree(hidden)

    def has_keys(self) -> bool:
        """Whether what opens the cluster's nodes is here."""
        return (self.folder / "key").exists()

    def is_open(self) -> bool:
        """Whether the cluster was made and not yet taken down, as far as this machine knows."""
        return not self._closed.exists()

    def lock(
        self, doing: str, *, wait: float = 0.0, clock: Clock = CLOCK
    ) -> AbstractContextManager[None]:
        """One command at a time: `with records.lock("train"):`. Raises LockedError after `wait` s.

        The kernel gives it free when its holder dies, and no file of it stays.
        """
        return locked(self._lock_path, self.name, doing, folder=self.folder, wait=wait, clock=clock)

    def holder(self) -> LockHolder | None:
        """Who works on this cluster now."""
        return holder(self._lock_path)

    def watch_lock(self) -> AbstractContextManager[None]:
        """Held by the one process that ends an idle cluster. Raises LockedError."""
        return locked(self._watch_path, self.name, "idle", folder=self._watched, wait=0.0)

    def watcher(self) -> LockHolder | None:
        """Who ends this cluster when it is idle."""
        return holder(self._watch_path)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Somebody is on the nodes, without the lock: they are not idle."""
        self.begin_use()
        try:
            yield
        finally:
            session_leases.end_session(self._uses)

    def begin_use(self) -> None:
        """The same to the end of this process, whatever program it runs then."""
        session_leases.begin_session(self._uses)

    def is_in_use(self) -> bool:
        return session_leases.any_in_use(self._uses)

    def last_use(self) -> float:
        """When such a use began or was seen to have ended, Unix time; 0: never."""
        return session_leases.last_used(self._uses)

    def save_config(self, data: Mapping[str, Any]) -> None:
        """Keep the resolved config; a Secret in it is refused (TypeError)."""
        text = json.dumps(data, indent=1)
        make_folder(self.folder)
        write_whole(self.folder / "config.json", text.encode())

    def config(self) -> dict[str, Any]:
        """What `save_config` kept. Raises ConfigError naming the file that cannot be read."""
        path = self.folder / "config.json"
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict):
                return data
            fault = "it is not a JSON object"
        except FileNotFoundError:
            fault = "the cluster's config was never kept"
        except (OSError, ValueError) as error:
            fault = f"it cannot be read: {error}"
        hint = f"give the config FILE in place of the name {self.name}"
        raise _unreadable(path, fault, hint)

    def configured(self) -> float:
        """When the config was kept last, Unix time; 0: never."""
        try:
            return (self.folder / "config.json").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def journal(self, event: Event, /) -> None:
        """One event, on disk on return: what is about to be done, before it is done."""
        from cloudtrain.events import to_line

        line = to_line(event, time=round(time.time(), 3), pid=os.getpid())
        with self._as_it_can():
            make_folder(self.folder)
            append_line(self._events, json.dumps(line).encode())

    def events(self) -> tuple[Line, ...]:
        """Every line in the order written, for the functions of cloudtrain.events to read; one
        torn by a crash is left out."""
        return tuple(self._read_events())

    def since(self) -> float | None:
        """When the first event was written, Unix time."""
        first: Line = next(self._read_events(), {})
        time_written = first.get("time")
        return time_written if isinstance(time_written, int | float) else None

    def save_run(self, run: Run) -> None:
        folder = self._runs / self._checked(run.id)
        with self._as_it_can():
            make_folder(folder)
            write_whole(folder / "run.json", json.dumps(run_to_json(run), indent=1).encode())

    def run(self, run: str) -> Run:
        """One run by its id. Raises UsageError, ConfigError naming a file that cannot be read."""
        path = self._runs / self._checked(run) / "run.json"
        try:
            return decode(Run, json.loads(path.read_bytes()))
        except FileNotFoundError:
            listed = ", ".join(self._run_ids()) or "none"
            raise UsageError(
                f"{self.name} has no run {run!r}", hint=f"its runs: {listed}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            fault = f"this run's record cannot be read: {error}"
            raise _unreadable(path, fault, "the other runs are not touched by it") from error

    def runs(self) -> tuple[Run, ...]:
        """Every run whose record can be read, sorted by id, which is by time."""
        return self.runs_and_faults()[0]

    def runs_and_faults(self) -> tuple[tuple[Run, ...], tuple[str, ...]]:
        """The runs, and what is wrong with the records that cannot be read."""
        runs, faults = [], []
        for run in self._run_ids():
            try:
                runs.append(self.run(run))
            except UsageError:
                continue  # only its folder was made before a crash
            except ConfigError as error:
                faults.append(error.message)
        return tuple(runs), tuple(faults)

    def latest_run(self) -> Run | None:
        return next(reversed(self.runs()), None)

    def active_run(self) -> Run | None:
        """The latest run that has not ended, by its record here."""
        return next((run for run in reversed(self.runs()) if run.state not in ENDED), None)

    def log_path(self, run: str, task: str, attempt: int) -> Path:
        """Path here of the log of one attempt of one task."""
        return self._runs / self._checked(run) / f"{task}.{attempt}.log"

    def ask_stop(self, run: str) -> None:
        """Ask whoever attends to the run to end it."""
        folder = self._runs / self._checked(run)
        self._stops.add(run)
        with self._as_it_can():
            make_folder(folder)
            write_whole(folder / "stop", b"")

    def stop_asked(self, run: str) -> bool:
        return run in self._stops or (self._runs / self._checked(run) / "stop").exists()

    @property
    def _lock_path(self) -> Path:
        return self.folder.with_name(f"{self.name}.lock")

    @property
    def _watch_path(self) -> Path:
        return self.folder.with_name(f"{self.name}.idle.lock")

    @property
    def _watched(self) -> Path:
        """Not the cluster's folder, which a command holds beside the watcher."""
        return self.folder / "watched"

    @property
    def _uses(self) -> Path:
        return self.folder / "uses"

    @property
    def _closed(self) -> Path:
        return self.folder / "closed"

    def _checked(self, run: str) -> str:
        if not RUN_ID.match(run):
            raise UsageError(f"{run!r} cannot be a run's id", hint="`cloudtrain status` lists them")
        return run

    def _run_ids(self) -> list[str]:
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
    from cloudtrain.model import Problem

    return ConfigError([Problem(file=str(path), line=None, field="", text=fault)], hint=hint)


def _nearest(name: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    if not names:
        return "none is: `cloudtrain up FILE` makes one"
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
