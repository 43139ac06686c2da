"""The proof before a run, as a user sees it: with TensorFlow, on nodes of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_training import LIMIT, LOCAL, TWO
from tests.support.project import Project

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

SETUP = LOCAL["setup"]


def config(project: Project, *, setup: Any = SETUP, **train: Any) -> Path:
    return project.config(setup=setup, nodes=TWO, train={"command": "echo it trains", **train})


def runs(project: Project) -> list[dict[str, Any]]:
    done = project.cloudtrain("status", project.name, "--offline", "--json")
    found: list[dict[str, Any]] = json.loads(done.stdout)["clusters"][0]["runs"]
    return found


def test_what_the_nodes_gave_is_in_the_record_and_in_status(project: Project) -> None:
    done = project.cloudtrain("run", config(project), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    [run] = runs(project)
    assert [each["node"] for each in run["proof"]] == [
        f"{project.name}-chief0",
        f"{project.name}-worker0",
    ]
    for each in run["proof"]:
        assert each["tflops"][0] > 0
        assert each["grpc_gbytes"] > 0
    [stored] = project.store.glob("*/run.json")
    assert json.loads(stored.read_text())["proof"] == run["proof"]
    shown = project.cloudtrain("status", project.name, "--offline").stdout
    assert "    compute check: worker0 " in shown
    assert " over gRPC" in shown


def test_nodes_that_cannot_compute_end_the_run_before_it_starts(
    project: Project,
) -> None:
    folder = project.shared()
    (folder / "libstdc++.so.6").write_bytes(b"")  # as a broken image may have it
    env = {"LD_LIBRARY_PATH": str(folder)}
    done = project.cloudtrain("run", config(project, env=env), timeout=LIMIT)
    assert done.returncode == 1
    assert f"{project.name}-chief0, {project.name}-worker0: importing TensorFlow" in done.stderr
    assert "libstdc++.so.6: file too short" in done.stderr
    assert "it trains" not in done.stdout
    [run] = runs(project)
    assert run["attempts"][0]["cause"]["kind"] == "not_started"


def test_without_the_proof_nothing_is_computed(project: Project) -> None:
    done = project.cloudtrain(
        "run", config(project, setup={**SETUP, "prove": "off"}), timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert "compute check" not in done.stderr
    assert runs(project)[0]["proof"] == []
