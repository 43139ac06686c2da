"""Brings what a run's tasks made from their nodes into the store, and tells what is not there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from posixpath import normpath

from cloudtrain import layout
from cloudtrain.errors import (
    CloudtrainError,
    NodeError,
    NodesError,
    NotLanded,
    StoreError,
    UsageError,
)
from cloudtrain.fan_out import fan_out
from cloudtrain.landing.inventory import SILENCE, Stop, failed, take_inventory
from cloudtrain.landing.ledger import Ledger
from cloudtrain.landing.manifest import Landed, Manifest
from cloudtrain.landing.parcels import may_keep, take_parcels, tell_landed
from cloudtrain.landing.runs import RECORD, index, record_of, store_record
from cloudtrain.landing.sync import Source, Synced, is_due, known_files, sync, unchanged
from cloudtrain.model import ArtifactRules, Node, Run
from cloudtrain.node.patterns import literal, matches
from cloudtrain.paths import is_inside, shown
from cloudtrain.protocols import ArtifactStore, Console, Stage, Transport
from cloudtrain.shell import Command, script

OUTPUT = "output/**"
LOGS = "logs"

UPLOADS = 16
"""Small files that are stored side by side."""

SHOWN = 10
"""Names in one message; the rest is counted."""


def land(
    run: Run,
    nodes: Mapping[str, Node],
    rules: ArtifactRules,
    *,
    checkpoints: str | None,
    transport: Transport,
    store: ArtifactStore,
    console: Console,
    final: bool,
) -> Manifest:
    """Lands what has changed on the tasks' nodes (`nodes`: those there are, by task).

    `final`, once the tasks have ended: every file is compared by its checksum, and all of them
    are in the store as they are on the nodes, or this raises NotLanded or StoreError. Otherwise a
    file that changes just now is left for the next time. What has landed before stays, also of
    nodes that are gone. One at a time for a run.
    """
    patterns, first = wanted(rules), run.tasks[0].name
    sources = [
        source(run.cluster, run.id, task, node, patterns, checkpoints if task == first else None)
        for task, node in nodes.items()
    ]
    if not final:
        return _land(run.id, sources, transport, store, console, _Quiet(), final=False)
    there = tuple(nodes.values())
    take_parcels(run, store, console, there=nodes, nodes=there, transport=transport)
    with console.stage("artifacts", len(sources)) as stage:
        return _land(run.id, sources, transport, store, console, stage, final=True)


def take_checkpoint(
    run: Run,
    nodes: Mapping[str, Node],
    folder: str,
    *,
    transport: Transport,
    store: ArtifactStore,
    console: Console,
) -> Manifest:
    """Lands the first task's checkpoint folder alone, before an attempt starts from it."""
    task = run.tasks[0].name
    held = [source(run.cluster, run.id, task, nodes[task], (), folder)] if task in nodes else []
    return _land(run.id, held, transport, store, console, _Quiet(), final=False)


def missing(manifest: Manifest, rules: ArtifactRules) -> tuple[str, ...]:
    """What `artifacts.require` names and no task has landed."""
    paths = [path.partition("/")[2] for path in manifest.files if not _is_record(path)]
    return tuple(
        pattern for pattern in rules.require if not any(matches(path, pattern) for path in paths)
    )


def land_logs(run: Run, files: Mapping[str, Path], store: ArtifactStore) -> Manifest:
    """Lands logs that are here, by their name (`chief0.attempt-1.log`), and the record of a run
    that has ended."""
    ledger = Ledger(store, run.id)
    was_complete = ledger.manifest.complete
    with ThreadPoolExecutor(UPLOADS) as pool:
        _land_logs(ledger, files, pool)
        ledger.add(filter(None, [_land_here(ledger, RECORD, lambda: iter([record_of(run)]))]))
        ledger.settle(pool)
    if was_complete:
        ledger.complete()
    index(run, store)
    return ledger.manifest


def land_logs_so_far(run: Run, files: Mapping[str, Path], store: ArtifactStore) -> None:
    """The same while the run goes on; its record is for others to see how far it is."""
    ledger = Ledger(store, run.id)
    with ThreadPoolExecutor(UPLOADS) as pool:
        _land_logs(ledger, files, pool)
    ledger.save()
    store_record(run, store, time.time())


