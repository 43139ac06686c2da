"""Parcels taken into what has landed: whole files, newer ones, once, whatever dies meanwhile."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain import layout
from cloudtrain.errors import PermissionsError, StoreError
from cloudtrain.landing.land import land
from cloudtrain.landing.manifest import Manifest, read_manifest
from cloudtrain.landing.parcels import parcel_name, parcels_of, take_parcels
from cloudtrain.model import Attempt
from cloudtrain.node import archiver
from cloudtrain.node.formats import ARCHIVE_TAKEN
from tests.support.landing_parts import RUN, Cluster

FOLDER = "ckpt"


class Yard(Cluster):
    """Packs what is in a task's work folder as its keeper does, with no process between."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run = replace(self.run, attempts=(Attempt(number=1, started=1.0),))
        self.made = 0
        self.logs = folder / "logs here"
        os.chdir(folder)  # monkeypatch.chdir has said where back to

    def parcel(self, *paths: str, task: str = "chief0", attempt: int = 1) -> archiver.Archive:
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

    def store_parcel(self, parcel: archiver.Archive, task: str = "chief0", attempt: int = 1) -> str:
        name = parcel_name(RUN, task, attempt, 1_700_000_000, self.made)
        self.made += 1
        self.store.upload(name, [content(parcel)])
        return name

    def keep(self, *paths: str, task: str = "chief0", attempt: int = 1) -> str:
        return self.store_parcel(self.parcel(*paths, task=task, attempt=attempt), task, attempt)

    def take(self) -> Manifest:
        take_parcels(
            self.run,
            self.store,
            self.console,
            log_path=lambda task, attempt: self.logs / f"{task}.{attempt}.log",
        )
        return read_manifest(self.store, RUN) or Manifest(run=RUN)

    def land(self, *, final: bool = False) -> Manifest:
        return land(
            self.run,
            self.nodes,
            self.rules,
            checkpoints=FOLDER,
            transport=self.transport,
            store=self.store,
            console=self.console,
            final=final,
        )

    def read(self, manifest: Manifest, path: str) -> bytes:
        return b"".join(self.store.download(f"{RUN}/{manifest.files[path].at}"))

    def contents(self, manifest: Manifest) -> dict[str, bytes]:
        return {path: self.read(manifest, path) for path in manifest.files}


def content(parcel: archiver.Archive, piece: int = 1 << 20) -> bytes:
    data = b""
    while len(data) < parcel.size:
        data += parcel.pread(min(piece, parcel.size - len(data)), len(data))
    return data


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.chdir(tmp_path)
    return Yard(tmp_path)


# ── What is taken ────────────────────────────────────────────────────────────


def test_a_parcels_files_land_and_the_parcel_goes(yard: Yard) -> None:
    yard.write("chief0", "output/deep/a", "a")
    yard.write("chief0", os.fsdecode(b"output/\xff odd"), "odd")
    yard.write("chief0", "output/empty", "")
    yard.write("chief0", "output/" + "long" * 60, b"\0" * 3_000_000)
    yard.keep(*archiver.listed(os.fsencode(yard.work("chief0")), ["."]))
    manifest = yard.take()
    assert yard.contents(manifest) == {
        "chief0/output/deep/a": b"a",
        os.fsdecode(b"chief0/output/\xff odd"): b"odd",
        "chief0/output/empty": b"",
        "chief0/output/" + "long" * 60: b"\0" * 3_000_000,
    }
    assert all(each.at == each.path for each in manifest.files.values())
    assert parcels_of(RUN, yard.store) == []
    assert not manifest.complete


def test_what_was_taken_is_not_landed_again_from_its_node(yard: Yard) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    yard.take()
    yard.store.uploaded.clear()
    yard.land()
    assert yard.store.uploaded == []


def test_of_several_parcels_the_last_version_counts(yard: Yard) -> None:
    for text in ("one", "two", "three"):
        yard.write("chief0", "output/a", text)
        yard.keep("output/a")
    assert yard.contents(yard.take()) == {"chief0/output/a": b"three"}


def test_an_older_version_never_replaces_a_landed_one(yard: Yard) -> None:
    yard.write("chief0", "output/a", "old")
    yard.write("chief0", "output/b", "only here")
    yard.keep("output/a", "output/b")
    yard.write("chief0", "output/a", "new")
    (yard.work("chief0") / "output/b").unlink()
    yard.land()
    assert yard.contents(yard.take()) == {
        "chief0/output/a": b"new",
        "chief0/output/b": b"only here",
    }


