"""A run's files land whole, verified and once, whatever breaks on the way."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.land import land_files, missing, pending_files, runs_on
from cloudtrain.artifacts.manifest import Checkpoint, Manifest, read_manifest
from cloudtrain.core.errors import NodeUnreachable, NotLanded, StoreError
from cloudtrain.core.model import Artifact, ArtifactRules
from cloudtrain.stores.file import BATCH_BYTES
from tests.support.landing_parts import RUN, Cluster, land_logs, write_manifest


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def landing(cluster: Cluster, *, final: bool = True, checkpoints: str | None = None) -> Manifest:
    return cluster.land(final=final, checkpoints=checkpoints)


def left(cluster: Cluster, checkpoints: str | None = None) -> tuple[str, ...]:
    return cluster.unlanded(checkpoints)


def is_pack(line: str) -> bool:
    return "tar --create" in line


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ── What lands ───────────────────────────────────────────────────────────────


def test_the_output_of_every_task_lands_under_its_name_with_size_and_sha256(
    cluster: Cluster,
) -> None:
    cluster.write("chief0", "output/saved_model.pb", "model")
    cluster.write("worker0", "output/deep/er/events", b"\0" * (BATCH_BYTES + 1))
    cluster.write("worker0", "train.py", "code, not an artifact")
    manifest = landing(cluster)
    assert cluster.landed() == {
        "chief0/output/saved_model.pb": b"model",
        "worker0/output/deep/er/events": b"\0" * (BATCH_BYTES + 1),
    }
    text = json.loads((cluster.folder / RUN / "manifest.json").read_text())
    assert text["complete"] is True
    assert [(f["path"], f["size"], f["sha256"]) for f in text["files"]] == [
        ("chief0/output/saved_model.pb", 5, sha(b"model")),
        ("worker0/output/deep/er/events", BATCH_BYTES + 1, sha(b"\0" * (BATCH_BYTES + 1))),
    ]
    assert read_manifest(cluster.store, RUN) == manifest
    assert cluster.store.uploaded[-1] == f"{RUN}/manifest.json"
    assert left(cluster) == ()


def test_the_output_folder_lands_also_beside_paths_of_ones_own(cluster: Cluster) -> None:
    cluster.rules = ArtifactRules(paths=("*.log", "eval/"))
    cluster.write("chief0", "a.log", "1")
    cluster.write("chief0", "eval/b", "2")
    cluster.write("chief0", "output/.hidden", "3")
    cluster.write("chief0", "other/c.log", "no")
    landing(cluster)
    assert cluster.landed() == {
        "chief0/a.log": b"1",
        "chief0/eval/b": b"2",
        "chief0/output/.hidden": b"3",
    }


def test_a_run_that_made_nothing_lands_an_empty_complete_manifest(cluster: Cluster) -> None:
    manifest = landing(cluster)
    assert (dict(manifest.files), manifest.complete) == ({}, True)


def test_a_node_whose_task_is_not_on_record_lands_with_the_others(cluster: Cluster) -> None:
    """A run that only the nodes know has just those tasks of which something had not landed."""
    cluster.write("chief0", "output/model", "1")
    cluster.write("worker0", "output/log", "2")
    cluster.run = replace(cluster.run, tasks=cluster.run.tasks[:1])
    manifest = landing(cluster)
    assert cluster.landed() == {"chief0/output/model": b"1", "worker0/output/log": b"2"}
    assert set(manifest.landed_attempts) == {"chief0"}


def test_a_task_without_a_work_folder_has_nothing_to_land(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, workers=0)
    cluster.work("chief0").rmdir()
    assert landing(cluster).complete


NAMES = [
    "with  spaces ",
    "-rf",
    "quo'te\"d",
    "$(touch INJECTED)",
    "new\nline",
    "tab\tand\\back\\slash",
    "Grüße-世界-🙂",
    os.fsdecode(b"not utf-8 \xff\xfe"),
    "[a-z]*?",
    "." + "x" * 250,
    "deep/" * 40 + "file",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_file_of_any_name_lands_once_and_is_found_again(tmp_path: Path, name: str) -> None:
    cluster = Cluster(tmp_path, workers=0)
    cluster.write("chief0", f"output/{name}", name.encode("utf-8", "surrogateescape"))
    landing(cluster)
    assert cluster.landed() == {f"chief0/output/{name}": name.encode("utf-8", "surrogateescape")}
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    assert list(manifest.files) == [f"chief0/output/{name}"]
    assert left(cluster) == ()
    assert not list(tmp_path.rglob("INJECTED"))


def test_a_thousand_small_files_and_a_large_one_come_in_one_stream(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, workers=0)
    for number in range(1000):
        cluster.write("chief0", f"output/{number % 10}/{number}", f"{number}" * 10)
    cluster.write("chief0", "output/large", os.urandom(5_000_001))
    manifest = landing(cluster)
    assert len(manifest.files) == 1001
    assert [is_pack(line) for line in cluster.transport.commands].count(True) == 1
    assert left(cluster) == ()


# ── Links and other things that are no files ─────────────────────────────────


def test_links_inside_the_work_folder_land_as_what_they_point_to(cluster: Cluster) -> None:
    cluster.write("chief0", "results/a/model", "m")
    (cluster.work("chief0") / "output").symlink_to("results")
    (cluster.work("chief0") / "results/latest").symlink_to("a")
    (cluster.work("chief0") / "results/best").symlink_to(cluster.work("chief0") / "results/a/model")
    landing(cluster)
    assert cluster.landed() == {
        "chief0/output/a/model": b"m",
        "chief0/output/best": b"m",
        "chief0/output/latest/model": b"m",
    }
    assert left(cluster) == ()
    assert cluster.console.warned == []


def test_links_that_lead_out_or_nowhere_or_in_circles_are_named_and_not_followed(
    cluster: Cluster, tmp_path: Path
) -> None:
    outside = tmp_path / "secret"
    outside.write_text("not yours")
    output = cluster.work("chief0") / "output"
    output.mkdir()
    (output / "out").symlink_to(outside)
    (output / "up").symlink_to("../../../..")
    (output / "broken").symlink_to("nothing")
    (output / "self").symlink_to("self")
    (output / "loop").symlink_to(".")
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(output)  # a socket's path is short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    landing(cluster)
    assert cluster.landed() == {}
    assert sorted(cluster.console.warned) == [
        "chief0/output/broken is a link to nothing: not landed",
        "chief0/output/loop is a link to a folder that it is in: not landed",
        "chief0/output/out is a link out of the work folder: not landed",
        "chief0/output/pipe is a named pipe: not landed",
        "chief0/output/self is a link in a circle: not landed",
        "chief0/output/socket is a socket: not landed",
        "chief0/output/up is a link out of the work folder: not landed",
    ]
    assert left(cluster) == ()


def test_a_warning_is_given_once(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    (cluster.work("chief0") / "output/broken").symlink_to("nothing")
    landing(cluster, final=False)
    landing(cluster, final=False)
    landing(cluster)
    assert len(cluster.console.warned) == 1


def test_hard_links_land_as_files(cluster: Cluster) -> None:
    one = cluster.write("chief0", "output/one", b"x" * (BATCH_BYTES + 1))
    (cluster.work("chief0") / "output/two").hardlink_to(one)
    landing(cluster)
    assert cluster.landed()["chief0/output/two"] == b"x" * (BATCH_BYTES + 1)


def test_the_work_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, workers=0)
    work = cluster.work("chief0")
    work.rmdir()
    (work.parent / "code/sub").mkdir(parents=True)
    work.symlink_to("code/sub")
    cluster.write("chief0", "output/x", "1")
    (work / "output/absolute").symlink_to(work / "output/x")
    landing(cluster)
    assert cluster.landed() == {"chief0/output/absolute": b"1", "chief0/output/x": b"1"}
    assert left(cluster) == ()


# ── Again and again ──────────────────────────────────────────────────────────


def test_only_what_has_changed_is_sent_again(cluster: Cluster) -> None:
    cluster.write("chief0", "output/same", b"s" * 300_000)
    cluster.write("chief0", "output/log", "1\n")
    landing(cluster, final=False)
    cluster.store.uploaded.clear()
    cluster.write("chief0", "output/log", "1\n2\n")
    manifest = landing(cluster, final=False)
    assert cluster.store.uploaded == [f"{RUN}/again/chief0/output/log", f"{RUN}/manifest.json"]
    assert manifest.files["chief0/output/log"].sha256 == sha(b"1\n2\n")
    assert not manifest.complete


def test_nothing_is_stored_where_nothing_has_changed(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    landing(cluster, final=False)
    cluster.store.uploaded.clear()
    landing(cluster, final=False)
    assert cluster.store.uploaded == []


def test_a_touched_file_is_compared_and_not_sent(cluster: Cluster) -> None:
    place = cluster.write("chief0", "output/x", "1")
    landing(cluster, final=False)
    cluster.store.uploaded.clear()
    os.utime(place, (5, 5))
    landing(cluster, final=False)
    assert cluster.store.uploaded == [f"{RUN}/manifest.json"]


def test_the_end_finds_a_change_that_size_and_times_do_not_show(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "one")
    before = landing(cluster, final=False)
    place = cluster.write("chief0", "output/x", "two")
    stamp = f'"stamp": "{before.files["chief0/output/x"].stamp}"'
    path = cluster.folder / RUN / "manifest.json"
    info = place.stat()
    now = f"{_times(place)}/{info.st_ino}"
    assert stamp in path.read_text()
    path.write_text(path.read_text().replace(stamp, f'"stamp": "{now}"'))
    last = cluster.land(final=False, own=None)  # as if it had been written so
    assert last.files["chief0/output/x"].sha256 == sha(b"one")
    assert cluster.land(own=None).files["chief0/output/x"].sha256 == sha(b"two")


def _times(path: Path) -> str:
    return subprocess.run(
        ["find", str(path), "-printf", "%T@/%C@"], capture_output=True, text=True, check=True
    ).stdout


def test_at_the_end_every_file_is_at_its_own_place(cluster: Cluster) -> None:
    for text in ("1", "22", "333"):
        cluster.write("chief0", "output/x", text)
        landing(cluster, final=False)
        cluster.write("chief0", "output/y", text)
        manifest = landing(cluster, final=False)
    manifest = landing(cluster)
    assert all(each.at == path for path, each in manifest.files.items())
    assert cluster.landed()["chief0/output/x"] == b"333"
    assert cluster.landed()["chief0/output/y"] == b"333"


def test_what_has_landed_stays_when_its_node_is_gone_or_replaced(cluster: Cluster) -> None:
    cluster.write("worker0", "output/events", "first attempt")
    cluster.write("chief0", "output/x", "1")
    landing(cluster, final=False)
    (cluster.work("worker0") / "output/events").unlink()
    cluster.write("worker0", "output/other", "second attempt")
    assert set(landing(cluster, final=False).files) == {
        "chief0/output/x",
        "worker0/output/events",
        "worker0/output/other",
    }
    del cluster.nodes["worker0"]
    assert "worker0/output/events" in landing(cluster).files


def test_a_folder_takes_the_place_of_a_file_in_the_manifest(cluster: Cluster) -> None:
    place = cluster.write("chief0", "output/model", "file")
    landing(cluster, final=False)
    place.unlink()
    cluster.write("chief0", "output/model/weights", "w")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        landing(cluster)
    (cluster.folder / RUN / "chief0/output/model").unlink()
    assert set(landing(cluster).files) == {"chief0/output/model/weights"}


# ── Files that change while they are read ────────────────────────────────────


def test_a_file_that_changes_once_while_it_is_read_lands_as_it_is_then(cluster: Cluster) -> None:
    place = cluster.write("chief0", "output/x", b"a" * 3_000_000)
    changes = iter([b"b" * 3_000_001])

    def change(line: str) -> None:
        if is_pack(line) and (content := next(changes, None)):
            place.write_bytes(content)

    cluster.transport.during = change
    landing(cluster)
    assert cluster.landed()["chief0/output/x"] == b"b" * 3_000_001
    assert left(cluster) == ()


def test_a_file_that_keeps_changing_is_named_at_the_end_and_left_for_later_before(
    cluster: Cluster,
) -> None:
    place = cluster.write("chief0", "output/x", b"a" * 3_000_000)
    cluster.write("chief0", "output/quiet", "q")

    def change(line: str) -> None:
        if is_pack(line):
            with place.open("ab") as file:
                file.write(b"more")

    cluster.transport.during = change
    assert "chief0/output/quiet" in landing(cluster, final=False).files
    with pytest.raises(NotLanded, match=r"mnist-chief0: .*chief0/output/x$"):
        landing(cluster)
    written = read_manifest(cluster.store, RUN)
    assert written is not None
    assert not written.complete
    for each in written.files.values():  # of a file that grows, a whole earlier version may be in
        assert sha(cluster.landed()[each.at]) == each.sha256
    cluster.transport.during = lambda line: None
    assert landing(cluster).complete
    assert cluster.landed()["chief0/output/x"] == place.read_bytes()


def test_a_manifest_names_no_version_that_a_later_round_has_written_over(
    cluster: Cluster,
) -> None:
    size = 3_000_000
    place = cluster.write("chief0", "output/x", b"0" * size)
    cluster.write("chief0", "output/quiet", "q")
    packs = 0

    def before(line: str) -> None:
        nonlocal packs
        packs += is_pack(line)
        if packs and "node.listing" in line:  # whole when it was brought, and another one since
            place.write_bytes(b"%d" % packs * size)

    def during(line: str) -> None:
        if packs > 1 and is_pack(line):
            place.write_bytes(b"x" * size)

    cluster.transport.before, cluster.transport.during = before, during
    with pytest.raises(NotLanded):
        landing(cluster)
    written = read_manifest(cluster.store, RUN)
    assert written is not None
    for each in written.files.values():
        assert sha(cluster.landed()[each.at]) == each.sha256


def test_a_file_that_vanishes_before_it_is_read_is_not_missed(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    place = cluster.write("chief0", "output/temporary", "2")
    cluster.transport.before = lambda line: is_pack(line) and place.unlink(missing_ok=True)  # type: ignore[assignment, func-returns-value]
    assert set(landing(cluster).files) == {"chief0/output/x"}


def test_a_file_that_shrinks_while_it_is_read_never_lands_padded(cluster: Cluster) -> None:
    place = cluster.write("chief0", "output/x", b"a" * 3_000_000)

    def shrink(line: str) -> None:
        if is_pack(line):
            os.truncate(place, 1_500_000)

    cluster.transport.during = shrink
    landing(cluster)
    assert cluster.landed()["chief0/output/x"] == b"a" * 1_500_000


# ── Faults ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bytes_", [0, 100, 70_000, 1_000_000])
def test_a_broken_connection_is_an_error_and_the_next_landing_completes(
    cluster: Cluster, bytes_: int
) -> None:
    content = os.urandom(3_000_000)
    cluster.write("chief0", "output/large", content)
    cluster.write("chief0", "output/small", "s")
    cluster.transport.break_after = bytes_
    with pytest.raises(NotLanded, match="mnist-chief0: the connection broke") as raised:
        landing(cluster)
    assert raised.value.exit_code == 5
    for path, each in (read_manifest(cluster.store, RUN) or Manifest(run=RUN)).files.items():
        assert sha(cluster.landed()[path]) == each.sha256
    assert cluster.landed().get("chief0/output/large", content) == content
    cluster.transport.break_after = None
    assert left(cluster) != ()
    assert landing(cluster).complete
    assert cluster.landed() == {"chief0/output/large": content, "chief0/output/small": b"s"}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("uploads", range(8))
def test_a_store_that_refuses_at_any_moment_leaves_a_true_manifest(
    cluster: Cluster, uploads: int
) -> None:
    for number in range(3):
        cluster.write("chief0", f"output/{number}", f"first {number}")
    landing(cluster, final=False)
    for number in range(3):
        cluster.write("chief0", f"output/{number}", f"second {number}, longer")
    cluster.store.uploads_left = uploads
    with suppress(StoreError):  # the last of them is one that it gets through with
        landing(cluster)
    cluster.store.uploads_left = None
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    for each in manifest.files.values():
        assert sha(cluster.landed()[each.at]) == each.sha256
    assert landing(cluster).complete
    assert left(cluster) == ()


KILLED = """
import os, sys
from pathlib import Path
from tests.support.landing_parts import Cluster

