"""Decides which files of a cluster's runs land, and syncs one task's until the store has them."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from cloudtrain.artifacts.checkpoint_parts import Parts, PartSource, find_parts
from cloudtrain.artifacts.inventory import Inventory, Stop, Wanted, checksums, take_inventory
from cloudtrain.artifacts.manifest import Checkpoint, ManifestWriter, OwnManifests
from cloudtrain.artifacts.uploads import Upload, store_files
from cloudtrain.core import errors, paths
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import AUTO, Artifact, ArtifactRules, Node
from cloudtrain.core.paths import is_inside
from cloudtrain.core.protocols import ArtifactStore, Console, Transport
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import script
from cloudtrain.node.listing import File, literal, times
from cloudtrain.state import Records

OUTPUT = "output/**"


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Everything that landing needs to know about one cluster."""

    cluster: str
    rules: ArtifactRules
    checkpoints: str | None
    """`train.checkpoints`; it lands from a run's first task."""
    transport: Transport
    store: ArtifactStore
    console: Console
    logs: Callable[[str, str, int], Path] | None = None
    """Path of a local log, by run, task and attempt: a spool archive may have more of it."""
    home: bool = False
    """True if a node's home is its own, so that what a task makes or changes there lands too."""
    own: OwnManifests | None = None
    """The manifests that this machine has written."""
    ends: bool = False
    """True if agents may end their nodes once everything has landed: they are told of it."""

    def sources(self, run: Run, nodes: Mapping[str, Node]) -> list[SyncSource]:
        """Sync sources of a run; `nodes`: existing nodes by task."""
        first = run.tasks[0].name
        parts = self.parts(run.id, nodes)
        return [self.source(run.id, task, node, first, parts) for task, node in nodes.items()]

    def parts(self, run: str, nodes: Mapping[str, Node]) -> tuple[PartSource, ...]:
        """Tasks that write parts of a checkpoint; `nodes` by task."""
        return tuple(
            PartSource(task=task, node=node, folder=paths.work_folder(self.cluster, run, task))
            for task, node in nodes.items()
            if node.role == "ps"
        )

    def source(
        self, run: str, task: str, node: Node, first: str, parts: tuple[PartSource, ...] = ()
    ) -> SyncSource:
        """Sync source of one task; `first`: name of the run's first task."""
        folder = self.checkpoint_folder if task == first else None
        checkpoint = (f"{literal(folder)}/**",) if folder else ()
        return SyncSource(
            task=task,
            node=node,
            folder=paths.work_folder(self.cluster, run, task),
            wanted=wanted(self.rules, checkpoint, home=self.home),
            checkpoint=folder,
            parts=parts if folder else (),
        )

    def checkpoint_source(self, run: Run, nodes: Mapping[str, Node]) -> SyncSource | None:
        """The first task's checkpoint folder alone; None if its node is not among `nodes`."""
        first, folder = run.tasks[0].name, self.checkpoint_folder
        assert folder is not None, "only called if train.checkpoints is set"
        if first not in nodes:
            return None
        whole = self.source(run.id, first, nodes[first], first, self.parts(run.id, nodes))
        return replace(whole, wanted=Wanted(patterns=(f"{literal(folder)}/**",)))

    @property
    def checkpoint_folder(self) -> str | None:
        folder = normpath(self.checkpoints) if self.checkpoints else None
        if folder is not None and not is_inside(folder):
            raise errors.UsageError(
                f"train.checkpoints: {self.checkpoints} is not a folder inside the work folder"
            )
        return folder


def own_manifests(records: Records) -> OwnManifests:
    return OwnManifests(folder=records.folder / "manifests")


def wanted(rules: ArtifactRules, more: tuple[str, ...] = (), *, home: bool = False) -> Wanted:
    """Files that land by these rules; a task's output folder always does."""
    is_auto = AUTO in rules.paths
    named = (path for path in rules.paths if path != AUTO)
    return Wanted(
        patterns=tuple(dict.fromkeys((*named, OUTPUT, *more))),
        limit=rules.limit if is_auto else None,
        sums=not is_auto,
        home=home,
    )


# ── one task's files, until the store has them as they are ──────────────────────


ROUNDS = 3
"""Retries of a file that changes while it is read."""


@dataclass(frozen=True, kw_only=True)
class SyncSource:
    """Files of one task to land. `checkpoint` is its checkpoint folder, if that lands too."""

    task: str
    node: Node
    folder: str
    wanted: Wanted
    checkpoint: str | None = None
    parts: tuple[PartSource, ...] = ()
    """Tasks on whose disks parts of the checkpoint may be: the ps."""

    def is_checkpoint(self, path: str) -> bool:
        return self.checkpoint is not None and path.startswith(f"{self.checkpoint}/")


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """Result of a sync. `files` landed as they were on the node; `unsettled` kept changing."""

    files: tuple[Artifact, ...]
    checkpoint: Checkpoint | None
    unsettled: tuple[str, ...]
    inventory: Inventory
    torn: str | None = None
    """Why the checkpoint did not land: parts of it are on no disk."""
    detour: str | None = None
    """Why files came through this machine although their node could have uploaded them."""


