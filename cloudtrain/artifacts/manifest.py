"""The list of everything that a run has landed: its content, and its format in a store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cloudtrain.errors import StoreError
from cloudtrain.model import Artifact
from cloudtrain.paths import is_inside
from cloudtrain.protocols import ArtifactStore

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Files of `<task>/<folder>` from one moment."""

    task: str
    folder: str
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Landed files of a run. `complete` once everything has landed after its tasks ended."""

    run: str
    files: Mapping[str, Artifact] = field(default_factory=dict)
    """By path, `<task>/<path in the task's work folder>`. Landed files are never dropped."""
    checkpoint: Checkpoint | None = None
    complete: bool = False
    warnings: tuple[str, ...] = ()

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


def _folders(path: str) -> list[str]:
    return [path[:end] for end, letter in enumerate(path) if letter == "/"]


def read_manifest(store: ArtifactStore, run: str) -> Manifest | None:
    """Read the manifest; None if nothing of the run has landed. Raises StoreError if invalid."""
    name = f"{run}/{NAME}"
    there = any(found.path == name for found in store.list(name))
    return downloaded_manifest(store, run) if there else None


def downloaded_manifest(store: ArtifactStore, run: str) -> Manifest:
    """Download the existing manifest. Raises StoreError."""
    name = f"{run}/{NAME}"
    place = f"{store.uri.rstrip('/')}/{name}"
    try:
        text = b"".join(store.download(name)).decode("ascii")
        return from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{place} is not a manifest that this version can read: {error}",
            hint="move it away to land the run's files again from nodes that still exist",
        ) from error


def write_manifest(store: ArtifactStore, manifest: Manifest) -> None:
    text = json.dumps(to_json(manifest), indent=1)
    store.upload(f"{manifest.run}/{NAME}", [text.encode("ascii")])


def to_json(manifest: Manifest) -> dict[str, Any]:
    checkpoint = manifest.checkpoint
    return {
        "format": FORMAT,
        "run": manifest.run,
        "complete": manifest.complete,
        "warnings": list(manifest.warnings),
        "checkpoint": checkpoint
        and {
            "task": checkpoint.task,
            "folder": checkpoint.folder,
            "paths": list(checkpoint.paths),
        },
        "files": [_file_to_json(manifest.files[path]) for path in sorted(manifest.files)],
    }


def _file_to_json(landed: Artifact) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": landed.path, "size": landed.size, "sha256": landed.sha256}
    if landed.at != landed.path:
        facts["at"] = landed.at
    if landed.md5:
        facts["md5"] = landed.md5
    if landed.mtime:
        facts["mtime"] = landed.mtime
    if landed.stamp:
        facts["stamp"] = landed.stamp
    return facts


def from_json(facts: object) -> Manifest:
    """Parse a manifest. Raises ValueError with the reason: others may write to a store too."""
    top = _object(facts, "it")
    version = _get(top, "format", int)
    if version != FORMAT:
        raise ValueError(f"format {version} is not {FORMAT}")
    files = [_file_from_json(each) for each in _get(top, "files", list)]
    manifest = Manifest(
        run=_path(_get(top, "run", str)),
        files={each.path: each for each in files},
        checkpoint=_checkpoint_from_json(top.get("checkpoint")),
        complete=_get(top, "complete", bool),
        warnings=tuple(str(each) for each in _get(top, "warnings", list)),
    )
    if len(manifest.files) != len(files):
        raise ValueError("a path is listed twice")
    if manifest.checkpoint and not manifest.files.keys() >= set(manifest.checkpoint.paths):
        raise ValueError("its checkpoint names files that are not listed")
    return manifest


def _file_from_json(facts: object) -> Artifact:
    each = _object(facts, "an entry of files")
    path = _path(_get(each, "path", str))
    size, digest = _get(each, "size", int), _get(each, "sha256", str)
    if size < 0 or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"size or sha256 of {path!r} is invalid")
    return Artifact(
        path=path,
        size=size,
        sha256=digest,
        md5=_get(each, "md5", str) if "md5" in each else "",
        at=_path(_get(each, "at", str)) if "at" in each else path,
        mtime=_get(each, "mtime", int) if "mtime" in each else 0,
        stamp=_get(each, "stamp", str) if "stamp" in each else "",
    )


def _checkpoint_from_json(facts: object) -> Checkpoint | None:
    if facts is None:
        return None
    each = _object(facts, "checkpoint")
    task, folder = _path(_get(each, "task", str)), _path(_get(each, "folder", str))
    paths = tuple(_path(str(path)) for path in _get(each, "paths", list))
    if not all(path.startswith(f"{task}/{folder}/") for path in paths):
        raise ValueError("its checkpoint names files outside its folder")
    return Checkpoint(task=task, folder=folder, paths=paths)


def _path(text: str) -> str:
    if not is_inside(text):
        raise ValueError(f"{text!r} is not a path inside the run's folder")
    return text


def _object(facts: object, what: str) -> dict[str, Any]:
    if not isinstance(facts, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004 - a value from a file
    return facts


def _get(facts: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = facts.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is missing or not a {kind.__name__}")
    return value
