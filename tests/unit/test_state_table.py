"""Every combination of what was seen and recorded has a next step, and `down` always ends."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import pytest

from cloudtrain.runs.state_table import (
    LAST,
    RULES,
    STEPS,
    Command,
    Files,
    NodeSeen,
    Record,
    RunRecorded,
    Seen,
    Step,
    TaskSeen,
    next_step,
    rule_for,
    take_steps,
)

ROOT = Path(__file__).parents[2]


def all_seen() -> Iterator[Seen]:
    for node, task, run, record, files in product(
        get_args(NodeSeen),
        get_args(TaskSeen),
        get_args(RunRecorded),
        get_args(Record),
        get_args(Files),
    ):
        yield Seen(node=node, task=task, run=run, record=record, files=files)


def test_every_combination_has_a_next_step_for_every_command() -> None:
    commands = get_args(Command)
    assert set(commands) == set(RULES)
    for command, seen in product(commands, all_seen()):
        assert next_step(command, [seen]) in STEPS
    for rules in RULES.values():
        assert not any((r := rules[-1]).node + r.task + r.run + r.record + r.files)
        assert rules[-1].step in LAST


def test_no_rule_is_hidden_by_those_before_it() -> None:
    for command, rules in RULES.items():
        used = {id(rule_for(command, seen)) for seen in all_seen()}
        assert [rule for rule in rules if id(rule) not in used] == []


def test_a_command_takes_no_step_twice_whatever_it_sees() -> None:
    for command, seen in product(RULES, all_seen()):
        taken: list[Step] = []
        last = take_steps(command, lambda seen=seen: [seen], taken.append)
        assert len(set(taken)) == len(taken)
        assert last in LAST


def test_nothing_is_destroyed_while_one_node_calls_for_anything_else() -> None:
    sample = list(all_seen())[::7]
    for one, other in product(sample, sample):
        if next_step("down", [one, other]) == "destroy":
            assert {next_step("down", [each]) for each in (one, other)} == {"destroy"}


def test_a_table_that_is_published_is_the_table() -> None:
    page = ROOT / "docs" / "internals" / "states.md"
    text = page.read_text(encoding="utf-8")
    assert text == generate().states(text), "run: python tools/generate_docs.py"


def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── A world in which `down` is repeated, while everything may happen ─────────

Happening = Literal["away", "back", "stop", "delete", "freeze", "end_task", "full", "room", "kill"]
"""`full`: the store takes nothing; `kill`: the client dies before its next step."""


@dataclass(frozen=True)
class World:
    """A node as it is, not as it is seen. `lost`: unlanded files were destroyed."""

    node: NodeSeen
    task: Literal["absent", "running", "frozen", "exited", "lost"]
    run: RunRecorded
    record: Record
    unlanded: bool
    store: bool = True
    lost: bool = False

    @property
    def writes(self) -> bool:
        return self.task == "running" and self.node in ("running", "away")


def worlds() -> Iterator[World]:
    """Every combination that can be: a task exists only after a run was recorded, and files only
    after a task; a record may be lost afterwards.
    """
    for node, task, run, record, unlanded in product(
        get_args(NodeSeen),
        ("absent", "running", "frozen", "exited", "lost"),
        get_args(RunRecorded),
        get_args(Record),
        (False, True),
    ):
        if run == "none" and record == "there" and (task != "absent" or unlanded):
            continue
        if task in ("running", "frozen") and node in ("stopped", "starting", "gone"):
            continue
        yield World(node, task, run, record, unlanded and node != "gone")


def happens(world: World, what: Happening) -> World:
    there = world.node != "gone"
    if what == "away" and world.node == "running":
        return replace(world, node="away")
    if what == "back" and world.node == "away":
        return replace(world, node="running")
    if what == "stop" and world.node == "running":
        ended = "lost" if world.task in ("running", "frozen") else world.task
        return replace(world, node="stopped", task=ended)
    if what == "delete" and there:  # by its owner or its cloud: nobody can land it any more
        return replace(world, node="gone", task="absent", unlanded=False)
    if what == "freeze" and world.task == "running":
        return replace(world, task="frozen")
    if what == "end_task" and world.task in ("running", "frozen"):
        return replace(world, task="exited")
    if what in ("full", "room"):
        return replace(world, store=what == "room")
    return world


@dataclass(frozen=True)
class Down:
    """One `down`: it sees the world as the product does, and its steps do what theirs do."""

    world: World
    task: TaskSeen = "unasked"
    files: Files = "unasked"
    taken: tuple[Step, ...] = ()

    def see(self) -> list[Seen]:
        world = self.world
        return [
            Seen(
                node=world.node,
                task=self.task,
                run=world.run,
                record=world.record,
                files=self.files,
            )
        ]

    def after(self, step: Step) -> Down:
        world, orphans, files = self.world, self.task, self.files
        if world.writes:
            world = replace(world, unlanded=True)
        answers = world.node == "running"
        if step in ("start_node", "await_node"):
            world = replace(world, node="running")
        elif step == "stop_run":
            task = "exited" if answers and world.task in ("running", "frozen") else world.task
            world = replace(world, run="landing", task=task)
        elif step == "finish_run" and answers and world.store:
            world = replace(world, run="ended", unlanded=world.writes)
        elif step == "end_orphans":
            orphan = world.task in ("running", "frozen")
            orphans = "exited" if answers and orphan else "absent"
            world = replace(world, task="exited" if answers and orphan else world.task)
        elif step == "land":
            if answers and world.store and not world.writes:
                world = replace(world, unlanded=False)
            may_land = world.node == "gone" or (answers and not world.unlanded)
            files = "landed" if may_land else "unlanded"
        return Down(world, orphans, files, (*self.taken, step))


@cache
def step_of(command: Down) -> tuple[Step, Down]:
    """Its next step, and itself after that."""
    step = next_step("down", command.see(), command.taken)
    return step, command if step in LAST else command.after(step)


@cache
def end_of(command: Down) -> tuple[World, Step]:
    step, command = step_of(command)
    while step not in LAST:
        step, command = step_of(command)
    world = command.world
    if step == "destroy":
        lost = world.lost or world.unlanded
        world = replace(world, node="gone", task="absent", lost=lost)
    return world, step


def down(world: World, at: int = -1, what: Happening | None = None) -> tuple[World, Step]:
    """One `down`, in which something happens before its step number `at`."""
    command = Down(world)
    for _ in range(at):
        step, command = step_of(command)
        if step in LAST:
            return end_of(command)
    if what == "kill":
        return command.world, "nothing"
    return end_of(replace(command, world=happens(command.world, what)) if what else command)


def cannot_land(world: World) -> bool:
    """The node answers nobody, or not to these keys, or no store takes anything."""
    return world.node in ("away", "untrusted") or world.record == "without_keys" or not world.store


@cache
def check_end(world: World) -> None:
    """From here on nothing happens: `down` is repeated until it says what it says for ever."""
    for _ in range(3):
        world, step = down(world)
        assert not world.lost
        assert step in ("destroy", "keep")
    if step == "keep":
        assert cannot_land(world), world
    else:
        assert world.node == "gone"


def test_down_ends_from_every_combination_and_destroys_nothing_that_has_not_landed() -> None:
    every = list(worlds())
    assert len(every) > 500
    for world in every:
        check_end(world)


@pytest.mark.sweep(3, always=("kill", "full"))
@pytest.mark.parametrize("first", get_args(Happening))
def test_down_ends_whatever_happens_between_its_steps(first: Happening) -> None:
    """One thing before any step of a first `down`, another before any step of a second one."""
    after = {
        down(world, at, first)[0] for world in set(worlds()) for at in range(len(STEPS) - len(LAST))
    }
    for world in after:
        assert not world.lost
        for at, second in product(range(len(STEPS) - len(LAST)), get_args(Happening)):
            check_end(down(world, at, second)[0])


def test_what_cannot_land_now_lands_once_its_node_is_back_and_the_store_has_room() -> None:
    for world in worlds():
        kept, step = down(world)
        mended = happens(happens(kept, "back"), "room")
        if step == "keep" and not cannot_land(mended):
            assert down(mended)[1] == "destroy"
