"""`limits.idle`: who uses a cluster and when it goes down, on a clock of numbers."""

from __future__ import annotations

import ast
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import cloudtrain
from cloudtrain.checks.notes import idle_gpu_note
from cloudtrain.cli.app import cli
from cloudtrain.cli.status import report_json, report_text
from cloudtrain.commands import idle as verb
from cloudtrain.commands.down import await_lock
from cloudtrain.commands.status import status
from cloudtrain.core.errors import RunFailed, StoreError
from cloudtrain.core.events import DownFailed, OwnEndsArmed, UpCompleted
from cloudtrain.core.model import ClusterConfig, Limits, NodeGroup
from cloudtrain.core.retry import IDLE_DOWN
from cloudtrain.runs import idle as judged
from cloudtrain.runs.idle import IdleState
from cloudtrain.state import Records
from cloudtrain.state.lock import UnlockedUse, birth
from tests.support.idle_parts import LIMIT, RUN, World, event_at, records, up, world
from tests.support.landing_parts import Heard
from tests.support.project import ROOT
from tests.support.sources import nodes

__all__ = ["records", "world"]


def test_a_cluster_that_nobody_uses_goes_down_after_the_limit(world: World) -> None:
    world.run_idle_process()
    assert LIMIT <= world.tried[0] <= LIMIT + 2 * verb.POLL
    assert not world.records.is_open()
    assert world.console.said == ["mnist was idle for 1800 s (limits.idle): taking it down"]


def test_a_run_and_an_up_begin_the_wait_anew(world: World) -> None:
    world.then[1000.0] = lambda: event_at(world, "ended")
    world.run_idle_process()
    assert 1000 + LIMIT <= world.tried[0] <= 1000 + LIMIT + 3 * verb.POLL


def test_a_command_that_holds_the_cluster_is_use_of_it(world: World) -> None:
    held = world.records.lock("train")
    held.__enter__()
    world.then[5000.0] = lambda: held.__exit__(None, None, None)
    world.run_idle_process()
    assert abs(world.tried[0] - 5000 - LIMIT) <= 3 * verb.POLL


@pytest.mark.parametrize("mark", [b"", b"null", b"[1]", b'{"birth": "1"}', b"\xff"])
def test_a_mark_of_a_process_that_is_not_there_or_makes_no_sense_is_forgotten(
    records: Records, mark: bytes
) -> None:
    folder = records.folder / "uses"
    folder.mkdir()
    (folder / "1").write_bytes(mark)
    assert not records.is_in_use("ssh")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("use", [{}, {"use": "notebook"}, {"use": 1}])
def test_a_use_that_another_version_has_recorded_keeps_it_up(
    records: Records, use: dict[str, object]
) -> None:
    folder, pid = records.folder / "uses", os.getpid()
    folder.mkdir()
    (folder / str(pid)).write_text(json.dumps({"birth": birth(pid), **use}))
    assert judged.idle_state(records) == IdleState(due=None)


def test_what_cannot_land_keeps_the_nodes_and_is_tried_again_ever_later(world: World) -> None:
    world.faults = [StoreError("the bucket is gone") for _ in range(7)]
    world.run_idle_process()
    pauses = [b - a for a, b in zip(world.tried, world.tried[1:], strict=False)]
    for pause, wanted in zip(pauses, [60, 120, 240, 480, 960, 1800, 1800], strict=True):
        assert wanted <= pause <= wanted + 2 * verb.POLL
    assert world.console.warned[0] == "the bucket is gone\nthe nodes are kept; retrying in 60 s"
    assert not world.records.is_open()


def test_status_says_why_it_is_not_down_yet(records: Records) -> None:
    assert judged.idle_state(records) is not None
    records.journal(DownFailed(why="the bucket is gone"))
    due = judged.idle_state(records)
    assert due is not None
    assert due.fault == "the bucket is gone"
    records.journal(UpCompleted())
    again = judged.idle_state(records)
    assert again is not None
    assert again.fault is None


def test_a_run_that_goes_on_unattended_is_attended_to_and_not_ended_with_its_nodes(
    world: World,
) -> None:
    world.records.save_run(RUN)
    world.faults = [RunFailed("worker0 died")]
    world.run_idle_process()
    assert LIMIT <= world.attended[0] <= LIMIT + 2 * verb.POLL
    assert world.tried[0] >= world.attended[0] + LIMIT