cluster = Cluster(Path(sys.argv[1]))
store, upload, left = cluster.store, cluster.store.upload, [int(sys.argv[2])]

def deadly(path, data):
    left[0] -= 1
    return upload(path, dying(data) if left[0] == 0 else data)

def dying(data):
    yield next(iter(data))[:1]
    os._exit(9)

store.upload = deadly
cluster.land(checkpoints="ckpt")
"""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("uploads", [1, 2, 4, 5, 6, 7, 8])
def test_a_landing_that_is_killed_leaves_a_true_manifest_and_the_next_one_completes(
    cluster: Cluster, tmp_path: Path, uploads: int
) -> None:
    for number in range(2):
        cluster.write("chief0", f"output/{number}", f"first {number}")
        cluster.write("chief0", f"ckpt/{number}", os.urandom(BATCH_BYTES + 1))
    landing(cluster, final=False, checkpoints="ckpt")
    for number in range(2):
        cluster.write("chief0", f"output/{number}", f"second {number}, longer")
        cluster.write("chief0", f"ckpt/{number}", os.urandom(BATCH_BYTES + 2))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, str(uploads)],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert killed.returncode == 9
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    assert len(manifest.files) == 4
    for each in manifest.files.values():
        assert sha(cluster.landed()[each.at]) == each.sha256
    assert landing(cluster, checkpoints="ckpt").complete
    assert left(cluster, "ckpt") == ()


KILLED_BY_CALL = """
import os, sys
from pathlib import Path
from tests.support.landing_parts import Cluster