def sync_so_far(source: SyncSource, ledger: ManifestWriter, upload: Upload) -> SyncResult:
    """Sync what has changed since the ledger's manifest. Of files that change meanwhile, only those
    of the checkpoint are retried: they are useless unless they belong together."""
    known = ledger.manifest.task_files(source.task)
    return _sync(source, ledger, upload, known, again=source.is_checkpoint)


def sync_all(source: SyncSource, ledger: ManifestWriter, upload: Upload) -> SyncResult:
    """Sync everything: files with an unchanged stamp are also compared by checksum, and rounds
    repeat until nothing changes any more.

    If a connection breaks, everything is compared once more, as soon as the node answers again (the
    transport waits for it): nothing of it is harmed by being done twice."""

    def once() -> SyncResult:
        known = known_files(source.task, ledger)
        return _sync(source, ledger, upload, known, again=lambda path: True)

    try:
        return once()
    except errors.NodeUnreachable:
        return once()


def _sync(
    source: SyncSource,
    ledger: ManifestWriter,
    upload: Upload,
    known: dict[str, Artifact],
    *,
    again: Callable[[str], bool],
) -> SyncResult:
    """Sync one task's files in rounds; `again(path)`: retry it if it changes while being read."""
    carrier = _Carrier(source, ledger, upload)
    fresh: dict[str, Artifact] = {}
    for number in range(ROUNDS + 1):
        inventory = take_inventory(source.node, source.folder, source.wanted, upload.transport)
        due = [file for file in inventory.files if is_due(file, known)]
        if number > 0:
            due = [file for file in due if again(file.path)]
        if not due or number == ROUNDS:
            break
        landed = carrier.bring(due, known)
        for file in due:  # this round may have overwritten what an earlier one stored
            if file.path not in landed and file.path in fresh:
                del fresh[file.path], known[file.path]
        known.update(landed)
        fresh.update(landed)
    unsettled = tuple(file.path for file in due)
    synced = replace(_outcome(source, inventory, fresh, unsettled), detour=carrier.detour)
    return _with_parts(source, synced, ledger, upload, known) if source.parts else synced


def _with_parts(
    source: SyncSource,
    synced: SyncResult,
    ledger: ManifestWriter,
    upload: Upload,
    known: Mapping[str, Artifact],
) -> SyncResult:
    """Add what the ps hold of the checkpoint. A torn one is none: its files land as any others, and
    the last complete one stays, with the `checkpoint` file that names it."""
    checkpoint = synced.checkpoint
    if checkpoint is None:
        return synced
    parts = _parts(source, synced.inventory, upload.transport)
    if parts.torn is not None:
        kept = _torn_states(source, parts, ledger)
        files = tuple(file for file in synced.files if file.path not in kept)
        return replace(synced, files=files, checkpoint=None, torn=parts.torn)
    landed: dict[str, Artifact] = {}
    settled = all(known[path].sha256 == sha256 for path, sha256 in parts.states.items())
    for part, files_there in parts.files.values() if settled else ():
        due = [file for file in files_there if is_due(file, known)]
        landed |= _Carrier(_on_disk(source, part), ledger, upload).bring(due, known)
        settled = settled and all(file.path in landed for file in due)
    if not settled:  # there is a newer one since: left for the next time
        inside = f"{checkpoint.task}/{checkpoint.folder}/"
        others = (file for file in synced.files if not file.path.startswith(inside))
        return replace(synced, files=tuple(others), checkpoint=None)
    found = {f"{source.task}/{file.path}" for _, files in parts.files.values() for file in files}
    whole = replace(checkpoint, paths=tuple(sorted({*checkpoint.paths, *found})))
    return replace(synced, files=(*synced.files, *landed.values()), checkpoint=whole)


def files_by_disk(
    source: SyncSource, inventory: Inventory, ledger: ManifestWriter, transport: Transport
) -> list[tuple[SyncSource, tuple[File, ...]]]:
    """A task's files to land by the disk that has them: its own, or that of a ps with parts."""
    if not source.parts:
        return [(source, inventory.files)]
    parts = _parts(source, inventory, transport)
    if parts.torn is not None:
        kept = _torn_states(source, parts, ledger)
        own = (file for file in inventory.files if f"{source.task}/{file.path}" not in kept)
        return [(source, tuple(own))]
    others = [(_on_disk(source, part), files) for part, files in parts.files.values()]
    return [(source, inventory.files), *others]


def _parts(source: SyncSource, inventory: Inventory, transport: Transport) -> Parts:
    held = [file.path for file in inventory.files if source.is_checkpoint(file.path)]
    return find_parts(source.node, source.folder, held, source.parts, transport)


def _on_disk(source: SyncSource, part: PartSource) -> SyncSource:
    return replace(source, node=part.node, folder=part.folder, parts=())


def _torn_states(source: SyncSource, parts: Parts, ledger: ManifestWriter) -> set[str]:
    """`checkpoint` files that name a torn checkpoint, if they would replace a complete one."""
    if ledger.manifest.checkpoint is None:
        return set()
    return {f"{source.task}/{path}" for path in parts.states}