def _land_logs(ledger: Ledger, files: Mapping[str, Path], pool: ThreadPoolExecutor) -> None:
    contents: dict[str, Callable[[], Iterator[bytes]]] = {
        f"{LOGS}/{name}": partial(_read, path) for name, path in files.items()
    }
    ledger.add(filter(None, pool.map(partial(_land_here, ledger), contents, contents.values())))


def unlanded(
    nodes: Sequence[Node],
    cluster: str,
    rules: ArtifactRules,
    *,
    checkpoints: str | None,
    transport: Transport,
    store: ArtifactStore,
    stage: Stage | None = None,
) -> tuple[str, ...]:
    """Files of any run on these nodes, `<run>/<task>/<path>`, that the store does not hold as they
    are. Knows the runs from the nodes' disks. Raises NotLanded where a node cannot be asked."""
    try:
        found = fan_out(
            nodes, lambda node: runs_on(node, cluster, transport), name=lambda node: node.name
        )
        runs = sorted({run for each in found for run, _ in each})
        ledgers = dict(zip(runs, (Ledger(store, run) for run in runs), strict=True))
        asked = [
            (run, source(cluster, run, task, node, wanted(rules), folder))
            for node, each in zip(nodes, found, strict=True)
            for run, task in each
            for folder in [checkpoints if holds_checkpoint(task, ledgers[run]) else None]
        ]
        lists = fan_out(
            asked,
            lambda item: _unlanded(item[1], ledgers[item[0]], transport, stage or _Quiet()),
            name=lambda item: item[1].node.name,
        )
    except CloudtrainError as error:
        raise not_landed(error) from error
    return tuple(path for each in lists for path in each)


def holds_checkpoint(task: str, ledger: Ledger) -> bool:
    """Whether it is this task's checkpoint that lands, where the run's record is not at hand."""
    checkpoint = ledger.manifest.checkpoint
    return task == (checkpoint.task if checkpoint else "chief0")


def runs_on(node: Node, cluster: str, transport: Transport) -> tuple[tuple[str, str], ...]:
    """Runs and their tasks that have a work folder on the node."""
    done = transport.run(node, listing_runs(cluster), timeout=SILENCE)
    if done.exit_code != 0:
        raise failed(node, "its runs cannot be listed", done)
    rows = os.fsdecode(done.stdout).split("\0")[:-1]
    parts = [row.split("/") for row in rows]
    if any(len(each) != 3 or not is_inside(f"{each[0]}/{each[1]}") for each in parts):
        raise NodeError(node.name, f"its list of runs makes no sense: {_names(rows)}")
    return tuple((run, task) for run, task, _ in parts)


def listing_runs(cluster: str) -> Command:
    return script(RUNS, layout.runs_folder(cluster))


RUNS = r"""
[ -d "$1" ] || exit 0
cd "$1" || exit
for work in */*/work; do
    if [ -e "$work" ]; then printf '%s\0' "$work"; fi
done
"""


def wanted(rules: ArtifactRules) -> tuple[str, ...]:
    """A task's own output folder always lands: what is only on a node is lost with it."""
    return tuple(dict.fromkeys((*rules.paths, OUTPUT)))


def source(
    cluster: str,
    run: str,
    task: str,
    node: Node,
    patterns: tuple[str, ...],
    checkpoints: str | None,
) -> Source:
    folder = normpath(checkpoints) if checkpoints else None
    if folder is not None and not is_inside(folder):
        raise UsageError(f"train.checkpoints: {checkpoints} is not a folder inside the work folder")
    return Source(
        task=task,
        node=node,
        folder=layout.work_folder(cluster, run, task),
        patterns=(*patterns, f"{literal(folder)}/**") if folder else patterns,
        checkpoint=folder,
    )


def not_landed(error: CloudtrainError) -> CloudtrainError:
    """Every failure in one error whose exit code says that artifacts are not landed."""
    failures = list(error.failures.values()) if isinstance(error, NodesError) else [error]
    kind = StoreError if all(isinstance(each, StoreError) for each in failures) else NotLanded
    if len(failures) == 1 and isinstance(error, kind):
        return error
    hints = [each.hint for each in failures if isinstance(each, CloudtrainError) and each.hint]
    return kind(
        "\n".join(dict.fromkeys(str(each) for each in failures)),
        hint=hints[0] if hints else "the nodes are kept; the same command lands what is missing",
    )


