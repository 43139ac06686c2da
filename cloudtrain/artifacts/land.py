"""Lands what a run's tasks created, and reports what has not landed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloudtrain.artifacts.inventory import Inventory, Stop, run_checked, take_inventory
from cloudtrain.artifacts.landing import (
    Landing,
    SyncResult,
    SyncSource,
    files_by_disk,
    is_due,
    known_files,
    sync_all,
    sync_so_far,
    unchanged,
)
from cloudtrain.artifacts.manifest import LOGS, Manifest, ManifestWriter, is_record, left_out
from cloudtrain.artifacts.run_index import RECORD, index, record_of
from cloudtrain.artifacts.spool import can_spool, ingest_spools_into, report_landed
from cloudtrain.artifacts.uploads import Upload
from cloudtrain.core import errors, paths
from cloudtrain.core.model import Artifact, ArtifactRules, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import is_inside, shown, size_text, sizes, some
from cloudtrain.core.protocols import Console, SilentStage, Stage, Transport
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import script
from cloudtrain.node.listing import matches, top_of
from cloudtrain.stores.file import sha256_of

NONE: Mapping[str, Path] = {}

UPLOADS = 16
"""Small files that are uploaded side by side."""

SHOWN = 10
"""Names listed in one message; the rest is counted."""


def land_files(
    landing: Landing, run: Run, nodes: Mapping[str, Node], *, certain: bool = False
) -> Manifest:
    """Land everything from the tasks' nodes (`nodes`: existing ones by task), once the tasks have
    ended. `certain`: what landed before counts only if `ManifestWriter` is certain of it.

    Afterwards the store has all files as they are on the nodes; raises NotLanded or StoreError
    otherwise. Files that landed earlier stay, also those of lost nodes. One call at a time per run.
    """
    closing = Closing(landing, run, nodes, certain=certain)
    closing.bring()
    return closing.complete()


def land_so_far(
    landing: Landing, run: Run, nodes: Mapping[str, Node], logs: Mapping[str, Path] = NONE
) -> Manifest:
    """Land what has changed on the nodes and settled, and local `logs` by name."""
    return _land_so_far(landing, run, landing.sources(run, nodes), logs)


def take_checkpoint(landing: Landing, run: Run, nodes: Mapping[str, Node]) -> Manifest:
    """Land the first task's checkpoint folder alone, before an attempt starts from it."""
    held = landing.checkpoint_source(run, nodes)
    return _land_so_far(landing, run, [held] if held else [], NONE)


class Pending(NamedTuple):
    """A file that is only on a node: `<run>/<task>/<path>`, and its size in bytes."""

    path: str
    size: int


