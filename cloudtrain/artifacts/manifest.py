"""The list of everything that a run has landed: its content, and its format in a store."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from cloudtrain.core.codec import PATH, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import shown, sizes
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.node.listing import times
from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.stores.file import batches, most_in_batch, stored_checksums, sync

FORMAT = 1
NAME = "manifest.json"
LOGS = "logs"
RECORDS = frozenset({"run.json", "report.html", "report.json"})
"""Names of what this machine says about a run, beside its logs."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Files of `<task>/<folder>` from one moment."""

    task: str = field(metadata=PATH)
    folder: str = field(metadata=PATH)
    paths: tuple[str, ...] = field(metadata=PATH)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Landed files of a run. `complete` once everything has landed after its tasks ended."""

    run: str
    files: Mapping[str, Artifact] = field(default_factory=dict)
    """By path, `<task>/<path in the task's work folder>`. Landed files are never dropped."""
    checkpoint: Checkpoint | None = None
    complete: bool = False
    warnings: tuple[str, ...] = ()
    landed_attempts: Mapping[str, int] = field(default_factory=dict)
    """Task → its attempt after whose end all of its files have landed."""

    def with_files(self, landed: Iterable[Artifact]) -> Manifest:
        """Add files. One that takes the place of a folder, or the reverse, replaces it."""
        new = {each.path: each for each in landed}
        folders = {folder for path in new for folder in _folders(path)}
        kept = {
            path: each
            for path, each in self.files.items()
            if path not in folders and new.keys().isdisjoint(_folders(path))
        }
        return self._holding({**kept, **new})

    def with_checkpoint(self, checkpoint: Checkpoint) -> Manifest:
        """Set the checkpoint; other files in its folder are dropped."""
        prefix, paths = f"{checkpoint.task}/{checkpoint.folder}/", set(checkpoint.paths)
        files = {
            path: each
            for path, each in self.files.items()
            if path in paths or not path.startswith(prefix)
        }
        return replace(self, files=files, checkpoint=checkpoint)

    def without(self, paths: Iterable[str]) -> Manifest:
        gone = set(paths)
        return self._holding({path: f for path, f in self.files.items() if path not in gone})

    def _holding(self, files: Mapping[str, Artifact]) -> Manifest:
        """Set the files; a checkpoint that lacks one of its files is dropped."""
        whole = self.checkpoint is not None and files.keys() >= set(self.checkpoint.paths)
        return replace(
            self,
            files=files,
            checkpoint=self.checkpoint if whole else None,
            complete=self.complete and files == self.files,
        )

    def task_files(self, task: str) -> dict[str, Artifact]:
        """The task's files, by path in its work folder."""
        prefix = f"{task}/"
        return {
            path[len(prefix) :]: each
            for path, each in self.files.items()
            if path.startswith(prefix)
        }


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A manifest as JSON has it."""

    format: Literal[1]
    run: str = field(metadata=PATH)
    complete: bool
    warnings: tuple[str, ...]
    checkpoint: Checkpoint | None = None
    files: tuple[Artifact, ...]
    landed_attempts: Mapping[str, int] = field(default_factory=dict)


def left_out(found: Counter[str]) -> str:
    """A line on what a task made or changed and `artifacts.paths` does not name, by folder."""
    return f"{sizes(found)}: made or changed, but not in artifacts.paths: not landed"


def is_record(path: str) -> bool:
    """True for what this machine says about a run, False for a file of a task."""
    return "/" not in path or path.startswith(f"{LOGS}/")


def _folders(path: str) -> list[str]:
    return [path[:end] for end, letter in enumerate(path) if letter == "/"]


def read_manifest(store: ArtifactStore, run: str) -> Manifest | None:
    """Read the manifest; None if nothing of the run has landed. Raises StoreError if invalid."""
    data = _stored(store, run)
    return None if data is None else parsed(data, store, run)


def _stored(store: ArtifactStore, run: str) -> bytes | None:
    name = f"{run}/{NAME}"
    exists = any(found.path == name for found in store.list(name))
    return b"".join(store.download(name)) if exists else None


def parsed(data: bytes, store: ArtifactStore, run: str) -> Manifest:
    """The manifest in these bytes of the store. Raises StoreError."""
    uri = f"{store.uri.rstrip('/')}/{run}/{NAME}"
    try:
        return from_json(json.loads(data.decode("ascii")))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{uri} is not a manifest that this version can read: {error}",
            hint="move it away to land the run's files again from nodes that still exist",
        ) from error


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest as JSON, one line for each file. No `indent=`: with it json encodes in
    Python, which takes seconds for 10,000 files."""
    document = to_json(manifest)
    files = ",\n  ".join(map(json.dumps, document.pop("files")))
    rest = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in document.items())
    return f'{{\n{rest} "files": [\n  {files}\n ]\n}}'.encode("ascii")


