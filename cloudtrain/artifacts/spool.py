"""Ingests spool archives, which nodes stored while no client was connected (node/agent.py)."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from cloudtrain.artifacts.checkpoint_parts import has_torn_set
from cloudtrain.artifacts.landing import Landing, SyncSource, own_manifests
from cloudtrain.artifacts.manifest import Checkpoint, ManifestWriter, OwnManifests
from cloudtrain.artifacts.spool_archive import (
    LocalSpool,
    SpoolArchive,
    SpoolIndex,
    SpoolName,
    SpoolUnpackers,
    UnpackingUnavailable,
    delete_spool,
    pending_spools,
    spools_among,
)
from cloudtrain.core import metrics
from cloudtrain.core.errors import CloudtrainError, LockedError, NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import shown, sizes
from cloudtrain.core.protocols import ArtifactStore, Console, Transport
from cloudtrain.core.retry import NODE_SILENT
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import Command, script
from cloudtrain.core.store_kinds import is_on_this_machine
from cloudtrain.node import formats
from cloudtrain.node.listing import times
from cloudtrain.state import Records

AT_ONCE = 16

LogPath = Callable[[str, int], Path]
"""Function for the local log of a task's attempt."""

_UNATTENDED = "that nodes stored while no client was connected"


def ingest_spools(
    run: Run,
    store: ArtifactStore,
    console: Console,
    *,
    nodes: Sequence[Node] = (),
    transport: Transport | None = None,
    log_path: LogPath | None = None,
    own: OwnManifests | None = None,
) -> None:
    """Land every file of the archives that is newer than its landed version, verified.

    Includes tasks whose nodes exist: a replacement node has none of the old one's files. An archive
    that cannot be read completely is kept. `nodes` are the cluster's: if one can, it unpacks an
    archive and uploads its files, which then do not pass through this machine. `log_path` names a
    task's local log, of which an archive may have more; `own` are the manifests of this machine.
    Safe to kill at any point, and to repeat. The caller holds the cluster's lock.

    Raises StoreError."""
    names = _of_tasks(run, pending_spools(run.id, store))
    if names:
        console.say(f"ingesting {counted(len(names))} {_UNATTENDED}")
        ledger = ManifestWriter(store, run.id, own=own)
        _ingest(names, run, ledger, console, nodes, transport, log_path)


def ingest_recorded(records: Records, run: Run, store: ArtifactStore, console: Console) -> None:
    """The same for a run on record here, whose archives no supervised end has landed."""
    if can_spool(store):
        log_path, own = partial(records.log_path, run.id), own_manifests(records)
        ingest_spools(run, store, console, log_path=log_path, own=own)


def ingest_or_warn(
    records: Records, run: Run, store: Callable[[], ArtifactStore], console: Console
) -> None:
    """The same, with a warning of what cannot be landed."""
    try:
        ingest_recorded(records, run, store(), console)
    except CloudtrainError as error:
        console.warn(f"cannot land what unattended nodes stored: {error}")


def ingest_if_free(
    records: Records, run: Run, store: ArtifactStore, console: Console, doing: str
) -> None:
    """The same, unless another process holds the cluster's lock: it lands them itself."""
    if not can_spool(store):
        return
    with suppress(LockedError), records.lock(doing):
        ingest_or_warn(records, run, lambda: store, console)


def ingest_spools_into(
    ledger: ManifestWriter, landing: Landing, run: Run, nodes: Mapping[str, Node]
) -> None:
    """Ingest the archives that existed when the ledger was opened. Those of `nodes` (by task) are
    not worth reporting: the nodes' own files land next."""
    names = _of_tasks(run, spools_among(run.id, ledger.unnamed))
    news = sum(name.task not in nodes for name in names)
    if news:
        landing.console.say(f"ingesting {counted(news)} {_UNATTENDED}")
    if names:
        running = tuple(nodes.values())
        log_path = partial(landing.logs, run.id) if landing.logs else None
        _ingest(names, run, ledger, landing.console, running, landing.transport, log_path)


def _of_tasks(run: Run, names: Iterable[SpoolName]) -> list[SpoolName]:
    tasks = {task.name for task in run.tasks}
    return [name for name in names if name.task in tasks]


