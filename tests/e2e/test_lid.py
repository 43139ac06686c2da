"""What a client that stood still for a while (a closed lid, SIGSTOP) makes of its run."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.project import Project, until


def suspended_for(project: Project, seconds: float, **limits: float) -> int:
    """Exit code of a `run` that stood still longer than `stall_timeout` and heard nothing after."""
    project.limits = {
        "core.moments.TICK": 0.2,
        "core.moments.LATE": 1.0,
        "core.moments.READS": 1.0,
        **limits,
    }
    goes_on = project.shared() / "goes on"
    config = project.config(
        train={
            "command": 'python3 rank.py --output {output} --hold 3 "$GOES_ON"',
            "env": {"GOES_ON": str(goes_on)},
            "stall_timeout": f"{seconds - 1:g}s",
        }
    )
    command = project.start("run", config)
    until(lambda: "worker0 step 3" in project.stdout, 60)
    command.send_signal(signal.SIGSTOP)
    time.sleep(seconds)  # of the real process: no clock of it can be given
    command.send_signal(signal.SIGCONT)
    time.sleep(1.0)  # a decision comes every quarter of it
    goes_on.touch()
    return command.wait(60)


@pytest.mark.sweep(1, of="lids")
def test_a_closed_lid_ends_no_run(project: Project) -> None:
    assert suspended_for(project, 6.0) == 0, project.stderr
    assert "chief0 done" in project.stdout