def test_a_file_that_changed_while_it_was_packed_is_not_taken(yard: Yard) -> None:
    yard.write("chief0", "output/torn", b"a" * 2_000_000)
    yard.write("chief0", "output/short", b"a" * 2_000_000)
    gone = yard.write("chief0", "output/gone", "a")
    yard.write("chief0", "output/well", "a")
    parcel = yard.parcel("output/torn", "output/short", "output/gone", "output/well")
    half = parcel.pread(1000, 0)
    half += parcel.pread(1 << 20, len(half))
    yard.write("chief0", "output/torn", b"b" * 2_000_000)
    yard.write("chief0", "output/short", "b")
    gone.unlink()
    rest = b""
    while len(half) + len(rest) < parcel.size:
        rest += parcel.pread(1 << 20, len(half) + len(rest))
    assert len(half + rest) == parcel.size
    name = parcel_name(RUN, "chief0", 1, 1, 0)
    yard.store.upload(name, [half + rest])
    assert yard.contents(yard.take()) == {"chief0/output/well": b"a"}


def test_a_parcel_that_is_sent_again_tells_of_what_was_sent_last(yard: Yard) -> None:
    yard.write("chief0", "output/a", b"a" * 2_000_000)
    parcel = yard.parcel("output/a")
    parcel.pread(1000, 0)
    parcel.pread(1 << 20, 1000)
    again = content(parcel, 700_001)
    yard.store.upload(parcel_name(RUN, "chief0", 1, 1, 0), [again])
    assert yard.contents(yard.take()) == {"chief0/output/a": b"a" * 2_000_000}


def test_bytes_that_are_not_what_the_node_read_are_not_taken(yard: Yard) -> None:
    yard.write("chief0", "output/a", "as it is")
    data = content(yard.parcel("output/a")).replace(b"as it is", b"as it was"[:8])
    yard.store.upload(parcel_name(RUN, "chief0", 1, 1, 0), [data])
    assert yard.take().files == {}
    assert "not what its node read" in yard.console.warned[0]


@pytest.mark.parametrize("data", [b"", b"no tar", b"\0" * 10240])
def test_what_is_no_parcel_is_said_and_no_obstacle(yard: Yard, data: bytes) -> None:
    yard.store.upload(parcel_name(RUN, "chief0", 1, 1, 0), [data])
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    assert "chief0/output/a" in yard.take().files
    assert "is not a parcel that can be read" in yard.console.warned[0]
    (left,) = parcels_of(RUN, yard.store)
    assert b"".join(yard.store.download(left.path)) == data


def test_names_that_lead_out_are_refused(yard: Yard) -> None:
    item = archiver.Item("work/../../worker0/output/a", b"/etc/hostname", 3, "1.0/1.0/1")
    parcel = archiver.Archive([item], None, {}, dict)
    yard.store.upload(parcel_name(RUN, "chief0", 1, 1, 0), [content(parcel)])
    assert yard.take().files == {}


def test_other_names_beside_parcels_are_left_alone(yard: Yard) -> None:
    for name in ("notes.txt", "chief0.1-6553f100-00.tar.old", "../x", "worker9.1-6553f100-00.tar"):
        if ".." not in name:
            yard.store.upload(f"{RUN}/parcels/{name}", [b"x"])
    assert yard.take().files == {}
    assert yard.console.warned == []


# ── A node that is there ─────────────────────────────────────────────────────


def test_what_a_node_still_has_lands_from_it_and_its_parcels_go_then(yard: Yard) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    yard.write("chief0", "output/a", "a and more")
    manifest = yard.land(final=True)
    assert manifest.complete
    assert manifest.files["chief0/output/a"].size == len("a and more")
    assert parcels_of(RUN, yard.store) == []


def test_a_node_in_the_place_of_another_does_not_make_its_parcels_needless(yard: Yard) -> None:
    """`up` made it anew and empty; the parcel is the only copy."""
    file = yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    file.unlink()
    manifest = yard.land(final=True)
    assert manifest.complete
    assert manifest.files["chief0/output/a"].size == 1
    assert parcels_of(RUN, yard.store) == []


def test_what_an_earlier_attempts_node_stored_is_taken_though_another_is_there(
    yard: Yard,
) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a", attempt=1)
    yard.run = replace(yard.run, attempts=(*yard.run.attempts, Attempt(number=2, started=2.0)))
    assert "chief0/output/a" in yard.take().files


# ── Checkpoints ──────────────────────────────────────────────────────────────


def checkpoint(yard: Yard, step: int) -> list[str]:
    (yard.work("chief0") / FOLDER).mkdir(exist_ok=True)
    yard.write("chief0", f"{FOLDER}/ckpt-{step}", f"weights {step}")
    yard.write("chief0", f"{FOLDER}/checkpoint", f"ckpt-{step}")
    return [f"{FOLDER}/ckpt-{step}", f"{FOLDER}/checkpoint"]


def test_a_whole_checkpoint_is_taken_as_one(yard: Yard) -> None:
    yard.keep(*checkpoint(yard, 10))
    manifest = yard.take()
    assert manifest.checkpoint is not None
    assert manifest.checkpoint.paths == ("chief0/ckpt/checkpoint", "chief0/ckpt/ckpt-10")


