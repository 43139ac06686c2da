"""The list of everything that a run has landed: its content, and its format in a store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cloudtrain.core.codec import PATH, decode
from cloudtrain.core.errors import CloudtrainError, StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state.files import make_folder, write_whole

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
        return _digest(data) in self._known(run)

    def about_to_write(self, run: str, data: bytes) -> None:
        """Record it before the store has it. One that a full disk does not take is read whole."""
        digests = [*self._known(run), _digest(data)][-KEPT:]
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


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