def _ingest(
    names: Sequence[SpoolName],
    run: Run,
    ledger: ManifestWriter,
    console: Console,
    nodes: Sequence[Node],
    transport: Transport | None,
    log_path: LogPath | None,
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        unpackers = SpoolUnpackers(run, nodes, transport, ledger, pool)
        taker = _Taker(ledger, console, unpackers, pool, log_path)
        taken = [name for name in names if taker.take(name)]
        for warning in filter(None, taker.lost.values()):
            console.warn(warning)
        ledger.settle(pool)
    delete_spool(taken, ledger.store)


def counted(archives: int) -> str:
    return f"{archives} archive{'s' * (archives != 1)}"


def can_spool(store: ArtifactStore) -> bool:
    """True unless the store is a folder of this machine, which no node can reach."""
    return not is_on_this_machine(store.uri)


def report_landed(
    sources: Sequence[SyncSource],
    ledger: ManifestWriter,
    transport: Transport,
    *,
    unfinished: Collection[str] = (),
) -> None:
    """Tell the agents on the nodes what has landed: the manifest's stamps by path. `unfinished`:
    tasks of which more is on their nodes, though the manifest is complete."""

    def tell(source: SyncSource) -> None:
        files = ledger.manifest.task_files(source.task)
        stamps = {path: each.stamp for path, each in files.items()}
        final = ledger.manifest.complete and source.task not in unfinished
        report = json.dumps({"final": final, "files": stamps}).encode("ascii")
        with suppress(CloudtrainError):  # its agent then uploads more than necessary
            folder = source.folder.rpartition("/")[0]
            transport.run(source.node, report_command(folder), stdin=report, timeout=NODE_SILENT)

    fan_out(sources, tell, name=lambda source: source.node.name)


def report_command(folder: str) -> Command:
    return script(REPORT, folder, formats.AGENT_LOCK, formats.LANDED)


REPORT = r"""
cd "$1" 2>/dev/null && [ -e "$2" ] || exit 0
umask 077
cat >"$3.new" && mv -f "$3.new" "$3"
"""


# ── One archive ──────────────────────────────────────────────────────────────


class _Taker:
    """Ingests archives one by one, each on a node if possible, or else here."""

    def __init__(
        self,
        ledger: ManifestWriter,
        console: Console,
        unpackers: SpoolUnpackers,
        pool: ThreadPoolExecutor,
        log_path: LogPath | None,
    ) -> None:
        self.ledger, self.pool = ledger, pool
        self.console, self._unpackers, self._log_path = console, unpackers, log_path
        self.lost: dict[str, str] = {}
        """Warnings about what ended with a node, by task."""
        self._has_said = False

    def take(self, name: SpoolName) -> bool:
        """Ingest one archive; returns True if it is no longer needed."""
        try:
            is_intact = self._by_a_node(name)
            if is_intact is None:
                is_intact = self._here(name)
        except (ValueError, KeyError, TypeError, tarfile.TarError) as error:
            self.console.warn(f"{shown(name.path)} is not a valid archive: {error}; it is kept")
            return False
        self.ledger.save()
        return is_intact

    def _by_a_node(self, name: SpoolName) -> bool | None:
        """Ingest on a node; None if no node can. What has landed by then does not land again."""
        while (node := self._unpackers.node(name.task)) is not None:
            try:
                with self._unpackers.unpacked(node, name.path, name.size) as unpacked:
                    return self._merge(name, unpacked)
            except UnpackingUnavailable as error:
                self._unpackers.none(str(error))
            except NodeError as error:
                self._unpackers.lose(node, error.text)
        return None

    def _here(self, name: SpoolName) -> bool:
        if not self._has_said:
            self._has_said = True
            self.console.say(f"unpacking archives on this machine: {self._unpackers.why}")
        try:
            with tempfile.TemporaryFile() as spool:
                for piece in self.ledger.store.download(name.path):
                    spool.write(piece)
                spool.flush()
                return self._merge(name, LocalSpool(spool, self.ledger, self.pool))
        except OSError as error:
            raise CloudtrainError(
                f"cannot copy {name.path} to {tempfile.gettempdir()}: {error.strerror or error}",
                hint="free some space there, or set TMPDIR to another folder",
            ) from error

    def _merge(self, name: SpoolName, opened: SpoolArchive) -> bool:
        """Land the archive's files; True if every file that the node read whole is intact."""
        index, ledger, intact = opened.index, self.ledger, {}
        for member, file in index.files.items():
            if opened.digests[member] == file.sha256:
                intact[member] = file
            else:
                text = f"{shown(name.path)}: {shown(member)} differs from what its node read"
                self.console.warn(text)
        mine = {
            member[len(formats.ARCHIVED_WORK) :]: file
            for member, file in intact.items()
            if member.startswith(formats.ARCHIVED_WORK)
        }
        stored = ledger.manifest.task_files(name.task)
        together = _checkpoint(name.task, index, mine, ledger)
        due = {
            f"{name.task}/{path}": file
            for path, file in mine.items()
            if (path not in index.checkpoint.files or together)
            and _is_newer(file, stored.get(path))
        }
        ledger.add(opened.land(due), together)
        self.lost[name.task] = ledger.lose(name.task, name.attempt, sizes(Counter(index.left)))
        log = f"{formats.ARCHIVED_LOGS}attempt-{name.attempt}"
        for member, suffix in ((log, ".log"), (log + formats.METRICS, metrics.SUFFIX)):
            if member in intact:
                self._take_log(intact[member], name, suffix, opened)
        return len(intact) == len(index.files)

    def _take_log(self, file: Artifact, name: SpoolName, suffix: str, opened: SpoolArchive) -> None:
        """A log only grows: the longest is the newest. So do metrics."""
        path = f"logs/{name.task}.attempt-{name.attempt}{suffix}"
        stored = self.ledger.manifest.files.get(path)
        if stored is None or stored.size < file.size:
            self.ledger.add(opened.land({path: replace(file, stamp="")}))  # it is its size
        if self._log_path is None:
            return
        here = self._log_path(name.task, name.attempt).with_suffix(suffix)
        try:
            _lengthen(here, file.size, partial(opened.rest, path, file))
        except OSError as error:
            raise CloudtrainError(
                f"{shown(here)}: {error.strerror or error}",
                hint="make it writable, or free some space",
            ) from error


def _lengthen(log: Path, size: int, rest: Callable[[int], Iterator[bytes]]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log.touch(mode=0o600)
    have = log.stat().st_size
    if have >= size:
        return
    with log.open("r+b") as file:
        file.seek(have)
        try:
            file.writelines(rest(have))
        except CloudtrainError:  # the bytes so far are not verified
            file.truncate(have)
            raise


def _checkpoint(
    task: str, index: SpoolIndex, mine: Mapping[str, Artifact], ledger: ManifestWriter
) -> Checkpoint | None:
    """The archive's checkpoint, if complete (each file in it, or landed with the same stamp) and
    newer than the landed one. One that lacks parts of other tasks never replaces a landed one."""
    folder, stamps = index.checkpoint.folder, index.checkpoint.files
    if folder is None or not index.checkpoint_is_whole:
        return None
    stored = ledger.manifest.task_files(task)
    for path, stamp in stamps.items():
        sent, landed = mine.get(path), stored.get(path)
        if sent is not None and _is_newer(sent, landed):
            if sent.stamp != stamp:
                return None
        elif landed is None or landed.stamp != stamp:
            return None
    old = ledger.manifest.checkpoint
    if old is not None:
        if has_torn_set(stamps):  # its other parts are on the disks of the ps
            return None
        landed_at = max(_changed(ledger.manifest.files[path].stamp) for path in old.paths)
        if max(map(_changed, stamps.values())) <= landed_at:
            return None
    paths = tuple(f"{task}/{path}" for path in sorted(stamps))
    return Checkpoint(task=task, folder=folder, paths=paths)


def _is_newer(file: Artifact, landed: Artifact | None) -> bool:
    """Compare by the inode's change time, which no program can set back."""
    return landed is None or _changed(file.stamp) > _changed(landed.stamp)


def _changed(stamp: str) -> int:
    """Change time in ns."""
    return times(stamp)[1]
