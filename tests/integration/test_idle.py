"""`limits.idle`: who is on a cluster, when it goes down, and that it does not before."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.cli.status import report_json, report_text
from cloudtrain.config import to_json
from cloudtrain.errors import RunFailed, StoreError
from cloudtrain.events import IdleDownFailed, UpCompleted
from cloudtrain.model import ClusterConfig, Limits, NodeGroup, Run
from cloudtrain.records import Records
from cloudtrain.training import idle as judged
from cloudtrain.training.idle import Idle
from cloudtrain.verbs import idle as verb
from cloudtrain.verbs.down import ALREADY, take_over
from cloudtrain.verbs.status import status
from tests.support.landing_parts import Heard
from tests.support.project import Project, until

LIMIT = 1800.0
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    state="running",
    created=1.0,
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    return up(LIMIT)


def up(limit: float | None) -> Records:
    records = Records("mnist")
    records.create()
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="custom",
        nodes={"worker": NodeGroup()},
        limits=Limits(idle=limit),
    )
    records.save_config(to_json(config))
    records.journal(UpCompleted())
    return records


class World:
    """A clock that only sleeping moves, and `down` as somebody saw it done.

    `then` is what happens at a moment (seconds from now); one that is the last ends the watching.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.begun = self.now = time.time()
        self.then: dict[float, Callable[[], object]] = {}
        self.faults: list[Exception] = []
        self.tried: list[float] = []
        self.attended: list[float] = []
        self.console = Heard()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.then if self.begun + m <= self.now]:
            self.then.pop(moment)()

    def down(self, *_: object, discard: bool, **__: object) -> None:
        assert not discard
        holder = self.records.holder()
        assert holder is not None
        assert holder.doing == "idle"
        self.tried.append(round(self.now - self.begun))
        if self.faults:
            raise self.faults.pop(0)
        self.records.close()

    def attend(self, *_: object, **__: object) -> None:
        self.attended.append(round(self.now - self.begun))
        self.records.save_run(replace(RUN, state="stopped", ended=self.now))
        event_at(self, "ended")
        if self.faults:
            raise self.faults.pop(0)

    def watch(self) -> None:
        verb.idle("mnist", console=self.console, clock=self.clock, sleep=self.sleep)


