"""A task's work folder, archived and collected with no process between."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.artifacts.spool_archive import spool_name
from cloudtrain.core import paths
from cloudtrain.core.run_record import RunAttempt
from cloudtrain.node import archiver
from tests.support.landing_parts import RUN, Cluster

FOLDER = "ckpt"


class Yard(Cluster):
    """Packs what is in a task's work folder as its agent does, with no process between."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run = replace(self.run, attempts=(RunAttempt(number=1, started=1.0),))
        self.made = 0
        self.logs = folder / "logs here"
        os.chdir(folder)  # monkeypatch.chdir has said where back to

    def archive(self, *paths: str, task: str = "chief0", attempt: int = 1) -> archiver.Archive:
        """Of these files, and of the whole checkpoint where one is in it."""
        work = os.fsencode(self.work(task))
        found = archiver.listed(work, ["."])
        inside = {path: each.stamp for path, each in found.items() if path.startswith(f"{FOLDER}/")}
        return archiver.Archive(
            [found[path] for path in paths],
            FOLDER if task == "chief0" else None,
            inside if task == "chief0" else {},
            lambda: {
                path: each.stamp for path, each in archiver.listed(work, [f"{FOLDER}/**"]).items()
            },
        )

    def store_archive(
        self, archive: archiver.Archive, task: str = "chief0", attempt: int = 1
    ) -> str:
        name = spool_name(RUN, task, attempt, 1_700_000_000, self.made)
        self.made += 1
        self.store.upload(name, [content(archive)])
        return name

    def keep(self, *paths: str, task: str = "chief0", attempt: int = 1) -> str:
        return self.store_archive(self.archive(*paths, task=task, attempt=attempt), task, attempt)

    def take(self) -> Manifest:
        ingest_spools(
            self.run,
            self.store,
            self.console,
            log_path=lambda task, attempt: self.logs / f"{task}.{attempt}.log",
        )
        return read_manifest(self.store, RUN) or Manifest(run=RUN)

    def lands(self, *, final: bool = False) -> Manifest:
        return self.land(final=final, checkpoints=FOLDER)

    def read(self, manifest: Manifest, path: str) -> bytes:
        return b"".join(self.store.download(f"{RUN}/{manifest.files[path].at}"))

    def contents(self, manifest: Manifest) -> dict[str, bytes]:
        return {path: self.read(manifest, path) for path in manifest.files}


def content(archive: archiver.Archive, piece: int = 1 << 20) -> bytes:
    data = b""
    while len(data) < archive.size:
        data += archive.pread(min(piece, archive.size - len(data)), len(data))
    return data


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.chdir(tmp_path)
    return Yard(tmp_path)


def checkpoint(yard: Yard, step: int) -> list[str]:
    (yard.work("chief0") / FOLDER).mkdir(exist_ok=True)
    yard.write("chief0", f"{FOLDER}/ckpt-{step}", f"weights {step}")
    yard.write("chief0", f"{FOLDER}/checkpoint", f"ckpt-{step}")
    return [f"{FOLDER}/ckpt-{step}", f"{FOLDER}/checkpoint"]


def log(yard: Yard, text: str, metrics: str = "") -> None:
    folder = yard.transport.home(yard.nodes["chief0"]) / paths.attempt_folder(
        "mnist", RUN, "chief0", 1
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log").write_text(text)
    (folder / "metrics").write_text(metrics)
    os.chdir(folder.parent)
    yard.store_archive(archiver.Archive(archiver.logs_of("attempt-1"), None, {}, dict))
