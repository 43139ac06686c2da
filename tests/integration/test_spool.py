"""Archives collected beside files that nodes still have: nothing twice, nothing older."""

from __future__ import annotations

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.artifacts.spool_archive import pending_spools, spool_name
from cloudtrain.core.errors import StoreError
from tests.support.landing_parts import RUN
from tests.support.spool_parts import FOLDER, Yard, checkpoint, yard

__all__ = ["yard"]


# ── What is taken ────────────────────────────────────────────────────────────


def test_what_was_taken_is_not_landed_again_from_its_node(yard: Yard) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    yard.take()
    yard.store.uploaded.clear()
    yard.lands()
    assert yard.store.uploaded == []


def test_an_older_version_never_replaces_a_landed_one(yard: Yard) -> None:
    yard.write("chief0", "output/a", "old")
    yard.write("chief0", "output/b", "only here")
    yard.keep("output/a", "output/b")
    yard.write("chief0", "output/a", "new")
    (yard.work("chief0") / "output/b").unlink()
    yard.lands()
    assert yard.contents(yard.take()) == {
        "chief0/output/a": b"new",
        "chief0/output/b": b"only here",
    }


# ── A node that is there ─────────────────────────────────────────────────────


def test_what_a_node_still_has_lands_from_it_and_its_archives_go_then(yard: Yard) -> None:
    yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    yard.write("chief0", "output/a", "a and more")
    manifest = yard.lands(final=True)
    assert manifest.complete
    assert manifest.files["chief0/output/a"].size == len("a and more")
    assert pending_spools(RUN, yard.store) == []


def test_a_node_in_the_place_of_another_does_not_make_its_archives_needless(yard: Yard) -> None:
    """`up` recreated it empty; the archive is the only copy."""
    file = yard.write("chief0", "output/a", "a")
    yard.keep("output/a")
    file.unlink()
    manifest = yard.lands(final=True)
    assert manifest.complete
    assert manifest.files["chief0/output/a"].size == 1
    assert pending_spools(RUN, yard.store) == []


# ── Checkpoints ──────────────────────────────────────────────────────────────


def test_a_checkpoint_may_be_in_several_archives_and_what_has_landed(yard: Yard) -> None:
    checkpoint(yard, 10)
    yard.lands()
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
    yard.lands()
    paths = checkpoint(yard, 20)
    yard.write("chief0", "output/a", "a")
    archive = yard.archive(*paths, "output/a")
    data = archive.pread(1000, 0)
    yard.write("chief0", f"{FOLDER}/ckpt-30", "weights 30")
    while len(data) < archive.size:
        data += archive.pread(1 << 20, len(data))
    yard.store.upload(spool_name(RUN, "chief0", 1, 1, 0), [data])
    manifest = yard.take()
    assert yard.read(manifest, "chief0/ckpt/checkpoint") == b"ckpt-10"
    assert "chief0/ckpt/ckpt-20" not in manifest.files
    assert "chief0/output/a" in manifest.files


def test_a_checkpoint_without_the_parts_of_a_ps_does_not_replace_a_landed_one(yard: Yard) -> None:
    checkpoint(yard, 10)
    before = yard.lands()
    yard.write("chief0", f"{FOLDER}/ckpt-20.index", "index")
    yard.write("chief0", f"{FOLDER}/ckpt-20.data-00000-of-00002", "part")
    paths = [f"{FOLDER}/ckpt-20.index", f"{FOLDER}/ckpt-20.data-00000-of-00002"]
    yard.keep(*checkpoint(yard, 20), *paths)
    assert yard.take().checkpoint == before.checkpoint


def test_an_older_checkpoint_does_not_replace_a_landed_one(yard: Yard) -> None:
    yard.keep(*checkpoint(yard, 10))
    checkpoint(yard, 20)
    before = yard.lands()
    assert yard.take().checkpoint == before.checkpoint


# ── Killed, refused ──────────────────────────────────────────────────────────


def test_taking_may_end_after_any_upload_and_is_done_again(yard: Yard) -> None:
    yard.write("chief0", "output/a", "landed")
    yard.lands()
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
    assert pending_spools(RUN, yard.store) == []