def test_a_checkpoint_may_be_in_several_parcels_and_what_has_landed(yard: Yard) -> None:
    checkpoint(yard, 10)
    yard.land()
    yard.keep(*checkpoint(yard, 20))
    yard.keep(*checkpoint(yard, 30))
    manifest = yard.take()
    assert manifest.checkpoint is not None
    assert [path.rpartition("/")[2] for path in manifest.checkpoint.paths] == [
        "checkpoint",
        "ckpt-10",
        "ckpt-20",
        "ckpt-30",
    ]
    assert yard.read(manifest, "chief0/ckpt/checkpoint") == b"ckpt-30"


def test_of_a_checkpoint_that_changed_while_it_was_packed_nothing_is_taken(yard: Yard) -> None:
    checkpoint(yard, 10)
    yard.land()
    paths = checkpoint(yard, 20)
    yard.write("chief0", "output/a", "a")
    parcel = yard.parcel(*paths, "output/a")
    data = parcel.pread(1000, 0)
    yard.write("chief0", f"{FOLDER}/ckpt-30", "weights 30")
    while len(data) < parcel.size:
        data += parcel.pread(1 << 20, len(data))
    yard.store.upload(parcel_name(RUN, "chief0", 1, 1, 0), [data])
    manifest = yard.take()
    assert yard.read(manifest, "chief0/ckpt/checkpoint") == b"ckpt-10"
    assert "chief0/ckpt/ckpt-20" not in manifest.files
    assert "chief0/output/a" in manifest.files


def test_an_older_checkpoint_does_not_replace_a_landed_one(yard: Yard) -> None:
    yard.keep(*checkpoint(yard, 10))
    checkpoint(yard, 20)
    before = yard.land()
    assert yard.take().checkpoint == before.checkpoint


# ── Logs ─────────────────────────────────────────────────────────────────────


def log(yard: Yard, text: str) -> None:
    folder = yard.transport.home(yard.nodes["chief0"]) / layout.attempt_folder(
        "mnist", RUN, "chief0", 1
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log").write_text(text)
    os.chdir(folder.parent)
    item = archiver.log_of("attempt-1")
    assert item is not None
    yard.store_parcel(archiver.Archive([item], None, {}, dict))


def test_a_log_lands_and_goes_on_where_the_one_here_ends(yard: Yard) -> None:
    yard.logs.mkdir()
    (yard.logs / "chief0.1.log").write_text("step 1\n")
    log(yard, "step 1\nstep 2\n")
    log(yard, "step 1\nstep 2\nstep 3\n")
    manifest = yard.take()
    assert yard.read(manifest, "logs/chief0.attempt-1.log") == b"step 1\nstep 2\nstep 3\n"
    assert (yard.logs / "chief0.1.log").read_text() == "step 1\nstep 2\nstep 3\n"


def test_a_log_that_is_longer_here_stays(yard: Yard) -> None:
    yard.logs.mkdir()
    (yard.logs / "chief0.1.log").write_text("step 1\nstep 2\n")
    log(yard, "step 1\n")
    yard.take()
    assert (yard.logs / "chief0.1.log").read_text() == "step 1\nstep 2\n"


# ── Killed, refused ──────────────────────────────────────────────────────────


def test_taking_may_end_after_any_upload_and_is_done_again(yard: Yard) -> None:
    yard.write("chief0", "output/a", "landed")
    yard.land()
    for step in (10, 20):
        yard.write("chief0", "output/a", f"at {step}")
        yard.write("chief0", f"output/{step}", "x")
        yard.keep("output/a", f"output/{step}", *checkpoint(yard, step))
    for left in range(40):
        yard.store.uploads_left = left
        try:
            yard.take()
        except StoreError:
            manifest = read_manifest(yard.store, RUN)
            assert manifest is not None
            yard.contents(manifest)  # every file that it lists is there
            assert manifest.checkpoint is None or yard.read(manifest, "chief0/ckpt/checkpoint")
        else:
            break
    yard.store.uploads_left = None
    manifest = yard.take()
    assert yard.read(manifest, "chief0/output/a") == b"at 20"
    assert yard.read(manifest, "chief0/ckpt/checkpoint") == b"ckpt-20"
    assert {"chief0/output/10", "chief0/output/20"} <= manifest.files.keys()
    assert parcels_of(RUN, yard.store) == []


def test_without_the_right_to_delete_a_parcel_is_marked_as_taken(yard: Yard) -> None:
    def refuse(path: str) -> None:
        raise PermissionsError(f"{path}: no")

    yard.store.delete = refuse  # type: ignore[attr-defined]
    yard.write("chief0", "output/a", "a")
    name = yard.keep("output/a")
    assert "chief0/output/a" in yard.take().files
    assert parcels_of(RUN, yard.store) == []
    assert {found.path for found in yard.store.list(f"{RUN}/parcels/")} == {
        name,
        name + ARCHIVE_TAKEN,
    }