cluster, name, left = Cluster(Path(sys.argv[1])), sys.argv[2], [int(sys.argv[3])]
call = getattr(os, name)

def deadly(*args, **named):
    left[0] -= 1
    if left[0] == 0:
        os._exit(9)
    return call(*args, **named)

setattr(os, name, deadly)
cluster.land(store=cluster.store.store)
"""


@pytest.mark.parametrize(("call", "number"), [("fsync", 20), ("replace", 20), ("replace", 41)])
def test_a_landing_that_is_killed_in_a_batch_leaves_whole_files_and_the_next_one_completes(
    cluster: Cluster, tmp_path: Path, call: str, number: int
) -> None:
    files = {f"chief0/output/{n % 3}/{n}": os.urandom(5000) for n in range(40)}
    for path, content in files.items():
        cluster.write("chief0", path.removeprefix("chief0/"), content)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BY_CALL, tmp_path, call, str(number)],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert killed.returncode == 9
    assert cluster.landed().items() <= files.items()
    assert read_manifest(cluster.store, RUN) is None
    assert cluster.land(store=cluster.store.store).complete
    assert cluster.landed() == files
    assert left(cluster) == ()


@pytest.mark.parametrize("command", [1, 2, 3])
def test_a_connection_that_breaks_once_is_opened_again_and_all_has_landed(
    cluster: Cluster, command: int
) -> None:
    content = os.urandom(100_000)
    cluster.write("chief0", "output/x", content)
    commands = itertools.count(1)

    def before(line: str) -> None:
        if next(commands) == command:
            raise NodeUnreachable("mnist-chief0", "the connection broke")

    cluster.transport.before = before
    assert landing(cluster).complete
    assert cluster.landed() == {"chief0/output/x": content}


def test_every_node_s_failure_is_told_and_the_others_have_landed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, workers=3)
    for task in cluster.nodes:
        cluster.write(task, "output/x", task)

    cluster.transport.before = _broken
    with pytest.raises(NotLanded) as raised:
        landing(cluster)
    assert "mnist-worker0" in str(raised.value)
    assert "mnist-worker2" in str(raised.value)
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    assert set(manifest.files) == {"chief0/output/x", "worker1/output/x"}


def _broken(line: str) -> None:
    for task in ("worker0", "worker2"):
        if f"/{task}/" in line:
            raise NodeUnreachable(f"mnist-{task}", "no answer")


def other_bytes(manifest: Manifest, cluster: Cluster) -> Manifest:
    """As they are: the objects that it lists hold others, and it says the MD5 of those."""
    files = {path: replace(f, md5=spoil(cluster, f)[1]) for path, f in manifest.files.items()}
    return replace(manifest, files=files)


def other_sums(manifest: Manifest, cluster: Cluster) -> Manifest:
    """With all that is true of what the store has now, and the stamps of the nodes' files."""
    spoilt = {path: spoil(cluster, each) for path, each in manifest.files.items()}
    files = {
        path: replace(each, sha256=spoilt[path][0], md5=spoilt[path][1])
        for path, each in manifest.files.items()
    }
    return replace(manifest, files=files)


