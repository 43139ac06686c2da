"""A script that knows nothing of `{output}` loses nothing, from `run` to `down`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.project import Project

SCRIPT = """
import os, pathlib

for name, size in (("model/weights.h5", 3_000_000), ("logs/train/events", 2000)):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    pathlib.Path(name).write_bytes(b"w" * size)
pathlib.Path("~/best.ckpt").expanduser().write_text("best")
"""
MADE = {"model/weights.h5", "logs/train/events", "_home/best.ckpt"}


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {path.partition("chief0/")[2] for path in found if "chief0/" in path} - {""}


def test_whatever_it_saves_lands_or_keeps_its_node(project: Project, tmp_path: Path) -> None:
    (project.code / "save.py").write_text(SCRIPT)
    store = tmp_path / "store"
    sections: dict[str, Any] = {
        "nodes": {"chief": {}},
        "train": {"command": "python3 save.py"},
        "artifacts": {"store": store.as_uri()},
    }
    config = project.config(**sections)
    done = project.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    assert files(store) == MADE
    assert "warning" not in done.stderr

    sections["artifacts"] = {"store": (tmp_path / "other").as_uri(), "limit": "1MB"}
    config = project.config(**sections)
    kept = project.cloudtrain("run", config)
    assert kept.returncode == 5
    assert "chief0/model/ (3.0 MB): more than artifacts.limit: not landed" in kept.stderr
    assert "--from-nodes" in kept.stderr
    assert files(tmp_path / "other") == MADE - {"model/weights.h5"}
    assert project.cloudtrain("down", config).returncode == 5
    assert project.processes()

    took = project.cloudtrain("fetch", "--from-nodes", project.name, tmp_path / "here")
    assert took.returncode == 0, took.stderr
    assert files(tmp_path / "here") == MADE
    assert project.cloudtrain("down", config).returncode == 5

    down = project.cloudtrain("down", config, "--set", "artifacts.limit=4MB")
    assert down.returncode == 0, down.stderr
    assert files(tmp_path / "other") == MADE
    assert not project.processes()