def _land(
    run: str,
    sources: Sequence[Source],
    transport: Transport,
    store: ArtifactStore,
    console: Console,
    stage: Stage,
    *,
    final: bool,
) -> Manifest:
    ledger, stop = Ledger(store, run), Stop()
    if ledger.lost:
        console.warn(f"not in the store any more: {_names(sorted(ledger.lost))}")
    with ThreadPoolExecutor(UPLOADS) as pool:

        def work(source: Source) -> None:
            stage.node(source.node.name, "looking for new files")
            synced = sync(source, ledger, transport, pool, stop, final=final)
            ledger.add(synced.files, synced.checkpoint)
            _report(source, synced, ledger, console, final=final)
            stage.done(source.node.name, _summary(synced))

        try:
            fan_out(sources, work, name=lambda each: each.node.name, on_interrupt=stop.set)
        except CloudtrainError as error:
            with suppress(StoreError):  # the first error is the one to tell
                ledger.save()
            raise not_landed(error) from error
        if final:
            ledger.settle(pool)
            ledger.complete()
    ledger.save()
    if may_keep(store):
        tell_landed(sources, ledger, transport, final=final)
    return ledger.manifest


def _report(
    source: Source, synced: Synced, ledger: Ledger, console: Console, *, final: bool
) -> None:
    inventory = synced.inventory
    warnings = ledger.warn(source.task, inventory.warnings)
    for warning in warnings[:SHOWN]:
        console.warn(warning)
    if len(warnings) > SHOWN:
        console.warn(f"{source.task}: {len(warnings) - SHOWN} more like these")
    if final and synced.detour is not None:
        console.say(f"{source.node.name}: {synced.detour}")
    if final and (synced.unsettled or inventory.unread):
        what = [f"{source.task}/{path}" for path in synced.unsettled] + list(inventory.unread)
        raise NotLanded(
            f"{source.node.name}: cannot be read, or changes while it is read: {_names(what)}",
            hint="make it readable, or end what writes to it; then the same command again lands it",
        )


def _unlanded(source: Source, ledger: Ledger, transport: Transport, stage: Stage) -> list[str]:
    name = source.node.name
    stage.node(name, "listing its files")
    inventory = take_inventory(source.node, source.folder, source.patterns, transport)
    known = known_files(source.task, ledger, by_stamp=False)
    due = [file for file in inventory.files if is_due(file, known)]

    def compared(count: int) -> None:
        stage.node(name, f"{count} of {len(due)} files compared by SHA-256")

    same = unchanged(source, due, known, transport, Stop(), heard=compared)
    stage.done(name, f"{len(inventory.files)} files")
    prefix = f"{ledger.manifest.run}/{source.task}"
    return [f"{prefix}/{file.path}" for file in due if file.path not in same] + [
        f"{prefix}/{line}" for line in inventory.unread
    ]


def _land_here(ledger: Ledger, path: str, read: Callable[[], Iterator[bytes]]) -> Landed | None:
    """None where it has landed as it is."""
    digest = hashlib.sha256()
    for piece in read():
        digest.update(piece)
    known = ledger.manifest.files.get(path)
    if known is not None and known.sha256 == digest.hexdigest():
        return None
    place = ledger.place(path)
    artifact = ledger.store.upload(ledger.key(place), read())
    return Landed(path=path, size=artifact.size, sha256=artifact.sha256, at=place)


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
    except OSError as error:
        raise NotLanded(f"{shown(path)}: {error.strerror or error}") from error


def _is_record(path: str) -> bool:
    return path == RECORD or path.startswith(f"{LOGS}/")


def _summary(synced: Synced) -> str:
    size = float(sum(file.size for file in synced.files))
    units = ["B", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{len(synced.files)} new files, {size:.3g} {units[0]}"


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(shown(path) for path in paths[:SHOWN]) + more


class _Quiet:
    """What is landed beside a training run is not worth a line of its log."""

    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass
