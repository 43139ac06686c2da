"""action.yml, its steps run by bash as GitHub's runner runs those of a composite action."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.project import Project

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
"""https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax, `shell`."""


class Runner:
    """One job's temporary folder, and what its steps have put out."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder / "a runner's temp"
        self.temporary.mkdir()
        self.output = folder / "output"

    def step(self, step: str, project: Project, **inputs: str) -> subprocess.CompletedProcess[str]:
        (run,) = [one for one in ACTION["runs"]["steps"] if one["id"] == step]
        given = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | inputs
        environment = {
            **project.environment,
            **{name: self.expanded(value, given) for name, value in run["env"].items()},
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_OUTPUT": str(self.output),
        }
        assert run["shell"] == "bash"
        script = self.temporary / f"{step}.sh"
        script.write_text(run["run"], "utf-8")
        return subprocess.run(
            [*SHELL, str(script)],
            env=environment,
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def expanded(self, value: str, given: dict[str, str]) -> str:
        values = {f"inputs.{name}": text for name, text in given.items()}
        values["github.action_path"] = str(ROOT)
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], value)

    def document(self) -> Any:
        name, _, path = self.output.read_text().strip().partition("=")
        assert name == "json"
        return json.loads(Path(path).read_bytes())


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def installed(runner: Runner) -> Runner:
    """With the checkout's own cloudtrain in the place of the first step."""
    programs = runner.temporary / "cloudtrain-venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "cloudtrain").symlink_to(Path(sys.executable).with_name("cloudtrain"))
    return runner


def test_no_input_is_part_of_a_script() -> None:
    """It could be a command: inputs are handed over as variables."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


@pytest.mark.openssh
def test_a_step_runs_the_file_and_its_document_is_an_output(
    installed: Runner, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project")
    config = project.config()
    done = installed.step(
        "command", project, file=str(config), arguments="--json\n--yes\n--set\ntrain.max_restarts=1"
    )
    assert done.returncode == 0, done.stderr
    assert installed.document()["state"] == "succeeded"
    assert project.landed("worker0", "output/worker0.txt")


def test_words_reach_the_command_as_they_are_written(installed: Runner, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    config = project.config().rename(project.folder / "$(touch made); a b.yaml")
    given = {"command": "plan", "file": config.name}
    done = installed.step("command", project, arguments="--json\n--set\nname=a b", **given)
    assert done.returncode == 2
    assert "a b" in done.stdout + done.stderr
    done = installed.step("command", project, arguments="--json\n\n", **given)
    assert done.returncode == 0, done.stderr
    assert not (project.folder / "made").exists()


@pytest.mark.sweep(0)
def test_a_bare_runner_installs_what_the_extras_say(runner: Runner, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    del project.environment["PYTHONPATH"]
    done = runner.step("install", project, extras="aws")
    assert done.returncode == 0, done.stderr
    done = runner.step("command", project, command="plan", file=str(project.config()))
    assert done.returncode == 0, done.stderr
    python = runner.temporary / "cloudtrain-venv" / "bin" / "python"
    subprocess.run([python, "-c", "import boto3"], check=True, env={**os.environ, "PYTHONPATH": ""})