def test_it_is_looked_at_once_more_when_the_lock_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `train` may have come and gone between the look and the lock."""
    lock = Records.lock

    def after_a_run(self: Records, doing: str, **options: float) -> object:
        monkeypatch.setattr(Records, "lock", lock)
        event_at(world, "ended")
        return lock(self, doing, **options)

    monkeypatch.setattr(Records, "lock", after_a_run)
    world.run_idle_process()
    assert world.tried[0] >= 2 * LIMIT


@pytest.mark.parametrize("end", ["closed", "off", "removed"])
def test_the_idle_process_leaves_when_nothing_is_left_to_watch(world: World, end: str) -> None:
    world.then[60.0] = {
        "closed": world.records.close,
        "off": lambda: up(None),
        "removed": (world.records.folder / "config.json").unlink,
    }[end]
    world.run_idle_process()
    assert world.tried == []
    assert world.now < world.begun + 70
    assert world.records.idle_process() is None


def test_a_cluster_that_is_up_again_before_the_idle_process_has_left_is_watched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` saw an idle process, and started none."""

    original, left = verb.down_when_due, []

    def watched(*doors: Any) -> None:
        original(*doors)
        left.append(world.records.is_open())
        if len(left) == 1:
            up(LIMIT)

    monkeypatch.setattr(verb, "down_when_due", watched)
    world.then[60.0] = world.records.close
    world.run_idle_process()
    assert left == [False, False]
    assert len(world.tried) == 1


def test_a_second_idle_process_leaves_at_once(world: World) -> None:
    with world.records.idle_process_lock():
        world.run_idle_process()
    assert world.now == world.begun


def test_nothing_is_watched_without_the_limit_or_a_cluster(records: Records) -> None:
    assert judged.idle_limit(records) == LIMIT
    assert judged.idle_limit(Records("other")) is None
    assert judged.idle_limit(up(None)) is None
    records.close()
    up(LIMIT)
    records.close()
    assert judged.idle_limit(records) is None


def test_a_use_that_is_dated_20_hours_ahead_counts_from_when_it_is_seen(world: World) -> None:
    """By a command that began after this machine's clock was set."""

    def use() -> None:
        world.now += 20 * 3600.0
        event_at(world, "ended")
        world.now -= 20 * 3600.0

    world.then = {600.0: use}
    world.run_idle_process()
    (tried,) = world.tried
    assert 600.0 + LIMIT <= tried <= 600.0 + LIMIT + 2 * verb.POLL


@pytest.mark.parametrize("limits", [None, [], {"idle": "soon"}, {"idle": None}, {}])
def test_a_damaged_config_is_not_watched(records: Records, limits: object) -> None:
    records.save_config({"limits": limits})
    assert judged.idle_limit(records) is None


def test_it_is_not_idle_while_a_run_goes_on_or_somebody_works_on_it(records: Records) -> None:
    in_use = IdleState(due=None)
    with records.lock("train"):
        assert judged.idle_state(records) == in_use
    for use in get_args(UnlockedUse):
        with records.in_use(use):
            assert judged.idle_state(records) == in_use
            assert {each for each in get_args(UnlockedUse) if records.is_in_use(each)} == {use}
    records.save_run(RUN)
    assert judged.idle_state(records) == in_use
    records.save_run(replace(RUN, state="failed", ended=2.0))
    assert judged.idle_state(records) != in_use


def test_the_hidden_command_says_nothing_of_a_cluster_that_is_not_there(records: Records) -> None:
    records.close()
    done = CliRunner().invoke(cli, ["idle", "mnist"])
    assert (done.exit_code, done.output) == (0, "")


def test_down_waits_for_an_idle_cluster_that_goes_down_already(records: Records) -> None:
    console = Heard()
    with records.lock("idle"):
        assert await_lock(records, console) == IDLE_DOWN
    assert console.said == ["mnist is already going down as idle (limits.idle): waiting"]
    with records.lock("exec"):
        assert await_lock(records, console) == 0.0