def to_json(manifest: Manifest) -> dict[str, Any]:
    checkpoint = manifest.checkpoint
    return {
        "format": FORMAT,
        "run": manifest.run,
        "complete": manifest.complete,
        "warnings": list(manifest.warnings),
        "checkpoint": checkpoint and asdict(checkpoint),
        "landed_attempts": dict(manifest.landed_attempts),
        "files": [_file_to_json(manifest.files[path]) for path in sorted(manifest.files)],
    }


def _file_to_json(file: Artifact) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": file.path, "size": file.size, "sha256": file.sha256}
    if file.at != file.path:
        facts["at"] = file.at
    for key in ("md5", "version", "mtime", "stamp"):
        if value := getattr(file, key):
            facts[key] = value
    return facts


def from_json(data: object) -> Manifest:
    """Raises ValueError with the reason: others may write to a store too."""
    record = decode(_Record, data)
    files, checkpoint = {file.path: file for file in record.files}, record.checkpoint
    if len(files) != len(record.files):
        raise ValueError("a path is listed twice")
    if checkpoint is not None:
        folder = f"{checkpoint.task}/{checkpoint.folder}/"
        if not all(path.startswith(folder) for path in checkpoint.paths):
            raise ValueError("its checkpoint names files outside its folder")
        if not files.keys() >= set(checkpoint.paths):
            raise ValueError("its checkpoint names files that are not listed")
    return Manifest(
        run=record.run,
        files=files,
        checkpoint=checkpoint,
        complete=record.complete,
        warnings=record.warnings,
        landed_attempts=record.landed_attempts,
    )


# ── Manifests that this machine has written: any other proves nothing of what has landed ──────
# Before nodes are deleted their files are compared with the manifest, and its with the store.
# Whoever may write to the store could write both. So this machine remembers what it wrote, and of a
# manifest that it did not write it reads every byte that the manifest lists.


KEPT = 4
"""Digests of a run's last manifests: one that was not stored after all leaves the one before it."""


