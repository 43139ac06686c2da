"""`limits.idle` with real processes: open shells, the idle process, an idle cluster's end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cloudtrain.commands import idle as verb
from tests.support.idle_parts import LIMIT, World, records, world
from tests.support.project import Project, until

__all__ = ["records", "world"]


def test_an_open_shell_is_use_of_it_until_its_process_ends(world: World) -> None:
    """`cloudtrain ssh` becomes OpenSSH, which closes every descriptor that it does not know."""
    code = (
        "import os; from cloudtrain.state import Records; Records('mnist').begin_use('ssh');"
        "os.write(1, b'.'); os.execvp('cat', ['cat'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdout.read(1)
        assert world.records.is_in_use("ssh")

        def close() -> None:
            shell.communicate()

        world.then[4000.0] = close
        world.run_idle_process()
    assert abs(world.tried[0] - 4000 - LIMIT) <= 3 * verb.POLL
    assert not world.records.is_in_use("ssh")


# ── the process itself ───────────────────────────────────────────────────────


def shorten(project: Project) -> None:
    """The limit on record: not one that is over before the next command of the test has begun."""
    (path,) = project.home.glob("clusters/*/config.json")
    config = json.loads(path.read_text())
    config["limits"]["idle"] = 2.0
    path.write_text(json.dumps(config))


@pytest.mark.sweep(1, of="idle")
def test_an_idle_cluster_lands_and_goes_down_by_itself(project: Project) -> None:
    config = project.config(limits={"idle": "1h"})
    brought = project.cloudtrain("up", config)
    assert brought.returncode == 0, brought.stderr
    assert "taken down after 3600 s without a run (limits.idle)" in brought.stderr
    (log,) = until(lambda: list(project.home.glob("clusters/*/idle.log")), 60)
    assert project.cloudtrain("train", config).returncode == 0
    late = "cd ~/.cloudtrain/*/runs/*/chief0/work/output && echo late > late"
    words = ("exec", project.name, "--role", "chief", "--", "sh", "-c", late)
    assert project.cloudtrain(*words).returncode == 0
    assert "idle: goes down at" in project.cloudtrain("status", project.name).stdout
    shorten(project)
    until(lambda: list(project.home.glob("clusters/*/closed")), 100, "it is down")
    assert project.landed("chief0", "output/late") == "late\n"
    until(lambda: "lists nothing of it any more" in log.read_text(), 60)
    until(lambda: project.processes() == {}, 30, "nothing is left")


@pytest.mark.sweep(1, of="idle")
def test_an_idle_cluster_stays_while_its_store_refuses_and_goes_when_it_takes(
    project: Project,
) -> None:
    config = project.config(limits={"idle": "1h"})
    store = project.store
    assert project.cloudtrain("up", config).returncode == 0
    job = project.start("train", config)
    until(lambda: "chief0 done" in project.stdout, 100)
    job.kill()  # nobody attends to it
    job.wait()
    if store.exists():
        store.rename(store.with_name("away"))
    store.write_text("in the way of the folder")
    shorten(project)
    until(lambda: "not down yet: " in project.cloudtrain("status", "--offline").stdout, 100)
    assert not list(project.home.glob("clusters/*/closed"))
    store.unlink()
    until(lambda: list(project.home.glob("clusters/*/closed")), 100, "it is down")
    assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"


@pytest.mark.sweep(1, of="idle")
def test_a_killed_idle_process_is_started_again_by_the_next_look(project: Project) -> None:
    config = project.config(limits={"idle": "1h"})
    assert project.cloudtrain("up", config).returncode == 0

    def idle_processes() -> list[int]:
        return [pid for pid, words in project.processes().items() if " cloudtrain idle " in words]

    (first,) = until(idle_processes, 60)
    subprocess.run(["kill", "-9", str(first)], check=True)
    until(lambda: idle_processes() == [], 60)
    assert "idle: goes down at" in project.cloudtrain("status").stdout
    (second,) = until(idle_processes, 60)
    assert second != first
    assert project.cloudtrain("down", project.name).returncode == 0
    until(lambda: idle_processes() == [], 20, "it has left")