def test_status_tells_when_it_goes_down_and_why_it_did_not(records: Records) -> None:
    with records.idle_process_lock():
        report = status("mnist", offline=True)
        due = report.clusters[0].idle
        assert due is not None
        assert due.due is not None
        text = report_text(report, due.due - 720)
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(due.due))
        assert f"  idle: goes down at  {clock}, in 12m" in text
        records.journal(DownFailed(why="the bucket is gone", again=90.0))
        report = status("mnist", offline=True)
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(90.0))
        text = report_text(report, 0.0)
        assert f"  not down yet: the bucket is gone\n    tried again at {clock}, in 1m" in text
        (cluster,) = report_json(report, 0.0)["clusters"]
        assert cluster["idle"] == {
            "due": due.due,
            "fault": "the bucket is gone",
            "again": 90.0,
            "alone": None,
            "ends": None,
        }
    (cluster,) = status("mnist", offline=True).clusters
    assert cluster.idle == IdleState(due=None, fault="the bucket is gone", again=90.0), "unwatched"


def marked_uses() -> set[str]:
    """Uses that commands mark by `records.in_use("NAME")` or `records.begin_use("NAME")`."""
    paths = Path(cloudtrain.__file__).parent.rglob("*.py")
    calls = (node for path in paths for node in nodes(path, ast.Call))
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("in_use", "begin_use")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


STARTING = {"starting_idle_process", "ensure_idle_process"}


def test_a_function_that_marks_a_use_starts_the_idle_process() -> None:
    paths = (Path(cloudtrain.__file__).parent / "commands").glob("*.py")
    functions = [node for path in paths for node in nodes(path, ast.FunctionDef)]
    called = {
        each.name: {
            call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
            for call in ast.walk(each)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute | ast.Name)
        }
        for each in functions
    }
    marking = {name for name, calls in called.items() if calls & {"in_use", "begin_use"}}
    lacking = {name for name in marking if not called[name] & STARTING}
    assert lacking == set(), f"commands/: call one of {STARTING} where the use is marked"


def test_each_use_has_a_row_and_is_on_the_page() -> None:
    unlocked = {*get_args(UnlockedUse)}
    others = {*get_args(judged.UseKind)} - unlocked
    assert {*judged.USES} - others - unlocked == set(), "add it to state/lock.UnlockedUse"
    assert others | unlocked == {*judged.USES}, "add a row to runs/idle.USES"
    unmarked = sorted(unlocked - marked_uses())
    assert unmarked == [], 'its command marks it: `records.in_use("NAME")`, or `begin_use`'
    page = (ROOT / "docs" / "commands.md").read_text("utf-8").replace("\n  ", " ")
    said = page.partition("- In use: ")[2].partition(". Not in use")[0]
    lacking = [use.words for use in judged.USES.values() if use.words not in said]
    assert lacking == [], "docs/commands.md, `In use:` of idle clusters"


@pytest.mark.parametrize(("provider", "noted"), [("azure", True), ("gcp", False), ("local", False)])
def test_a_limit_that_no_node_of_the_cloud_can_keep_is_noted(provider: str, noted: bool) -> None:
    config = ClusterConfig(
        name="mnist",
        provider=provider,
        strategy="custom",
        nodes={"worker": NodeGroup()},
        limits=Limits(idle_gpu=1800.0),
    )
    assert (idle_gpu_note(config) is not None) == noted


def test_status_says_when_the_nodes_end_themselves(records: Records) -> None:
    records.journal(OwnEndsArmed(idle=LIMIT + 600.0))
    with records.idle_process_lock():
        report = status("mnist", offline=True)
        due = report.clusters[0].idle
        assert due is not None
        assert due.due is not None
        assert due.ends == due.due + 600.0
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(due.ends))
        text = report_text(report, due.due - 60.0)
        assert f"    this machine being off, the nodes end themselves at  {clock}, in 11m" in text
        records.save_run(RUN)
        text = report_text(status("mnist", offline=True), 0.0)
        assert "the nodes end themselves 40m after the run, if nobody attends" in text
        records.journal(OwnEndsArmed())
        text = report_text(status("mnist", offline=True), 0.0)
        assert "end themselves" not in text
