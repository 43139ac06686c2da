"""What a task installs, on local nodes whose clusters share one environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project
from tests.support.wheels import digest, wheel

NODES = {"chief": {}, "worker": {"count": 1}}


@pytest.fixture
def cache(project: Project, tmp_path: Path) -> Path:
    project.environment["CLOUDTRAIN_CACHE"] = str(tmp_path / "cache")
    return tmp_path / "cache" / "venvs"


@pytest.fixture
def setup(cache: Path) -> dict[str, Any]:
    return {"packages": [str(wheel(cache.parent / "wheels", "six"))]}


def the_environment(cache: Path) -> Path:
    """The layer with the packages: all that is above Python's own."""
    (found,) = cache.glob("python-packages-*/")
    return found


def test_what_tasks_install_ends_with_their_run(
    project: Project, cache: Path, setup: dict[str, Any]
) -> None:
    wheel(project.code / "wheels", "extra")
    install = "pip install -q --no-index --disable-pip-version-check wheels/*.whl"
    mine = project.config(
        strategy="custom",
        nodes=NODES,
        setup=setup,
        train={"command": f"{install} && extra && python -c 'import extra, six'", "success": "all"},
    )
    up = project.cloudtrain("up", mine)
    assert up.returncode == 0, up.stderr
    environment = the_environment(cache)
    before = digest(environment)
    done = project.cloudtrain("train", mine)
    assert done.returncode == 0, done.stderr
    assert digest(environment) == before
    assert done.stdout.count("/env\n") == 2
    project.config(
        strategy="custom",
        nodes=NODES,
        setup=setup,
        train={"command": "! python -c 'import extra' 2>/dev/null", "success": "all"},
    )
    again = project.cloudtrain("train", mine)
    assert again.returncode == 0, again.stderr


def test_a_shared_environment_that_was_changed_is_created_again(
    project: Project, cache: Path, setup: dict[str, Any]
) -> None:
    mine = project.config(strategy="custom", nodes={"chief": {}}, setup=setup)
    up = project.cloudtrain("up", mine)
    assert up.returncode == 0, up.stderr
    environment = the_environment(cache)
    before = digest(environment / "lib")
    (six,) = environment.glob("lib/*/site-packages/six.py")
    with six.open("a") as file:
        file.write("# a task was here\n")
    done = project.cloudtrain("up", mine)
    assert done.returncode == 0, done.stderr
    assert "1 of 4 steps" in done.stderr
    assert "# a task was here" not in six.read_text()
    assert digest(environment / "lib") == before
    assert "nothing to do" in project.cloudtrain("up", mine).stderr
