"""What `fetch` may write into a folder: files of the run's tasks, over nothing of the user's."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from cloudtrain.artifacts.manifest import LOGS, RECORDS
from cloudtrain.core.errors import StoreError
from cloudtrain.core.own_output import FETCHED, FETCHED_FILES
from cloudtrain.core.paths import shown
from cloudtrain.stores.file import PARTIAL

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

        The record comes before the files: of a killed fetch, the next one knows what it had begun.
        """
        wanted = [path for path in paths if self._is_ours_to_name(path)]
        with suppress(OSError):  # the first download reports it
            mark_as_fetched(self.root, {path.partition("/")[0] for path in wanted})
        new = {
            path for path in wanted if self._overwrite or not os.path.lexists(f"{self.root}/{path}")
        }
        self._ours |= new
        with suppress(OSError):
            self._write_record()

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
        for place in (self.root / PARTIAL, *reversed((self.root / path).parents)):
            if place.is_relative_to(self.root) and place != self.root and place.is_symlink():
                raise StoreError(
                    f"{shown(path)}: {shown(place)} is a link, which is not followed: not written",
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
        with suppress(OSError, ValueError):
            found = json.loads((self.root / FETCHED_FILES).read_bytes())
            if isinstance(found, list):
                return {path for path in found if isinstance(path, str)}
        return set(self._of_earlier_version())

    def _of_earlier_version(self) -> Iterable[str]:
        """Files in folders that it has marked, whose names it did not record."""
        if (self.root / FETCHED_FILES).exists():
            return
        marked = [self.root] if (self.root / FETCHED).exists() else []
        marked = marked or [self.root / top for top in self._tops if self._is_marked(top)]
        for folder in marked:
            for place, _, names in os.walk(folder):
                for name in names:
                    yield str(Path(place, name).relative_to(self.root))

    def _is_marked(self, top: str) -> bool:
        return not (self.root / top).is_symlink() and (self.root / top / FETCHED).exists()

    def _write_record(self) -> None:
        new = self.root / f"{FETCHED_FILES}.new"
        new.unlink(missing_ok=True)
        with new.open("x", encoding="ascii") as file:
            json.dump(sorted(self._ours), file, indent=0)
        new.replace(self.root / FETCHED_FILES)


def mark_as_fetched(root: Path, tops: Iterable[str]) -> None:
    """Mark the folder, or if it has files of the user's, the folders that are fetched into it."""
    root.mkdir(parents=True, exist_ok=True)
    there = {each.name for each in root.iterdir()}
    of_user = there - {FETCHED, FETCHED_FILES, PARTIAL, *tops}
    for folder in [root / each for each in tops if each not in RECORDS] if of_user else [root]:
        if folder != root and folder.is_symlink():
            continue
        folder.mkdir(exist_ok=True)
        if not (folder / FETCHED).is_symlink():
            (folder / FETCHED).write_text(_MARK, encoding="utf-8")