@dataclass(frozen=True, kw_only=True)
class OwnManifests:
    """Their digests, in a folder of a cluster's record."""

    folder: Path

    def has(self, run: str, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() in self._known(run)

    def about_to_write(self, run: str, data: bytes) -> None:
        """Record it before the store has it. One that a full disk does not take is read whole."""
        digests = [*self._known(run), hashlib.sha256(data).hexdigest()][-KEPT:]
        with suppress(CloudtrainError):
            make_folder(self.folder)
            write_whole(self.folder / run, "\n".join(digests).encode("ascii"))

    def _known(self, run: str) -> list[str]:
        try:
            return (self.folder / run).read_text("ascii", "replace").split()
        except OSError:
            return []


def read_to_judge(store: ArtifactStore, run: str, own: OwnManifests) -> tuple[Manifest, bool]:
    """The stored manifest, empty if there is none, and whether this machine wrote it. Another one
    says of no task that all its files have landed. Raises StoreError."""
    data = _stored(store, run)
    if data is None:
        return Manifest(run=run), True
    manifest, is_own = parsed(data, store, run), own.has(run, data)
    return (manifest if is_own else replace(manifest, landed_attempts={})), is_own


def unproven(manifest: Manifest) -> Manifest:
    """The same with nothing that would save a look at the nodes' files and the store's."""
    files = {
        path: replace(each, md5="", version="", mtime=0, stamp="")
        for path, each in manifest.files.items()
    }
    return replace(manifest, files=files, complete=False, landed_attempts={})


# ── Writes a run's manifest while files land, and checks it against what the store holds ──────


BESIDE = "again"
"""Staging prefix of changed files while the manifest lists the old version at its own place. Never
the name of a task: those end with their index."""

LOST = "attempt "
"""Beginning of a task's warning about what was lost, which stays."""

READS = 8
"""Batches of files that are read side by side to compare them."""

SAVE_EVERY = 10.0
"""Seconds: files in a saved manifest do not have to land again after this process is killed."""


class ManifestWriter:
    """Manifest of a run that is being written. `manifest` is what has landed so far, without files
    that the store lost. For many threads, but one process: the caller holds the cluster's lock."""

    def __init__(
        self,
        store: ArtifactStore,
        run: str,
        *,
        certain: bool = False,
        own: OwnManifests | None = None,
    ) -> None:
        """`certain`: read what the store's listing does not prove to be what has landed. `own`:
        what this machine wrote; all that another manifest lists is read."""
        self.store, self._own = store, own
        held = _held(store, run)
        self._saved, self.is_own = Manifest(run=run), True
        if NAME in held:
            data = b"".join(store.download(f"{run}/{NAME}"))
            self._saved = parsed(data, store, run)
            self.is_own = own is None or own.has(run, data)
        listed = self._saved if self.is_own else unproven(self._saved)
        certain = certain or not self.is_own
        self.lost = frozenset(_not_held(store, listed, held, certain=certain))
        if self.lost:  # or landed since it was listed
            held = _held(store, run)
            self.lost = frozenset(_not_held(store, listed, held, certain=certain))
        self.manifest = listed.without(self.lost)
        self.unnamed = tuple(held[place] for place in held.keys() - _places(self._saved))
        """Other objects of the run, such as spool archives."""
        self._lock = threading.Lock()
        self._next_save = time.monotonic() + SAVE_EVERY

    def place(self, path: str) -> str:
        """Path for a new version: never one that the saved manifest uses."""
        old = self._saved.files.get(path)
        is_taken = old is not None and old.at == path and path not in self.lost
        return f"{BESIDE}/{path}" if is_taken else path

    def key(self, place: str) -> str:
        """Path in the store of a place below the run's prefix."""
        return f"{self.manifest.run}/{place}"

    def landed(self, path: str, stored: Artifact, stamp: str = "") -> Artifact:
        """Entry of `path` in the manifest, for a file stored at its place and its node's stamp."""
        return Artifact(  # without `replace`, which takes three times as long
            path=path,
            size=stored.size,
            sha256=stored.sha256,
            md5=stored.md5,
            version=stored.version,
            at=self.place(path),
            mtime=times(stamp)[0],
            stamp=stamp,
        )

    def add(self, files: Iterable[Artifact], checkpoint: Checkpoint | None = None) -> None:
        """Add landed files. A checkpoint replaces its folder: other files in it are dropped."""
        with self._lock:
            new = self.manifest.with_files(files)
            if checkpoint is not None:
                new = new.with_checkpoint(checkpoint)
            self.manifest = new
            if time.monotonic() >= self._next_save:
                self._save()

    def warn(self, task: str, warnings: Iterable[str]) -> tuple[str, ...]:
        """Replace a task's warnings; returns those that are new."""
        with self._lock:
            own, old = f"{task}/", self.manifest.warnings
            given = tuple(own + warning for warning in warnings)
            kept = (w for w in old if w.startswith(own + LOST) or not w.startswith(own))
            self.manifest = replace(self.manifest, warnings=(*kept, *given))
            known = frozenset(old)
            return tuple(warning for warning in given if warning not in known)

    def lose(self, task: str, attempt: int, what: str) -> str:
        """Record what ended with an attempt's node; returns the warning, if there is one."""
        with self._lock:
            start = f"{task}/{LOST}{attempt}: "
            others = tuple(w for w in self.manifest.warnings if not w.startswith(start))
            new = (f"{start}{what}: lost with its node",) if what else ()
            self.manifest = replace(self.manifest, warnings=(*others, *new))
            return "".join(new)

    def landed_all(self, task: str, attempt: int) -> None:
        """Record that all files of a task have landed after the end of this attempt."""
        with self._lock:
            landed = {**self.manifest.landed_attempts, task: attempt}
            self.manifest = replace(self.manifest, landed_attempts=landed)

    def save(self) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        if self.manifest != self._saved:
            data = to_bytes(self.manifest)
            sync(self.store)  # before a manifest names it
            if self._own is not None:
                self._own.about_to_write(self.manifest.run, data)
            self.store.upload(f"{self.manifest.run}/{NAME}", [data])
            old, self._saved = self._saved, self.manifest
            self._clear(_places(old) - _places(self.manifest))
        self._next_save = time.monotonic() + SAVE_EVERY

    def _clear(self, places: Iterable[str]) -> None:
        """Delete files of ours that no manifest lists any more: they would be billed forever."""
        for place in places:
            with suppress(CloudtrainError):  # without the right to delete, it stays
                self.store.delete(self.key(place))

    def settle(self, pool: ThreadPoolExecutor, *, complete: bool = False) -> None:
        """Promote every file to its own place, check them, and save. `complete`: nothing more is to
        land. Raises StoreError."""
        held = self._promote(pool)
        before = _places(self._saved)
        self.manifest = replace(self.manifest, complete=complete or self.manifest.complete)
        self.save()
        folders = [BESIDE]  # to which only we write: of a killed process
        if self.manifest.checkpoint is not None:
            folders.append(f"{self.manifest.checkpoint.task}/{self.manifest.checkpoint.folder}")
        left = {each for each in held if any(each.startswith(f"{folder}/") for folder in folders)}
        self._clear(left - _places(self.manifest) - before)

    def _promote(self, pool: ThreadPoolExecutor) -> Mapping[str, Artifact]:
        """Copy staged files to their own places; returns the store's files by place."""

        def promoted(landed: Artifact) -> Artifact:
            self.store.copy(self.key(landed.at), self.key(landed.path))
            return replace(landed, at=landed.path, version="")

        aside = [each for each in self.manifest.files.values() if each.at != each.path]
        if aside:  # never overwrite a place that a saved manifest lists
            self.save()
            self.add(pool.map(promoted, aside))
        held = _held(self.store, self.manifest.run, _places(self.manifest))
        lost = _not_held(self.store, self.manifest, held)
        if lost:
            raise StoreError(
                f"{self.store.uri}: uploaded files are missing, or were altered: "
                + ", ".join(shown(path) for path in lost[:5]),
                hint="check who deletes or writes them; run the command again to upload them again",
            )
        self.add(  # with the version that the store lists, if it lists nothing better to compare
            replace(each, version=held[each.at].version)
            for path, each in self.manifest.files.items()
            if not (each.version or is_record(path) or (each.md5 and held[each.at].md5))
            and held[each.at].version
        )
        return held


def _places(manifest: Manifest) -> set[str]:
    return {each.at for each in manifest.files.values()}


def _held(store: ArtifactStore, run: str, places: Iterable[str] = ()) -> dict[str, Artifact]:
    """The store's current files of a run, by place; `places`: those that are expected."""
    prefix, known = f"{run}/", [f"{run}/{place}" for place in places]
    return {found.path[len(prefix) :]: found for found in store.list(prefix, known)}


def _not_held(
    store: ArtifactStore, manifest: Manifest, held: Mapping[str, Artifact], *, certain: bool = False
) -> list[str]:
    """Paths in the manifest that the store lacks, or has in a different state."""

    def altered(files: Sequence[Artifact]) -> list[str]:  # by their bytes
        sums = stored_checksums(store, [f"{manifest.run}/{landed.at}" for landed in files])
        return [each.path for each, found in zip(files, sums, strict=True) if found != each.sha256]

    lost, to_read = [], []
    for path, each in manifest.files.items():
        same = _is_listed(each, held.get(each.at))
        if same is None and (certain or each.version) and not is_record(path):
            to_read.append(each)
        elif same is False:
            lost.append(path)
        elif same is None and each.md5 and held[each.at].md5:
            to_read.append(each)
    if to_read:
        to_read.sort(key=lambda each: each.at)
        with ThreadPoolExecutor(READS) as pool:
            found = pool.map(altered, batches(to_read, most_in_batch(store)))
            lost += chain.from_iterable(found)
    return lost


def _is_listed(landed: Artifact, held: Artifact | None) -> bool | None:
    """True if the listing shows that it is what has landed, None if only its bytes can. The MD5
    that a store lists may be something else, as for S3 objects encrypted with a key of the user's
    own; a version also changes with another description of the same bytes."""
    if held is None or held.size != landed.size:
        return False
    if landed.version and landed.version == held.version:
        return True
    return True if landed.md5 and landed.md5 == held.md5 else None
