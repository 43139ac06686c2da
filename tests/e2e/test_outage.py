"""A store that is away at the end of an unattended command keeps no node billed for longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.standins.faults import EVER, Fault, Faults
from tests.standins.stores import faulty, s3
from tests.support.commands import Command
from tests.support.project import Project, until

SECONDS = 60.0


@pytest.fixture
def door(project: Project) -> Iterator[tuple[str, Faults]]:
    """The project's store: a bucket behind a door that makes calls go wrong."""
    with s3() as store, faulty(store) as (place, faults):
        project.environment |= place.environment
        yield place.uri, faults


def ended_without_its_store(project: Project, door: tuple[str, Faults], **limits: float) -> Command:
    """A `cloudtrain run` whose store is away as soon as its tasks have ended."""
    project.limits = {"OUTAGE": 600.0, "runs.supervise.TRIES": 0.5, **limits}
    uri, faults = door
    end = project.shared() / "ends"
    config = project.config(
        train={
            "command": 'python3 rank.py --output {output} --hold 4 "$ENDS"',
            "env": {"ENDS": str(end)},
        },
        artifacts={"store": uri},
    )
    command = project.start("run", config)
    until(lambda: "chief0 step 4" in project.stdout, SECONDS)
    faults.arm(Fault(kind="answer", status=503, times=EVER))
    end.touch()
    return command


@pytest.mark.sweep(0)
def test_run_lands_and_goes_down_once_the_store_is_back(
    project: Project, door: tuple[str, Faults]
) -> None:
    command = ended_without_its_store(project, door)
    until(lambda: "trying again in" in project.stderr, 3 * SECONDS)
    told = project.cloudtrain("status", project.name).stdout
    assert "not down yet: " in told
    assert "tried again at" in told
    door[1].disarm()
    assert command.wait(3 * SECONDS) == 0, project.stderr
    assert "lists nothing of it any more" in project.stderr
    assert project.processes() == {}


@pytest.mark.sweep(0)
def test_the_background_goes_on_where_a_command_gives_up(
    project: Project, door: tuple[str, Faults]
) -> None:
    command = ended_without_its_store(project, door, OUTAGE=2.0)
    assert command.wait(5 * SECONDS) == 5, project.stderr
    assert "a background process goes on trying" in project.stderr
    door[1].disarm()
    until(lambda: project.processes() == {}, 5 * SECONDS)
    told = project.cloudtrain("status", project.name).stdout
    assert f"{project.name}  local  multi_worker_mirrored  down\n" in told
    assert "  succeeded  " in told
