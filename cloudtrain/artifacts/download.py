"""Downloads a run's artifacts from the store, each verified."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.artifacts.manifest import LOGS, RECORDS, Manifest, read_manifest
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, NodesError, StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import FETCHED, FETCHED_FILES, shown
from cloudtrain.core.protocols import ArtifactStore, Console
from cloudtrain.stores.file import BATCH, PARTIAL, FileStore, batches

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
    replaces it)."""
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
    fetched = FetchedFolder(here.root, tasks, overwrite=overwrite)
    fetched.begin(manifest.files)
    failures: list[CloudtrainError] = []
    with console.stage("fetch", len(groups)) as stage:
        for folder, files in groups.items():
            try:
                new = download_files(run, files, store, here, fetched)
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
    fetched: FetchedFolder,
) -> int:
    """Download files; returns how many of them were not there yet."""

    def bring(batch: Sequence[Artifact]) -> int:
        for landed in batch:
            fetched.refuse(landed.path)
        found = are_here(batch, here)
        due = [landed for landed in batch if landed.path not in found]
        for landed in due:
            fetched.refuse_to_replace(landed.path)
        if due:
            here.upload_all({landed.path: verified(landed, run, store) for landed in due})
        return len(due)

    def work(batch: Sequence[Artifact]) -> int:
        try:
            return bring(batch)
        except CloudtrainError:
            if len(batch) == 1:
                raise
        alone = [[landed] for landed in batch]  # the others of a batch that fails
        return sum(fan_out(alone, bring, name=_first, workers=1))

    groups = list(batches(files, min(BATCH, -(-len(files) // SIDE_BY_SIDE))))
    return sum(fan_out(groups, work, name=_first, workers=SIDE_BY_SIDE))


def _first(batch: Sequence[Artifact]) -> str:
    return shown(batch[0].path)


def all_of(errors: Sequence[CloudtrainError]) -> StoreError:
    lines = [str(failure) for error in errors for failure in _each(error)]
    more = [f"and {len(lines) - SHOWN} more files"] if len(lines) > SHOWN else []
    return StoreError("\n".join(lines[:SHOWN] + more), hint=errors[0].hint)


def _each(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, NodesError):
        for failure in error.failures.values():
            yield from _each(failure)
    else:
        yield error


def are_here(batch: Sequence[Artifact], here: FileStore) -> set[str]:
    """Paths of the files that are there as landed."""
    with suppress(CloudtrainError, OSError):  # unreadable: downloading it again reports why
        places = {each.path: here.root / each.path for each in batch}
        files = {path: at.stat().st_size for path, at in places.items() if at.is_file()}
        alike = [each for each in batch if files.get(each.path) == each.size]
        sums = here.checksums(each.path for each in alike)
        return {each.path for each in alike if sums[each.path] == each.sha256}
    return set()


def verified(landed: Artifact, run: str, store: ArtifactStore) -> Iterator[bytes]:
    """The file's bytes; raises StoreError after the last one if they differ from what landed."""
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


# ── files that `fetch` may write ───────────────────────────────────────────────
# Those of the run's tasks, over nothing of the user's.


_MARK = "Downloaded by `cloudtrain fetch`: not delivered as code.\n"


class FetchedFolder:
    """A folder of this machine. Names come from a manifest, which others may have written."""

    def __init__(self, root: Path, tasks: Collection[str], *, overwrite: bool) -> None:
        self.root, self._tops = root, {*tasks, LOGS}
        self._ours = self._recorded()
        self._overwrite = overwrite
        self._plain = set[str]()
        """Folders that are reached over no link."""

    def begin(self, paths: Iterable[str]) -> None:
        """Record what is about to be written, and mark it, so that it is never delivered as code.
        The record comes before the files: the next fetch knows what a killed one had begun."""
        wanted = [path for path in paths if self._is_ours_to_name(path)]
        with suppress(OSError):  # the first download reports it
            mark_as_fetched(self.root, {path.partition("/")[0] for path in wanted})
        self._ours |= {
            path for path in wanted if self._overwrite or not os.path.lexists(f"{self.root}/{path}")
        }
        new = self.root / f"{FETCHED_FILES}.new"
        with suppress(OSError):
            new.unlink(missing_ok=True)
            with new.open("x", encoding="ascii") as file:
                json.dump(sorted(self._ours), file, indent=0)
            new.replace(self.root / FETCHED_FILES)

    def refuse(self, path: str) -> None:
        """Raise StoreError for a name that no task of the run has, and for a way over a link."""
        if not self._is_ours_to_name(path):
            raise StoreError(
                f"{shown(path)}: no task of the run has this name: not written",
                hint="somebody else has written to the run's folder in the store",
            )
        folder = path.rpartition("/")[0]
        if folder in self._plain:  # the store follows none that is made meanwhile
            return
        for parent in (self.root / PARTIAL, *reversed((self.root / path).parents)):
            if parent.is_relative_to(self.root) and parent != self.root and parent.is_symlink():
                raise StoreError(
                    f"{shown(path)}: {shown(parent)} is a link, which is not followed: not written",
                    hint="remove the link, or name another folder",
                )
        self._plain.add(folder)

    def refuse_to_replace(self, path: str) -> None:
        """Raise StoreError if another file is there, unless an earlier fetch wrote it."""
        if self._overwrite or path in self._ours or not os.path.lexists(self.root / path):
            return
        raise StoreError(
            f"{shown(path)}: another file is there, which no earlier fetch wrote: not replaced",
            hint="name another folder, or replace it with --overwrite",
        )

    def _is_ours_to_name(self, path: str) -> bool:
        top, slash, _ = path.partition("/")
        return top in self._tops if slash else path in RECORDS

    def _recorded(self) -> set[str]:
        """Files of earlier fetches. An earlier version recorded none, but marked their folders."""
        with suppress(OSError, ValueError):
            found = json.loads((self.root / FETCHED_FILES).read_bytes())
            if isinstance(found, list):
                return {path for path in found if isinstance(path, str)}
        if (self.root / FETCHED_FILES).exists():
            return set()
        marked = [self.root] if (self.root / FETCHED).exists() else []
        tops = [self.root / top for top in self._tops if (self.root / top / FETCHED).exists()]
        marked = marked or [top for top in tops if not top.is_symlink()]
        walked = (each for folder in marked for each in os.walk(folder))
        files = (Path(below, name) for below, _, names in walked for name in names)
        return {str(file.relative_to(self.root)) for file in files}


def mark_as_fetched(root: Path, tops: Iterable[str]) -> None:
    """Mark the folder, or if it has files of the user's, the folders that are fetched into it."""
    root.mkdir(parents=True, exist_ok=True)
    of_user = {each.name for each in root.iterdir()} - {FETCHED, FETCHED_FILES, PARTIAL, *tops}
    for folder in [root / each for each in tops if each not in RECORDS] if of_user else [root]:
        if folder != root and folder.is_symlink():
            continue
        folder.mkdir(exist_ok=True)
        if not (folder / FETCHED).is_symlink():
            (folder / FETCHED).write_text(_MARK, encoding="utf-8")