class Closing:
    """A run's final landing: one open manifest, from pending spool archives to its record."""

    def __init__(
        self, landing: Landing, run: Run, nodes: Mapping[str, Node], *, certain: bool = False
    ) -> None:
        self._landing, self._sources = landing, landing.sources(run, nodes)
        self._attempts = {task.name: task.attempt for task in run.tasks}
        self._ledger = _opened(landing, run, certain=certain)
        self._over: set[str] = set()
        """Tasks with files beyond `artifacts.limit`, which are only on their nodes."""
        ingest_spools_into(self._ledger, landing, run, nodes)

    @property
    def manifest(self) -> Manifest:
        """Manifest of what has landed so far."""
        return self._ledger.manifest

    def bring(self) -> Manifest:
        """Land every node's files, compared by checksum. Raises NotLanded or StoreError."""
        landing, ledger = self._landing, self._ledger
        self._over.clear()
        with landing.console.stage("upload artifacts", len(self._sources)) as stage:

            def work(source: SyncSource, upload: Upload) -> None:
                stage.node(source.node.name, "looking for new files")
                synced = sync_all(source, ledger, upload)
                _take(synced, source, ledger, landing.console, unlanded_lines(synced.inventory))
                if synced.detour is not None:
                    landing.console.say(f"{source.node.name}: {synced.detour}")
                refuse_unsettled(source, synced)
                if synced.inventory.over:
                    self._over.add(source.task)
                elif (attempt := self._attempts.get(source.task)) is not None:
                    ledger.landed_all(source.task, attempt)
                count, size = len(synced.files), sum(file.size for file in synced.files)
                new = f"{count} new file{'s' * (count != 1)}, {size_text(size)}"
                stage.done(source.node.name, new if count else "nothing new")

            _on_every_node(landing, ledger, self._sources, work)
        return ledger.manifest

    def record(self, run: Run, logs: Mapping[str, Path]) -> None:
        """Land the record of the run as it ended, and local logs by name."""
        ledger = self._ledger
        with ThreadPoolExecutor(UPLOADS) as pool:
            _land_logs(ledger, logs, pool)
        ledger.add(filter(None, [_land_here(ledger, RECORD, record_of(run))]))
        index(run, ledger.store)

    def add(self, contents: Mapping[str, bytes]) -> None:
        """Land small files about the run, by their name beside its record."""
        ledger = self._ledger
        landed = [_land_here(ledger, name, data) for name, data in contents.items()]
        ledger.add(filter(None, landed))

    def complete(self) -> Manifest:
        """Complete the manifest once every file is in its place, and tell the agents: those whose
        nodes have more than that stay, for their nodes' end."""
        with ThreadPoolExecutor(UPLOADS) as pool:
            self._ledger.settle(pool, complete=True)
        _tell_agents(self._landing, self._sources, self._ledger, self._over)
        return self._ledger.manifest


def missing(manifest: Manifest, rules: ArtifactRules) -> tuple[str, ...]:
    """Files that `artifacts.require` names and no task has landed."""
    paths = [path.partition("/")[2] for path in manifest.files if not is_record(path)]
    return tuple(each for each in rules.require if not any(matches(path, each) for path in paths))


def _land_logs(ledger: ManifestWriter, files: Mapping[str, Path], pool: ThreadPoolExecutor) -> None:
    names = [f"{LOGS}/{name}" for name in files]
    ledger.add(filter(None, pool.map(partial(_land_here, ledger), names, files.values())))


def pending_files(
    landing: Landing, nodes: Sequence[Node], stage: Stage | None = None
) -> tuple[Pending, ...]:
    """Files of any run on these nodes whose current state has not landed, or was altered in the
    store. Finds the runs on the nodes' disks. Raises NotLanded if a node cannot be queried."""
    transport, store, cluster = landing.transport, landing.store, landing.cluster
    try:
        found = fan_out(
            nodes, lambda node: runs_on(node, cluster, transport), name=lambda node: node.name
        )
        runs = sorted({run for each in found for run, _ in each})
        ledgers = {run: ManifestWriter(store, run, certain=True, own=landing.own) for run in runs}
        sources = [
            (run, source)
            for run in runs
            for source in _sources_on(landing, run, nodes, found, ledgers[run])
        ]
        lists = fan_out(
            sources,
            lambda item: _unlanded(item[1], ledgers[item[0]], transport, stage or SilentStage()),
            name=lambda item: item[1].node.name,
        )
    except errors.CloudtrainError as error:
        raise not_landed(error) from error
    return tuple(file for each in lists for file in each)


def _sources_on(
    landing: Landing,
    run: str,
    nodes: Sequence[Node],
    found: Sequence[Sequence[tuple[str, str]]],
    ledger: ManifestWriter,
) -> list[SyncSource]:
    """Sync sources of a run's tasks, as found on the nodes' disks. Which task has the checkpoint is
    asked of our own manifest alone: with another's, each may have it."""
    checkpoint = ledger.manifest.checkpoint
    first = "" if not ledger.is_own else checkpoint.task if checkpoint else "chief0"
    on_disk = [
        (task, node)
        for node, each in zip(nodes, found, strict=True)
        for one, task in each
        if one == run
    ]
    parts = landing.parts(run, dict(on_disk))
    return [landing.source(run, task, node, first or task, parts) for task, node in on_disk]


