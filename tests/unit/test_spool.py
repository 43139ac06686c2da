"""Archives collected into what has landed: whole files, newer ones, once, despite crashes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from cloudtrain.artifacts.spool_archive import pending_spools, spool_name
from cloudtrain.core.errors import PermissionsError
from cloudtrain.core.run_record import RunAttempt
from cloudtrain.node import archiver, listing
from cloudtrain.node.formats import ARCHIVE_TAKEN
from tests.support.landing_parts import RUN
from tests.support.spool_parts import Yard, checkpoint, content, log, yard

__all__ = ["yard"]


# ── What is taken ────────────────────────────────────────────────────────────


def test_an_archives_files_land_and_the_archive_goes(yard: Yard) -> None:
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
    assert pending_spools(RUN, yard.store) == []
    assert not manifest.complete


def test_of_several_archives_the_last_version_counts(yard: Yard) -> None:
    for text in ("one", "two", "three"):
        yard.write("chief0", "output/a", text)
        yard.keep("output/a")
    assert yard.contents(yard.take()) == {"chief0/output/a": b"three"}


def test_a_file_that_changed_while_it_was_packed_is_not_taken(yard: Yard) -> None:
    yard.write("chief0", "output/torn", b"a" * 2_000_000)
    yard.write("chief0", "output/short", b"a" * 2_000_000)
    gone = yard.write("chief0", "output/gone", "a")
    yard.write("chief0", "output/well", "a")
    archive = yard.archive("output/torn", "output/short", "output/gone", "output/well")
    half = archive.pread(1000, 0)
    half += archive.pread(1 << 20, len(half))
    yard.write("chief0", "output/torn", b"b" * 2_000_000)
    yard.write("chief0", "output/short", "b")
    gone.unlink()
    rest = b""
    while len(half) + len(rest) < archive.size:
        rest += archive.pread(1 << 20, len(half) + len(rest))
    assert len(half + rest) == archive.size
    name = spool_name(RUN, "chief0", 1, 1, 0)
    yard.store.upload(name, [half + rest])
    assert yard.contents(yard.take()) == {"chief0/output/well": b"a"}


def test_an_archive_that_is_sent_again_tells_of_what_was_sent_last(yard: Yard) -> None:
    yard.write("chief0", "output/a", b"a" * 2_000_000)
    archive = yard.archive("output/a")
    archive.pread(1000, 0)
    archive.pread(1 << 20, 1000)
    again = content(archive, 700_001)
    yard.store.upload(spool_name(RUN, "chief0", 1, 1, 0), [again])
    assert yard.contents(yard.take()) == {"chief0/output/a": b"a" * 2_000_000}


def test_bytes_that_are_not_what_the_node_read_are_not_taken(yard: Yard) -> None:
    yard.write("chief0", "output/a", "as it is")
    data = content(yard.archive("output/a")).replace(b"as it is", b"as it was"[:8])
    yard.store.upload(spool_name(RUN, "chief0", 1, 1, 0), [data])
    assert yard.take().files == {}
    assert "differs from what its node read" in yard.console.warned[0]


@pytest.mark.parametrize("data", [b"", b"no tar", b"\0" * 10240])
def test_what_is_no_archive_is_said_and_no_obstacle(yard: Yard, data: bytes) -> None:
    yard.store.upload(spool_name(RUN, "chief0", 1, 1, 0), [data])
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    assert "chief0/output/a" in yard.take().files
    assert "is not a valid archive" in yard.console.warned[0]
    (left,) = pending_spools(RUN, yard.store)
    assert b"".join(yard.store.download(left.path)) == data


def test_names_that_lead_out_are_refused(yard: Yard) -> None:
    file = listing.File("work/../../worker0/output/a", "/etc/hostname", 3, "1.0/1.0/1")
    archive = archiver.Archive([file], None, {}, dict)
    yard.store.upload(spool_name(RUN, "chief0", 1, 1, 0), [content(archive)])
    assert yard.take().files == {}


def test_other_names_beside_archives_are_left_alone(yard: Yard) -> None:
    for name in ("notes.txt", "chief0.1-6553f100-00.tar.old", "../x", "worker9.1-6553f100-00.tar"):
        if ".." not in name:
            yard.store.upload(f"{RUN}/parcels/{name}", [b"x"])
    assert yard.take().files == {}
    assert yard.console.warned == []


# ── A node that is there ─────────────────────────────────────────────────────


def test_what_an_earlier_attempts_node_stored_is_taken_though_another_is_there(
    yard: Yard,
) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a", attempt=1)
    yard.run = replace(yard.run, attempts=(*yard.run.attempts, RunAttempt(number=2, started=2.0)))
    assert "chief0/output/a" in yard.take().files


# ── Checkpoints ──────────────────────────────────────────────────────────────


def test_a_whole_checkpoint_is_taken_as_one(yard: Yard) -> None:
    yard.keep(*checkpoint(yard, 10))
    manifest = yard.take()
    assert manifest.checkpoint is not None
    assert manifest.checkpoint.paths == ("chief0/ckpt/checkpoint", "chief0/ckpt/ckpt-10")


# ── Logs ─────────────────────────────────────────────────────────────────────


def test_a_log_lands_and_goes_on_where_the_one_here_ends(yard: Yard) -> None:
    yard.logs.mkdir()
    (yard.logs / "chief0.1.log").write_text("step 1\n")
    log(yard, "step 1\nstep 2\n")
    log(yard, "step 1\nstep 2\nstep 3\n")
    manifest = yard.take()
    assert yard.read(manifest, "logs/chief0.attempt-1.log") == b"step 1\nstep 2\nstep 3\n"
    assert manifest.files["logs/chief0.attempt-1.log"].stamp == ""
    assert (yard.logs / "chief0.1.log").read_text() == "step 1\nstep 2\nstep 3\n"


def test_a_log_that_is_longer_here_stays(yard: Yard) -> None:
    yard.logs.mkdir()
    (yard.logs / "chief0.1.log").write_text("step 1\nstep 2\n")
    log(yard, "step 1\n")
    yard.take()
    assert (yard.logs / "chief0.1.log").read_text() == "step 1\nstep 2\n"


def test_metrics_land_beside_the_log_and_go_on_where_those_here_end(yard: Yard) -> None:
    yard.logs.mkdir()
    (yard.logs / "chief0.1.metrics.jsonl").write_text("{}\n")
    log(yard, "step 1\n", metrics="{}\n{}\n")
    manifest = yard.take()
    assert yard.read(manifest, "logs/chief0.attempt-1.metrics.jsonl") == b"{}\n{}\n"
    assert (yard.logs / "chief0.1.metrics.jsonl").read_text() == "{}\n{}\n"


# ── Killed, refused ──────────────────────────────────────────────────────────


def test_without_the_right_to_delete_an_archive_is_marked_as_taken(yard: Yard) -> None:
    def refuse(path: str) -> None:
        raise PermissionsError(f"{path}: no")

    yard.store.delete = refuse  # type: ignore[attr-defined]
    yard.write("chief0", "output/a", "a")
    name = yard.keep("output/a")
    assert "chief0/output/a" in yard.take().files
    assert pending_spools(RUN, yard.store) == []
    assert {found.path for found in yard.store.list(f"{RUN}/parcels/")} == {
        name,
        name + ARCHIVE_TAKEN,
    }
