"""Writes down what this commit leaves on disk, in stores and on nodes, for test_frozen.py to read.

    python -m tests.freeze tests/frozen/2026-11-22

A set is made when a format changes, and never changed or deleted afterwards: whoever made a
cluster with that commit has to be able to end it, and to read what it landed.

    clusters/   the records of two clusters: one taken down after a run, one that is up
    store/      what the first one's run landed
    node/       what the watcher and the agent of a task leave on its node
    spool/      what the agent stored while nobody was there
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_parts import Kept
from tests.support.project import Project
from tests.support.web_store import service

SECRET = ("key", "key.pub", "host_keys", "known_hosts", "ssh_config", "lock")
"""Keys are no part of a set; without them a cluster's nodes are for nobody to enter."""
ANYWHERE = "/frozen"
"""In the place of the folder that everything was made in."""


def main(target: Path) -> None:
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="freeze") as folder:
        clusters(Path(folder), target)
    with tempfile.TemporaryDirectory(prefix="freeze") as folder:
        agent(Path(folder), target)


def clusters(folder: Path, target: Path) -> None:
    project = Project(folder / "project")
    try:
        project.name = "was-up"
        done(project, "run", project.config(train={"env": {"A": "b c"}}))
        project.name = "is-up"
        failing = "python3 rank.py --output {output} && mkdir -p output && exit 3"
        config = project.config(
            train={"command": failing, "max_restarts": 1, "retry_exit_codes": [3]},
            artifacts={"require": ["output/model"]},
        )
        done(project, "up", config)
        project.cloudtrain("train", "is-up")
        copy(project.home / "clusters", target / "clusters", folder)
        shutil.copytree(project.store, target / "store")  # to the byte: manifests have digests
    finally:
        project.cloudtrain("down", "is-up", "--yes", "--discard")
        project.end()


def done(project: Project, *arguments: Any) -> None:
    completed = project.cloudtrain(*arguments)
    assert completed.returncode == 0, completed.stderr


def agent(folder: Path, target: Path) -> None:
    here = Path.cwd()
    with service() as told, pytest.MonkeyPatch.context() as patch:
        kept = Kept(folder, told, patch)
        try:
            kept.start("echo trained; mkdir -p output; echo model >output/model; exit 3")
            kept.write("worker0", "output/events", "e" * 100)
            kept.start("true", "worker0")
            kept.keep()
            kept.wait_for_archives(2)
            for task in ("chief0", "worker0"):
                kept.wait_for_the_agent_to_leave(task)
                copy(kept.place(task), target / "node" / task, folder)
            for path, data in told.objects.items():
                place = target / "spool" / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        finally:
            os.chdir(here)
            kept.power_off()


def copy(source: Path, target: Path, folder: Path) -> None:
    ignored = shutil.ignore_patterns(*SECRET, ".partial")
    shutil.copytree(source, target, symlinks=True, ignore=ignored)
    for path in target.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if str(folder).encode() in data:
                path.write_bytes(data.replace(str(folder).encode(), ANYWHERE.encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