def runs_on(node: Node, cluster: str, transport: Transport) -> tuple[tuple[str, str], ...]:
    """Runs and their tasks that have a work folder on the node."""
    listing = script(RUNS, paths.runs_folder(cluster))
    done = run_checked(node, listing, transport, "cannot list its runs")
    rows = os.fsdecode(done.stdout).split("\0")[:-1]
    parts = [row.split("/") for row in rows]
    if any(len(each) != 3 or not is_inside(f"{each[0]}/{each[1]}") for each in parts):
        raise errors.NodeError(node.name, f"its list of runs is invalid: {_names(rows)}")
    return tuple((run, task) for run, task, _ in parts)


RUNS = r"""
[ -d "$1" ] || exit 0
cd "$1" || exit
for work in */*/work; do
    if [ -e "$work" ]; then printf '%s\0' "$work"; fi
done
"""


def not_landed(error: errors.CloudtrainError) -> errors.CloudtrainError:
    """One error with every failure, whose exit code says that artifacts have not landed. Always
    another one, to be raised from `error`: an error that is its own cause has no last one."""
    failures = list(error.failures.values()) if isinstance(error, errors.NodesError) else [error]
    kinds = (errors.StoreAway, errors.StoreError)
    kind = next((k for k in kinds if all(isinstance(e, k) for e in failures)), errors.NotLanded)
    if len(failures) == 1 and isinstance(error, kind):
        return error.copy_with()
    hints = [
        each.hint for each in failures if isinstance(each, errors.CloudtrainError) and each.hint
    ]
    hints += ["the nodes are kept; run the command again to land what is missing"]
    return kind("\n".join(dict.fromkeys(str(each) for each in failures)), hint=hints[0])


def _opened(landing: Landing, run: Run, *, certain: bool = False) -> ManifestWriter:
    ledger = ManifestWriter(landing.store, run.id, certain=certain, own=landing.own)
    if ledger.lost:
        what = "missing from the store, or altered there"
        landing.console.warn(f"{what}: {_names(sorted(ledger.lost))}")
    return ledger


def _land_so_far(
    landing: Landing, run: Run, sources: Sequence[SyncSource], logs: Mapping[str, Path]
) -> Manifest:
    ledger = _opened(landing, run)

    def work(source: SyncSource, upload: Upload) -> None:
        _take(sync_so_far(source, ledger, upload), source, ledger, landing.console)

    _on_every_node(landing, ledger, sources, work)
    if logs:
        with ThreadPoolExecutor(UPLOADS) as pool:
            _land_logs(ledger, logs, pool)
        ledger.save()
    _tell_agents(landing, sources, ledger)
    return ledger.manifest


def _tell_agents(
    landing: Landing,
    sources: Sequence[SyncSource],
    ledger: ManifestWriter,
    over: Collection[str] = (),
) -> None:
    """Tell the agents what has landed, unless none can store anything, nor end its node."""
    if landing.ends or can_spool(ledger.store):
        report_landed(sources, ledger, landing.transport, unfinished=over)


def _on_every_node(
    landing: Landing,
    ledger: ManifestWriter,
    sources: Sequence[SyncSource],
    work: Callable[[SyncSource, Upload], None],
) -> None:
    """Work on all nodes; saves the manifest even if one fails. Raises NotLanded or StoreError."""
    stop = Stop()
    try:
        with ThreadPoolExecutor(UPLOADS) as pool:
            upload = Upload(transport=landing.transport, store=landing.store, pool=pool, stop=stop)
            fan_out(
                sources,
                lambda source: work(source, upload),
                name=lambda each: each.node.name,
                on_interrupt=stop.set,
            )
    except errors.CloudtrainError as error:
        with suppress(errors.StoreError):  # report the first error
            ledger.save()
        raise not_landed(error) from error
    ledger.save()