def other_checkpoint(manifest: Manifest, cluster: Cluster) -> Manifest:
    """It names another task's checkpoint, so that nobody looks for the chief's."""
    model = manifest.files.get("worker0/output/model")
    assert model is not None
    files = {path: f for path, f in manifest.files.items() if "/ckpt/" not in path}
    return replace(
        manifest,
        files={**files, "worker0/ckpt/x": replace(model, path="worker0/ckpt/x", at=model.at)},
        checkpoint=Checkpoint(task="worker0", folder="ckpt", paths=("worker0/ckpt/x",)),
    )


def spoil(cluster: Cluster, landed: Artifact) -> tuple[str, str]:
    """Write as many other bytes over it; their SHA-256 and MD5."""
    bad = bytes(landed.size)
    cluster.store.upload(f"{RUN}/{landed.at}", [bad])
    return sha(bad), hashlib.md5(bad).hexdigest()


@pytest.mark.parametrize("attack", [other_bytes, other_sums, other_checkpoint])
def test_a_manifest_that_somebody_else_wrote_does_not_say_what_has_landed(
    attack: Callable[[Manifest, Cluster], Manifest], cluster: Cluster
) -> None:
    """That all has: then a `down` would delete the nodes."""
    true = {
        "chief0/output/model": os.urandom(BATCH_BYTES + 1),
        "chief0/ckpt/model-1.index": os.urandom(100),
        "worker0/output/model": os.urandom(200),
    }
    cluster.rules = ArtifactRules(paths=("output/**",))
    for name, content in true.items():
        cluster.write(*name.split("/", 1), content)
    landing(cluster, checkpoints="ckpt")
    assert left(cluster, "ckpt") == ()
    manifest = read_manifest(cluster.store, RUN)
    assert manifest is not None
    write_manifest(cluster.store, attack(manifest, cluster))
    assert left(cluster, "ckpt")
    land_files(cluster.landing("ckpt"), cluster.run, cluster.nodes, certain=True)
    assert left(cluster, "ckpt") == ()
    held = cluster.landed()
    assert {path: held[path] for path in true} == true