def known_files(task: str, ledger: ManifestWriter) -> dict[str, Artifact]:
    """Landed files, by path in the work folder."""
    known = ledger.manifest.task_files(task)
    if ledger.manifest.complete:
        return known
    return {path: replace(landed, stamp="") for path, landed in known.items()}


def is_due(file: File, known: Mapping[str, Artifact]) -> bool:
    landed = known.get(file.path)
    return landed is None or (landed.size, landed.stamp) != (file.size, file.stamp)


def unchanged(
    source: SyncSource,
    due: Iterable[File],
    known: Mapping[str, Artifact],
    transport: Transport,
    stop: Stop,
    heard: Callable[[int], None] = lambda count: None,
) -> dict[str, Artifact]:
    """Files that only look changed: touched, or copied to a replacement node. `heard` is called
    with the number of files compared so far."""
    alike = [file for file in due if file.path in known and known[file.path].size == file.size]
    names = dict.fromkeys(file.source for file in alike)
    sums = checksums(source.node, source.folder, names, transport, stop, heard)
    return {
        file.path: replace(known[file.path], mtime=times(file.stamp)[0], stamp=file.stamp)
        for file in alike
        if known[file.path].sha256 == sums.get(file.source)
    }


def _outcome(
    source: SyncSource,
    inventory: Inventory,
    fresh: Mapping[str, Artifact],
    unsettled: tuple[str, ...],
) -> SyncResult:
    """Result; an unsettled checkpoint keeps its landed version, an empty folder is none."""
    paths = tuple(f.path for f in inventory.files if source.is_checkpoint(f.path))
    settled = not any(source.is_checkpoint(path) for path in unsettled)
    checkpoint = None
    if paths and settled and source.checkpoint is not None:
        checkpoint = Checkpoint(
            task=source.task,
            folder=source.checkpoint,
            paths=tuple(f"{source.task}/{path}" for path in paths),
        )
    files = [
        landed
        for path, landed in fresh.items()
        if checkpoint is not None or not source.is_checkpoint(path)
    ]
    return SyncResult(
        files=tuple(files), checkpoint=checkpoint, unsettled=unsettled, inventory=inventory
    )


class _Carrier:
    def __init__(self, source: SyncSource, ledger: ManifestWriter, upload: Upload) -> None:
        self._source, self._ledger, self._upload = source, ledger, upload
        self.detour: str | None = None

    def bring(self, due: Sequence[File], known: Mapping[str, Artifact]) -> dict[str, Artifact]:
        """Upload `due`; returns landed files by path, without changing or unreadable ones."""
        landed = unchanged(self._source, due, known, self._upload.transport, self._upload.stop)
        names: dict[str, list[File]] = defaultdict(list)
        for file in due:  # one with several names, by links, is uploaded once
            if file.path not in landed:
                names[file.source].append(file)
        firsts = {self._key(files[0]): files[0] for files in names.values()}
        node, folder = self._source.node, self._source.folder
        stored, detour = store_files(node, folder, firsts, self._upload)
        self.detour = detour or self.detour
        for source, artifact in stored.items():
            first, *others = names[source]
            landed[first.path] = self._landed(first, artifact)
            for other in others:
                self._ledger.store.copy(artifact.path, self._key(other))
                landed[other.path] = self._landed(other, artifact)
        return landed

    def _key(self, file: File) -> str:
        return self._ledger.key(self._ledger.place(f"{self._source.task}/{file.path}"))

    def _landed(self, file: File, artifact: Artifact) -> Artifact:
        return self._ledger.landed(f"{self._source.task}/{file.path}", artifact, file.stamp)


# ── Proves that a node's files reach the store: one small file, uploaded as artifacts are ─────


def prove_upload(
    node: Node, folder: str, store: ArtifactStore, key: str, transport: Transport
) -> str:
    """Have a node write a file in `folder` and upload it as `key`; read and delete it from here.
    Returns how it came, and where it is if it cannot be deleted. Raises StoreError, NodeError."""
    word = secrets.token_hex(32)
    done = transport.run(node, script('mkdir -p "$1" && printf %s "$2" >"$1/proof"', folder, word))
    if done.exit_code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise errors.StepFailed(node.name, f"cannot write in {folder}: {said}")
    listed = take_inventory(node, folder, Wanted(patterns=("proof",)), transport)
    try:
        with ThreadPoolExecutor(1) as pool:
            upload = Upload(transport=transport, store=store, pool=pool)
            arrived, detour = store_files(node, folder, {key: listed.files[0]}, upload)
        if not arrived or b"".join(store.download(key)) != word.encode():
            raise errors.StoreError(f"{store.uri}/{key} is not what {node.name} uploaded")
    finally:
        try:
            store.delete(key)
            end = "deleted"
        except errors.CloudtrainError as error:
            end = f"left as {store.uri}/{key}: {error.message}"
    signed = "by the node, with a request signed here"
    way = detour or (signed if store.presigner else "through this machine")
    return f"{len(word)} bytes {way}; read back and {end}"