def _take(
    synced: SyncResult,
    source: SyncSource,
    ledger: ManifestWriter,
    console: Console,
    more: Iterable[str] = (),
) -> None:
    ledger.add(synced.files, synced.checkpoint)
    torn = [f"{synced.torn}: not landed as a checkpoint"] if synced.torn else []
    warnings = ledger.warn(source.task, [*torn, *synced.inventory.warnings, *more])
    for warning in warnings[:SHOWN]:
        console.warn(warning)
    if len(warnings) > SHOWN:
        console.warn(f"{source.task}: {len(warnings) - SHOWN} more like these")


def refuse_unsettled(source: SyncSource, synced: SyncResult) -> None:
    """Raise NotLanded if files kept changing or could not be read."""
    unread = list(synced.inventory.unread)
    if synced.unsettled or unread:
        what = [f"{source.task}/{path}" for path in synced.unsettled] + unread
        raise errors.NotLanded(
            f"{source.node.name}: unreadable, or changing while being read: {_names(what)}",
            hint="make them readable, or stop what writes to them; then run the command again",
        )


def _unlanded(
    source: SyncSource, ledger: ManifestWriter, transport: Transport, stage: Stage
) -> list[Pending]:
    name = source.node.name
    stage.node(name, "listing its files")
    inventory = take_inventory(source.node, source.folder, source.wanted, transport)
    landed = known_files(source.task, ledger)
    disks = files_by_disk(source, inventory, ledger, transport)
    left: list[Pending] = []
    for disk, files in [*disks, (source, inventory.over)]:
        due = [file for file in files if is_due(file, landed)]

        def compared(count: int, of: int = len(due)) -> None:
            stage.node(name, f"{count} of {of} files compared by SHA-256")

        same = unchanged(disk, due, landed, transport, Stop(), heard=compared)
        left += [_pending(source, ledger, f.path, f.size) for f in due if f.path not in same]
    count = len(inventory.files)
    stage.done(name, f"{count} file{'s' * (count != 1)}")
    return left + [_pending(source, ledger, path, 0) for path in inventory.unread]


def _pending(source: SyncSource, ledger: ManifestWriter, path: str, size: int) -> Pending:
    return Pending(f"{ledger.manifest.run}/{source.task}/{path}", size)


def unlanded_lines(inventory: Inventory) -> Iterator[str]:
    """A line on what the task made or changed and `artifacts.paths` does not name, and one on what
    exceeds `artifacts.limit`."""
    out = Counter({name: size for name, (_, size) in inventory.left_out.items()})
    if out:
        yield left_out(out)
    if inventory.over:
        over = sum((Counter({top_of(f.path): f.size}) for f in inventory.over), Counter[str]())
        yield f"{sizes(over)}: more than artifacts.limit: not landed"


def by_folder(files: Iterable[Pending]) -> str:
    """`chief0/model/ (5.0 MB), chief0/train.log (2.0 kB)`, the largest first."""
    found = Counter[str]()
    for file in files:
        _, task, path = file.path.split("/", 2)
        found[f"{task}/{top_of(path)}"] += file.size
    return sizes(found)


def _land_here(ledger: ManifestWriter, path: str, source: Path | bytes) -> Artifact | None:
    """Land a local file, or these bytes; None if it has already landed unchanged."""

    def read() -> Iterator[bytes]:
        if isinstance(source, bytes):
            yield source
            return
        try:
            with source.open("rb") as file:
                yield from iter(partial(file.read, 1 << 20), b"")
        except OSError as error:
            raise errors.NotLanded(f"{shown(source)}: {error.strerror or error}") from error

    landed = ledger.manifest.files.get(path)
    if landed is not None and landed.sha256 == sha256_of(read()):
        return None
    stored = ledger.store.upload(ledger.key(ledger.place(path)), read())
    return ledger.landed(path, replace(stored, md5=""))


def _names(paths: Sequence[str]) -> str:
    return some([shown(path) for path in paths], SHOWN)