def test_files_that_were_removed_from_the_store_are_landed_again(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    cluster.write("chief0", "output/y", "2")
    landing(cluster)
    (cluster.folder / RUN / "chief0/output/x").unlink()
    assert left(cluster) == (f"{RUN}/chief0/output/x",)
    assert landing(cluster).complete
    assert cluster.landed() == {"chief0/output/x": b"1", "chief0/output/y": b"2"}
    assert cluster.console.warned == ["missing from the store, or altered there: chief0/output/x"]


def test_a_store_that_is_removed_while_files_land_is_not_called_complete(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    landing(cluster, final=False)
    cluster.transport.before = lambda line: shutil.rmtree(cluster.folder, ignore_errors=True)
    with pytest.raises(
        StoreError, match="uploaded files are missing, or were altered: chief0/output/x"
    ):
        landing(cluster)
    cluster.transport.before = lambda line: None
    assert landing(cluster).complete
    assert cluster.landed() == {"chief0/output/x": b"1"}


def test_a_node_without_python_is_an_error_and_not_an_empty_landing(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    os.environ["PATH"], path = "/nonexistent", os.environ["PATH"]
    try:
        with pytest.raises(NotLanded, match=r"mnist-chief0: cannot list .* python3 not found"):
            landing(cluster)
    finally:
        os.environ["PATH"] = path


# ── What is only on a node ───────────────────────────────────────────────────


def test_down_learns_from_the_disks_alone_what_has_not_landed(cluster: Cluster) -> None:
    cluster.write("chief0", "output/x", "1")
    cluster.write("worker0", "output/y", "2")
    cluster.write("chief0", "ckpt/checkpoint", "3")
    assert runs_on(cluster.nodes["chief0"], "mnist", cluster.transport) == ((RUN, "chief0"),)
    assert runs_on(cluster.nodes["chief0"], "other", cluster.transport) == ()
    assert left(cluster, "ckpt") == (
        f"{RUN}/chief0/output/x",
        f"{RUN}/chief0/ckpt/checkpoint",
        f"{RUN}/worker0/output/y",
    )
    landing(cluster, checkpoints="ckpt")
    assert left(cluster, "ckpt") == ()
    cluster.write("chief0", "output/x", "9")
    assert left(cluster, "ckpt") == (f"{RUN}/chief0/output/x",)


def test_what_is_compared_with_the_nodes_is_counted_meanwhile(cluster: Cluster) -> None:
    for number in range(30):
        cluster.write("chief0", f"output/{number}", "x" * number)
    landing(cluster)
    told: list[tuple[str, str]] = []

    class Stage:
        def node(self, name: str, text: str) -> None:
            told.append((name, text))

        def done(self, name: str, text: str = "") -> None:
            told.append((name, f"done: {text}"))

    facts = json.loads((cluster.folder / RUN / "manifest.json").read_text())
    (cluster.folder / RUN / "manifest.json").write_text(json.dumps({**facts, "complete": False}))
    found = pending_files(cluster.landing(), [cluster.nodes["chief0"]], Stage())
    assert found == ()
    assert ("mnist-chief0", "30 of 30 files compared by SHA-256") in told
    assert told[-1] == ("mnist-chief0", "done: 30 files")


def test_a_node_that_does_not_answer_is_never_taken_for_one_without_files(
    cluster: Cluster,
) -> None:
    cluster.write("worker0", "output/y", "2")
    cluster.transport.break_after = 0
    with pytest.raises(NotLanded) as raised:
        left(cluster)
    assert raised.value.exit_code == 5


# ── Required files, logs, the record ─────────────────────────────────────────


def test_a_required_file_may_come_from_any_task_and_a_folder_counts_with_its_files(
    cluster: Cluster,
) -> None:
    cluster.write("worker0", "output/model/weights.h5", "w")
    manifest = landing(cluster)
    rules = ArtifactRules(
        require=("output/model", "output/*.pb", "**/*.h5", "output/model/weights.h5", "logs/**")
    )
    assert missing(manifest, rules) == ("output/*.pb", "logs/**")


def test_logs_and_the_record_land_and_are_in_the_manifest(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"step 1\n")
    cluster.write("chief0", "output/x", "1")
    landing(cluster)
    land_logs(cluster.run, {"chief0.attempt-1.log": log}, cluster.store)
    log.write_bytes(b"step 1\nstep 2\n")
    manifest = land_logs(cluster.run, {"chief0.attempt-1.log": log}, cluster.store)
    assert manifest.complete
    landed = cluster.landed()
    assert landed["logs/chief0.attempt-1.log"] == b"step 1\nstep 2\n"
    assert json.loads(landed["run.json"])["state"] == "running"
    assert set(manifest.files) == {"chief0/output/x", "logs/chief0.attempt-1.log", "run.json"}
    assert missing(manifest, ArtifactRules(require=("*.log", "*.json"))) == ("*.log", "*.json")
