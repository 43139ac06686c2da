"""Nodes that answer without end, or nonsense, or have more names than can land."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.artifacts import inventory, uploads
from cloudtrain.artifacts.land import pending_files
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.core.errors import NotLanded
from cloudtrain.node import listing
from tests.support.landing_parts import RUN, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def landed(cluster: Cluster) -> Manifest:
    return cluster.land()


def instead_of(cluster: Cluster, program: str, script: str) -> None:
    """On the worker, this comes in the place of a program: of `tar`, or of one of node/."""
    folder = cluster.transport.folder / "bin"
    folder.mkdir(exist_ok=True)
    name = program if program == "tar" else "python3"
    place = folder / name
    real = f'PATH={os.environ["PATH"]} exec {name} "$@"'
    mine = "*" if program == "tar" else f"*cloudtrain.node.{program}*"
    place.write_text(
        f'#!/bin/sh\ncase "$HOME" in *worker0) ;; *) {real} ;; esac\n'
        f'case "$*" in {mine}) ;; *) {real} ;; esac\n{script}\n'
    )
    place.chmod(0o755)
    cluster.transport.environment["PATH"] = f"{folder}:{os.environ['PATH']}"


def printing(row: str) -> str:
    return f'cat >/dev/null; cat <<\'END\'\n{row}\n{{"others": {{}}, "unread": []}}\nEND'


NONSENSE = [
    (printing('["output/x", "", 1]'), '["output/x", "", 1]'),
    (printing('["output/x", "", "one", "1.0/1.0/7"]'), '["output/x", "", "one"'),
    (printing('["output/x", "", 1, "1.0/now/7"]'), '"1.0/now/7"'),
    (printing('["output/x", "", -1, "1.0/1.0/7"]'), '["output/x", "", -1'),
    (printing('["../../x", "", 1, "1.0/1.0/7"]'), '["../../x"'),
    (printing('["output/x", "../../x", 1, "1.0/1.0/7"]'), '["output/x", "../../x"'),
    (printing('["output/x", 7, 1, "1.0/1.0/7"]'), '["output/x", 7'),
    ("""cat >/dev/null; echo '["output/x", "", 1, "1.0/1.0/7"]'""", "truncated after "),
    ("cat >/dev/null", "truncated after "),
    ("""cat >/dev/null; echo '{"others": 7}'""", "truncated after "),
]


@pytest.mark.parametrize(("script", "words"), NONSENSE)
def test_a_listing_that_makes_no_sense_names_its_node_and_file(
    cluster: Cluster, script: str, words: str
) -> None:
    cluster.write("chief0", "output/good", "good")
    instead_of(cluster, "listing", script)
    with pytest.raises(NotLanded) as caught:
        landed(cluster)
    assert caught.value.message.startswith("mnist-worker0: its list of the files in ")
    assert words in caught.value.message
    assert cluster.landed()["chief0/output/good"] == b"good", "the other node is not held up"


ENDLESS = [
    ("listing", """while echo '["output/x", "", 1, "1.0/1.0/7"]'; do :; done"""),
    ("listing", "exec yes"),
    ("checksums", "exec yes"),
    ("tar", "exec yes"),
]


@pytest.mark.parametrize(("program", "script"), ENDLESS)
def test_an_answer_without_end_is_given_up_and_fails_its_node_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, program: str, script: str
) -> None:
    monkeypatch.setattr(inventory, "LISTED", 1 << 20)
    monkeypatch.setattr(uploads, "GROWTH", 1 << 20)
    for task in ("chief0", "worker0"):
        cluster.write(task, "output/good", "good")
    instead_of(cluster, program, script)
    with pytest.raises(NotLanded, match=r"mnist-worker0: .*MB"):
        landed(cluster)
    assert cluster.landed()["chief0/output/good"] == b"good"


def test_a_file_far_larger_than_it_was_listed_goes_to_no_store(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "GROWTH", 1 << 20)
    cluster.write("worker0", "output/small", "small")
    large = cluster.folder.parent / "output"
    large.mkdir()
    with (large / "small").open("wb") as file:
        file.truncate(1 << 33)
    script = f"cd '{large.parent}' && PATH={os.environ['PATH']} exec tar -c ./output/small"
    instead_of(cluster, "tar", script)
    with pytest.raises(NotLanded, match=r"mnist-worker0: output/small: sent more than 1 MB"):
        landed(cluster)
    assert cluster.landed() == {}


def test_a_list_of_runs_that_makes_no_sense_names_its_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.artifacts.land.RUNS", "printf '/etc/passwd\\0'")
    with pytest.raises(NotLanded, match="mnist-chief0: its list of runs is invalid"):
        pending_files(cluster.landing(), [cluster.nodes["chief0"]])


MANY = 10_000


@pytest.mark.timeout(120)
def test_many_names_that_cannot_land_take_no_longer_and_are_counted(cluster: Cluster) -> None:
    """A script that links its data set into its output; once more, with a second node, with
    another landing. Compared one by one, this took 22 minutes for 200,000."""
    for task in cluster.nodes:
        folder = cluster.write(task, "output/good", "good").parent
        for number in range(MANY):
            (folder / f"link-{number}").symlink_to(f"link-{(number + 1) % MANY}")
    for _ in range(2):
        manifest = landed(cluster)
    assert len(manifest.warnings) == 2 * (listing.NAMED + 1)
    more = f"chief0/… {MANY - listing.NAMED} more: is a link in a circle: not landed"
    assert more in manifest.warnings
    assert len(cluster.console.warned) <= 2 * 11, "told once"


def test_a_manifest_that_lists_every_one_is_read_and_made_smaller(cluster: Cluster) -> None:
    cluster.write("chief0", "output/good", "good")
    place = cluster.folder / RUN / "manifest.json"
    landed(cluster)
    facts = json.loads(place.read_text())
    facts["warnings"] = [f"chief0/output/{n} is a link to nothing: not landed" for n in range(MANY)]
    place.write_text(json.dumps({**facts, "complete": False}))
    assert landed(cluster).warnings == ()