@pytest.fixture
def world(records: Records, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(records)
    monkeypatch.setattr(verb, "bring_down", world.down)
    monkeypatch.setattr(verb, "attend", world.attend)
    return world


def test_a_cluster_that_nobody_uses_goes_down_after_the_limit(world: World) -> None:
    world.watch()
    assert LIMIT <= world.tried[0] <= LIMIT + 2 * verb.POLL
    assert not world.records.is_open()
    assert world.console.said == ["mnist was idle for 1800 s (limits.idle): it goes down"]


def test_a_run_and_an_up_begin_the_wait_anew(world: World) -> None:
    world.then[1000.0] = lambda: event_at(world, "ended")
    world.watch()
    assert 1000 + LIMIT <= world.tried[0] <= 1000 + LIMIT + 3 * verb.POLL


def event_at(world: World, event: str) -> None:
    with (world.records.folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": world.now, "event": event}) + "\n")


def test_a_command_that_holds_the_cluster_is_use_of_it(world: World) -> None:
    held = world.records.lock("train")
    held.__enter__()
    world.then[5000.0] = lambda: held.__exit__(None, None, None)
    world.watch()
    assert abs(world.tried[0] - 5000 - LIMIT) <= 3 * verb.POLL


def test_an_open_shell_is_use_of_it_until_its_process_ends(world: World) -> None:
    """`cloudtrain ssh` becomes OpenSSH, which closes every descriptor that it does not know."""
    code = (
        "import os; from cloudtrain.records import Records; Records('mnist').begin_use();"
        "os.write(1, b'.'); os.execvp('cat', ['cat'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdout.read(1)
        assert world.records.is_in_use()

        def close() -> None:
            shell.communicate()

        world.then[4000.0] = close
        world.watch()
    assert abs(world.tried[0] - 4000 - LIMIT) <= 3 * verb.POLL
    assert not world.records.is_in_use()


@pytest.mark.parametrize("mark", [b"", b"null", b"[1]", b'{"birth": "1"}', b"\xff"])
def test_a_mark_of_a_process_that_is_not_there_or_makes_no_sense_is_forgotten(
    records: Records, mark: bytes
) -> None:
    folder = records.folder / "uses"
    folder.mkdir()
    (folder / "1").write_bytes(mark)
    assert not records.is_in_use()
    assert list(folder.iterdir()) == []


def test_what_cannot_land_keeps_the_nodes_and_is_tried_again_ever_later(world: World) -> None:
    world.faults = [StoreError("the bucket is gone") for _ in range(7)]
    world.watch()
    pauses = [b - a for a, b in zip(world.tried, world.tried[1:], strict=False)]
    for pause, wanted in zip(pauses, [60, 120, 240, 480, 960, 1800, 1800], strict=True):
        assert wanted <= pause <= wanted + 2 * verb.POLL
    assert world.console.warned[0] == "the bucket is gone\nthe nodes are kept; tried again in 60 s"
    assert not world.records.is_open()


def test_status_says_why_it_is_not_down_yet(records: Records) -> None:
    assert judged.idle(records) is not None
    records.journal(IdleDownFailed(why="the bucket is gone"))
    due = judged.idle(records)
    assert due is not None
    assert due.fault == "the bucket is gone"
    records.journal(UpCompleted())
    again = judged.idle(records)
    assert again is not None
    assert again.fault is None


def test_a_run_that_goes_on_unattended_is_attended_to_and_not_ended_with_its_nodes(
    world: World,
) -> None:
    world.records.save_run(RUN)
    world.faults = [RunFailed("worker0 died")]
    world.watch()
    assert LIMIT <= world.attended[0] <= LIMIT + 2 * verb.POLL
    assert world.tried[0] >= world.attended[0] + LIMIT


def test_it_is_looked_at_once_more_when_the_lock_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `train` may have come and gone between the look and the lock."""
    lock = world.records.lock

    def after_a_run(self: Records, doing: str, **options: float) -> object:
        monkeypatch.undo()
        monkeypatch.setattr(verb, "bring_down", world.down)
        event_at(world, "ended")
        return lock(doing, **options)

    monkeypatch.setattr(Records, "lock", after_a_run)
    world.watch()
    assert world.tried[0] >= 2 * LIMIT


@pytest.mark.parametrize("end", ["closed", "off", "removed"])
def test_the_watcher_leaves_when_there_is_nothing_left_to_watch(world: World, end: str) -> None:
    world.then[60.0] = {
        "closed": world.records.close,
        "off": lambda: up(None),
        "removed": (world.records.folder / "config.json").unlink,
    }[end]
    world.watch()
    assert world.tried == []
    assert world.now < world.begun + 70
    assert world.records.watcher() is None


def test_a_cluster_that_is_up_again_before_the_watcher_has_left_is_watched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` saw a watcher, and started none."""

    watch, left = verb.watch, []

    def watched(*doors: Any) -> None:
        watch(*doors)
        left.append(world.records.is_open())
        if len(left) == 1:
            up(LIMIT)

    monkeypatch.setattr(verb, "watch", watched)
    world.then[60.0] = world.records.close
    world.watch()
    assert left == [False, False]
    assert len(world.tried) == 1


def test_a_second_watcher_leaves_at_once(world: World) -> None:
    with world.records.watch_lock():
        world.watch()
    assert world.now == world.begun


def test_nothing_is_watched_without_the_limit_or_a_cluster(records: Records) -> None:
    assert judged.idle_limit(records) == LIMIT
    assert judged.idle_limit(Records("other")) is None
    assert judged.idle_limit(up(None)) is None
    records.close()
    up(LIMIT)
    records.close()
    assert judged.idle_limit(records) is None


@pytest.mark.parametrize("limits", [None, [], {"idle": "soon"}, {"idle": None}, {}])
def test_a_damaged_config_is_not_watched(records: Records, limits: object) -> None:
    records.save_config({"limits": limits})
    assert judged.idle_limit(records) is None


def test_it_is_not_idle_while_a_run_goes_on_or_somebody_works_on_it(records: Records) -> None:
    in_use = Idle(due=None)
    with records.lock("train"):
        assert judged.idle(records) == in_use
    with records.in_use():
        assert judged.idle(records) == in_use
    records.save_run(RUN)
    assert judged.idle(records) == in_use
    records.save_run(replace(RUN, state="failed", ended=2.0))
    assert judged.idle(records) != in_use


def test_the_hidden_command_says_nothing_of_a_cluster_that_is_not_there(records: Records) -> None:
    records.close()
    done = CliRunner().invoke(cli, ["idle", "mnist"])
    assert (done.exit_code, done.output) == (0, "")


def test_down_waits_for_an_idle_cluster_that_goes_down_already(records: Records) -> None:
    console = Heard()
    with records.lock("idle"):
        assert take_over(records, console) == ALREADY
    assert console.said == ["mnist goes down already, as it was idle (limits.idle): waiting"]
    with records.lock("exec"):
        assert take_over(records, console) == 0.0


def test_status_tells_when_it_goes_down_and_why_it_did_not(records: Records) -> None:
    with records.watch_lock():
        report = status("mnist", offline=True)
        due = report.clusters[0].idle
        assert due is not None
        assert due.due is not None
        text = report_text(report, due.due - 720)
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(due.due))
        assert f"  idle: goes down at  {clock}, in 12m" in text
        records.journal(IdleDownFailed(why="the bucket is gone"))
        report = status("mnist", offline=True)
        assert "  idle: not down yet: the bucket is gone" in report_text(report, 0.0)
        (cluster,) = report_json(report, 0.0)["clusters"]
        assert cluster["idle"] == {"due": due.due, "fault": "the bucket is gone"}
    assert status("mnist", offline=True).clusters[0].idle is None  # nobody watches


# ── the process itself ───────────────────────────────────────────────────────


def shorten(project: Project) -> None:
    """The limit on record: not one that is over before the next command of the test has begun."""
    (path,) = project.home.glob("clusters/*/config.json")
    config = json.loads(path.read_text())
    config["limits"]["idle"] = 2.0
    path.write_text(json.dumps(config))


def test_an_idle_cluster_lands_and_goes_down_by_itself(project: Project) -> None:
    config = project.config(limits={"idle": "1h"})
    brought = project.cloudtrain("up", config)
    assert brought.returncode == 0, brought.stderr
    assert "without a run for 3600 s it goes down (limits.idle)" in brought.stderr
    (log,) = until(lambda: list(project.home.glob("clusters/*/idle.log")), 10)
    assert project.cloudtrain("train", config).returncode == 0
    late = "cd ~/.cloudtrain/*/runs/*/chief0/work/output && echo late > late"
    words = ("exec", project.name, "--role", "chief", "--", "sh", "-c", late)
    assert project.cloudtrain(*words).returncode == 0
    assert "idle: goes down at" in project.cloudtrain("status", project.name).stdout
    shorten(project)
    until(lambda: list(project.home.glob("clusters/*/closed")), 100, "it is down")
    assert project.landed("chief0", "output/late") == "late\n"
    until(lambda: "lists nothing of it any more" in log.read_text(), 10)
    until(lambda: project.processes() == {}, 30, "nothing is left")


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
    until(lambda: "idle: not down yet" in project.cloudtrain("status", "--offline").stdout, 100)
    assert not list(project.home.glob("clusters/*/closed"))
    store.unlink()
    until(lambda: list(project.home.glob("clusters/*/closed")), 100, "it is down")
    assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"


def test_a_killed_watcher_is_started_again_by_the_next_look(project: Project) -> None:
    config = project.config(limits={"idle": "1h"})
    assert project.cloudtrain("up", config).returncode == 0

    def watchers() -> list[int]:
        return [pid for pid, words in project.processes().items() if " cloudtrain idle " in words]

    (first,) = until(watchers, 20)
    subprocess.run(["kill", "-9", str(first)], check=True)
    until(lambda: watchers() == [], 20)
    assert "idle: goes down at" in project.cloudtrain("status").stdout
    (second,) = until(watchers, 20)
    assert second != first
    assert project.cloudtrain("down", project.name).returncode == 0
    until(lambda: watchers() == [], 20, "it has left")
