"""Downloads a run's artifacts from the store, each verified."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain import moments
from cloudtrain.artifacts.fetched import FetchedFolder
from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.errors import CloudtrainError, NodesError, StoreError
from cloudtrain.model import Artifact
from cloudtrain.parallel import fan_out
from cloudtrain.paths import shown
from cloudtrain.protocols import ArtifactStore, Console
from cloudtrain.stores.file import PARTIAL, FileStore

SIDE_BY_SIDE = 8

SHOWN = 8
"""Failures listed in one message; the rest is counted."""


def download_run(
    run: str,
    store: ArtifactStore,
    destination: Path,
    console: Console,
    *,
    tasks: Collection[str],
    overwrite: bool = False,
) -> Manifest:
    """Download everything that the run's manifest lists to `destination`, as `<task>/<path>`.

    Files that are already there as landed are skipped, so that a repeated call continues an
    interrupted one. Raises StoreError for each file that differs from what landed, whose name is of
    none of the run's `tasks`, or in whose place is one that no earlier fetch wrote (`overwrite`
    replaces it).
    """
    manifest = read_manifest(store, run)
    if manifest is None:
        raise StoreError(
            f"{store.uri}: nothing of run {run} has landed",
            hint="`cloudtrain status` lists the runs; a running one lands at its end, or every "
            "`artifacts.every`",
        )
    if not manifest.complete:
        console.warn(f"run {run} has not landed completely: downloading what has landed so far")
    here, began = FileStore(destination.absolute().as_uri()), moments.wall()
    groups = by_folder(manifest)
    place = FetchedFolder(here.root, tasks, overwrite=overwrite)
    place.begin(manifest.files)
    failures: list[CloudtrainError] = []
    with console.stage("fetch", len(groups)) as stage:
        for folder, files in groups.items():
            try:
                new = sum(download_files(run, files, store, here, place))
                stage.done(folder, f"{new} new of {len(files)}")
            except CloudtrainError as error:
                failures.append(error)
    with suppress(OSError):
        here.clear(began)  # partial files of a killed fetch
        (here.root / PARTIAL).rmdir()
    if failures:
        raise all_of(failures)
    console.say(f"{len(manifest.files)} files of run {run} are in {shown(here.root)}, verified")
    return manifest


def by_folder(manifest: Manifest) -> Mapping[str, list[Artifact]]:
    groups: dict[str, list[Artifact]] = defaultdict(list)
    for path in sorted(manifest.files):
        groups[path.partition("/")[0]].append(manifest.files[path])
    return groups


def download_files(
    run: str,
    files: Sequence[Artifact],
    store: ArtifactStore,
    here: FileStore,
    place: FetchedFolder,
) -> list[bool]:
    """Download files; returns for each whether it had to be downloaded."""

    def work(landed: Artifact) -> bool:
        place.refuse(landed.path)
        if is_here(landed, here):
            return False
        place.refuse_to_replace(landed.path)
        here.upload(landed.path, verified(landed, run, store))
        return True

    return fan_out(files, work, name=lambda each: shown(each.path), workers=SIDE_BY_SIDE)


def all_of(errors: Sequence[CloudtrainError]) -> StoreError:
    lines = [
        str(failure)
        for error in errors
        for failure in (error.failures.values() if isinstance(error, NodesError) else [error])
    ]
    more = [f"and {len(lines) - SHOWN} more files"] if len(lines) > SHOWN else []
    return StoreError("\n".join(lines[:SHOWN] + more), hint=errors[0].hint)


def is_here(landed: Artifact, here: FileStore) -> bool:
    # An unreadable file is downloaded again, which reports why.
    with suppress(OSError, CloudtrainError):
        if (here.root / landed.path).stat().st_size == landed.size:
            return digest_of(here.download(landed.path)) == landed.sha256
    return False


def digest_of(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def verified(landed: Artifact, run: str, store: ArtifactStore) -> Iterator[bytes]:
    """The file's bytes; raises StoreError after the last of them if they are wrong, so that the
    caller discards them.
    """
    digest, size = hashlib.sha256(), 0
    for piece in store.download(f"{run}/{landed.at}"):
        digest.update(piece)
        size += len(piece)
        yield piece
    if (size, digest.hexdigest()) != (landed.size, landed.sha256):
        raise StoreError(
            f"{store.uri.rstrip('/')}/{run}/{shown(landed.at)} differs from what landed: "
            f"{size} of {landed.size} bytes, or another SHA-256",
            hint="the file was changed or damaged in the store; the others have been downloaded",
        )
