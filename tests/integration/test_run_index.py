"""Runs of one machine as commands on another see them, from the store alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from tests.standins.stores import KINDS, Store
from tests.support.project import Project, until
from tests.support.run_index_parts import store

__all__ = ["store"]


# ── the command, on another machine ──────────────────────────────────────────


@pytest.fixture(params=["file", *KINDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """There until the project has ended: its last `down` asks for minutes for a store that is
    gone."""
    if request.param == "file":
        yield Store(uri=(tmp_path / "place").as_uri(), missing="", environment={})
        return
    with KINDS[request.param]() as place:
        yield place


def elsewhere(project: Project) -> Project:
    """The same user on a machine that knows nothing of it."""
    other = copy.copy(project)
    other.environment = {**project.environment, "CLOUDTRAIN_HOME": str(project.folder / "other")}
    return other


def cloudtrain(project: Project, *words: str | Path) -> Result:
    """In this process, as a command of its own takes seconds to load an SDK."""
    return CliRunner().invoke(cli, [str(word) for word in words], env=project.environment)


def answers(project: Project, folder: Path, *words: str | Path) -> dict[str, Any]:
    """What the three commands say there, without what tells where they were asked."""
    logs = cloudtrain(project, "logs", *words)
    fetch = cloudtrain(project, "fetch", *words, f"{folder}/", "--json")
    status = cloudtrain(project, "status", *words, "--json")
    for done in (logs, fetch, status):
        assert done.exit_code == 0, done.stderr
    (cluster,) = json.loads(status.stdout)["clusters"]
    return {
        "logs": logs.stdout,
        "run": json.loads(fetch.stdout)["run"],
        "files": {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        },
        "keys": sorted(cluster),
        "runs": cluster["runs"],
    }


@pytest.mark.sweep(2)
def test_logs_fetch_and_status_say_the_same_on_another_machine_after_the_end(
    place: Store, project: Project, tmp_path: Path
) -> None:
    project.environment.update(place.environment)
    config = project.config(artifacts={"store": place.uri})
    done = project.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    other = elsewhere(project)
    here = answers(project, tmp_path / "1", project.name)
    assert "chief0 │ chief0 done" in here["logs"]
    assert "chief0/output/chief0.txt" in here["files"]
    assert answers(other, tmp_path / "2", config) == here
    assert answers(other, tmp_path / "3", "--store", place.uri) == here
    assert answers(project, tmp_path / "4", "--store", place.uri) == here
    tail = cloudtrain(other, "logs", config, "-f", "--role", "worker", "--tail", "1")
    assert tail.stdout == "worker0 │ worker0 done\n"
    again = cloudtrain(other, "fetch", config, tmp_path / "5", "--run", "nothing")
    assert again.exit_code == 2
    assert again.stderr.endswith(f"hint: its latest runs: {here['run']}\n")
    missing = cloudtrain(other, "logs", project.name, "--store", place.missing or "file:///no")
    assert missing.exit_code == (5 if place.missing else 2)
    assert missing.stderr.startswith("error: ")


def test_a_run_that_goes_on_is_seen_elsewhere_as_of_its_last_landing(project: Project) -> None:
    config = project.config(
        train={"command": "python3 rank.py --steps 100000 --pause 0.05 --output {output}"},
        artifacts={"every": "1s"},
    )
    assert project.cloudtrain("up", config).returncode == 0
    assert project.cloudtrain("train", "--detach", config).returncode == 0
    other = elsewhere(project)

    def seen() -> str:
        return " ".join(cloudtrain(other, "status", config).stdout.split())

    def logs() -> str:
        return cloudtrain(other, "logs", config).stdout

    until(lambda: " running, as of " in seen(), 30, "its record lands")
    until(lambda: "chief0 step" in logs(), 30, "its logs land")
    followed = cloudtrain(other, "logs", "-f", config)
    assert followed.exit_code == 2
    assert "chief0 │ chief0 step" in followed.stdout
    assert "can be followed only on the machine that started it" in followed.stderr
    for words in (["stop-run", config], ["ssh", config], ["exec", config, "--", "true"]):
        refused = cloudtrain(other, *words)
        assert refused.exit_code == 2
        assert (
            "its SSH keys are on the machine that ran `up`\nhint: run this there" in refused.stderr
        )
    assert project.cloudtrain("stop-run", project.name).returncode == 0
    assert " stopped " in seen()
    assert "as of" not in seen()


def test_a_run_that_another_machine_made_is_fetched_by_its_id_where_the_cluster_is_known(
    project: Project, tmp_path: Path
) -> None:
    config = project.config()
    assert project.cloudtrain("run", config).returncode == 0
    other = elsewhere(project)
    assert other.cloudtrain("run", config).returncode == 0
    first, second = sorted(run["id"] for run in project.runs())
    fetched = cloudtrain(other, "fetch", project.name, tmp_path / "1", "--run", first)
    assert fetched.exit_code == 0, fetched.stderr
    assert (tmp_path / "1/chief0/output/chief0.txt").exists()
    shown = cloudtrain(project, "logs", project.name, "--run", second)
    assert "chief0 │ chief0 done" in shown.stdout


def test_a_config_without_a_store_says_where_its_artifacts_are(project: Project) -> None:
    config = project.config(artifacts={"store": None})
    for command in ("logs", "fetch"):
        done = cloudtrain(project, command, config)
        assert done.exit_code == 2
        assert "its config has no artifacts.store" in done.stderr
        assert "on the machine that ran it" in done.stderr
