"""At each API call of a command something happens: another machine's command while this one stands
still for longer than its lease lasts, its clock is set, or the cloud is away for a minute.

One judge: what another machine has created or works on is left alone; each VM that is billed has an
end that its cloud confirms, or is named; the next command clears everything away.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.lease import LASTS, path_of
from cloudtrain.core.model import ArtifactRules, Holding, Node
from tests.standins.client_world import World
from tests.support.cloud_client import Client, Haste, Job, Outcome, Running, Verb, client
from tests.support.cloud_rig import CLOUDS, Rig
from tests.support.fakes import eventually, make_identity
from tests.support.lanes import Cases

HOUR = 3600.0
MINUTE = 60.0 / Haste().speed
"""As long as a minute of the client's retries, in real seconds."""
LIFETIME = 12 * HOUR
UNCERTAIN = 300.0
"""Seconds by which an end may be another than `max_lifetime` after its VM was created."""
CLOCKS = {"3h-ahead": 3 * HOUR, "2d-ahead": 48 * HOUR, "3h-behind": -3 * HOUR}
AWAY: dict[str, dict[str, Any]] = {
    "refused": {"kind": "reset", "tells": {"away": "refused", "lasts": MINUTE}},
    "unresolved": {"kind": "reset", "tells": {"away": "unresolved", "lasts": MINUTE}},
    "silent": {"kind": "silence"},
    "unheard": {"kind": "silence", "after": True},
}
"""The fault of each call in that minute."""
MEANWHILE = {
    "up": ("create", "down", "gc", "leave"),
    "down": ("create", "down"),
    "gc": ("create",),
    "train": ("create", "down"),
    **dict.fromkeys((*CLOCKS, *AWAY), ("create", "down")),
}
"""What happens at a call → the commands whose calls they are."""


class Other:
    """Another machine with the same account, and no record of what the first one made."""

    def __init__(self, rig: Rig, client: Client, folder: Path) -> None:
        self.rig, self.client, self.folder = rig, client, folder
        self.journal = folder / "journal of the other machine"
        self.training: Running | None = None

    def begin(self) -> None:
        for name in (self.journal.name, "nodes", "over"):
            (self.folder / name).unlink(missing_ok=True)
        self.journal.touch()
        keys = self.folder / f"keys{len(list(self.folder.glob('keys*')))}"
        keys.mkdir()
        self.identity = make_identity(keys, self.rig.plan)

    def job(self, do: Verb, **changes: object) -> Job:
        return self.rig.job(do, identity=self.identity, **changes)

    def run(self, do: Verb, **changes: object) -> tuple[Holding, ...]:
        outcome = self.client.run(self.job(do, **changes), self.journal)
        assert not outcome.error, f"{do}: {outcome.error}: {outcome.message}"
        return outcome.value if do == "sweep" else ()

    def create_anew(self) -> None:
        """Once it has deleted the cluster that was there. All nodes are there: Azure's may be
        stopped, their disks kept, if they were deallocated by name less than 5 s after they were
        seen.
        """
        self.run("down", expected=False)
        self.rig.cloud.quiet()
        self.run("create", expected=False)
        names = [node.name for node in self.nodes()]
        assert sorted(names) == sorted(self.rig.names())

    def nodes(self) -> list[Node]:
        return [node for held in self.run("sweep") for node in held.nodes]

    def does(self, event: str) -> set[tuple[str, str]]:
        """The nodes that are this machine's from now on, by name and generation."""
        if event == "down":
            self.run("down", expected=False)
        elif event == "gc":
            self.run("gc")
        elif event == "up":
            self.create_anew()
            return {known(node) for node in self.nodes() if node.state == "running"}
        else:
            lease = self.folder / "store" / path_of(self.rig.plan.config)
            if lease.exists():
                past = time.time() - LASTS - 1.0
                os.utime(lease, (past, past))
            self.training = self.client.ready(self.job("train"), self.journal).go()
            eventually((self.folder / "nodes").exists)
            lines = (self.folder / "nodes").read_text().splitlines()
            return {(name, generation) for name, generation in map(str.split, lines)}
        return set()

    def ends(self) -> None:
        """Its `train`, if there is one."""
        if self.training is not None:
            (self.folder / "over").touch()
            outcome, self.training = self.training.outcome(), None
            assert not outcome.error, outcome


@dataclass(kw_only=True)
class Case:
    """A command of `rig` whose call with a number meets an event; 0: before the first."""

    rig: Rig
    other: Other
    world: World
    do: Verb
    event: str

    def calls(self) -> int:
        self.begin()
        self.rig.cloud.forget_calls()
        assert not self.rig.run(self.do, expected=self.expected).error
        return len(self.rig.cloud.calls())

    @property
    def expected(self) -> bool:
        return self.do != "gc"

    def begin(self) -> None:
        store = self.other.folder / "store" if self.event == "train" else None
        rules = ArtifactRules(store=store.as_uri() if store else None)
        self.rig.begin_anew(artifacts=rules)
        self.other.begin()
        self.began = self.rig.timing.clock.now()
        if self.do != "create":
            assert self.rig.run("create").nodes
        self.rig.cloud.forget_calls()

    def is_judged(self, number: int) -> bool:
        """False where it made fewer calls: how often something is polled differs."""
        self.begin()
        mine: set[tuple[str, str]] = set()
        if self.event in CLOCKS or self.event in AWAY:
            outcome = self.met(number)
            reached = number == 0 or any(call["fault"] for call in self.rig.cloud.calls())
            self.judge(outcome, mine)
            self.rig.cloud.no_more_faults()
            assert self.rig.run("destroy").clean, "with the clock as it is"
            self.world.tell()
        else:
            running = self.frozen_at(number)
            if running is None:
                return False
            reached = True
            mine = self.other.does(self.event)
            self.world.tell(slept=10.0)
            os.kill(running.pid, signal.SIGCONT)
            outcome = running.outcome()
            self.other.ends()
            self.judge(outcome, mine)
        if self.event == "up":
            self.other.run("destroy", expected=False)
        else:
            assert not (last := self.rig.run("destroy")).error, last
        assert self.rig.held() == []
        return reached

    def judge(self, outcome: Outcome, mine: set[tuple[str, str]]) -> None:
        assert outcome.clean, outcome
        self.rig.cloud.quiet()
        there = self.other.nodes()
        assert mine <= {known(node) for node in there}, outcome
        last = self.rig.timing.clock.now() + LIFETIME + UNCERTAIN
        for node in there:
            if known(node) in mine:
                continue
            ends = node.expires is not None and not node.no_end
            ends = ends and self.began + LIFETIME - UNCERTAIN < (node.expires or 0.0) < last
            assert ends or node.name in outcome.message, (node, outcome)

    def met(self, number: int) -> Outcome:
        told = {"world": str(self.world.file)}
        if self.event in AWAY:
            fault = {"tells": {}, **AWAY[self.event], "lasts": MINUTE}
        else:
            fault = {"kind": "world", "tells": {"clock": CLOCKS[self.event]}}
        if number:
            self.rig.cloud.fault(**fault, **told, number=number)
        else:
            self.world.tell(**fault["tells"])
        return self.rig.run(self.do)

    def frozen_at(self, number: int) -> Running | None:
        """A process that stands still, its call done and not heard."""
        running = self.rig.client.ready(
            self.rig.job(self.do, expected=self.expected), self.rig.journal
        )
        self.rig.cloud.fault("stop", number=number, pid=running.pid)
        running.go()
        eventually(lambda: stands_still(running.pid) or not Path(f"/proc/{running.pid}").exists())
        self.rig.cloud.no_more_faults()
        if stands_still(running.pid):
            return running
        running.outcome()
        return None


def known(node: Node) -> tuple[str, str]:
    return node.name, node.generation


def stands_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@pytest.fixture
def other(rig: Rig, tmp_path: Path) -> Iterator[Other]:
    rig.begin_anew()
    with client(rig.cloud, tmp_path) as second:
        yield Other(rig, second, tmp_path)


@pytest.mark.parametrize("rig", CLOUDS, indirect=True)
@pytest.mark.parametrize(
    ("event", "do"), [(event, do) for event, every in MEANWHILE.items() for do in every]
)
@pytest.mark.sweep(2)
def test_what_happens_at_a_call_loses_no_vm_and_spares_another_machines(
    rig: Rig, other: Other, event: str, do: Verb, cases: Cases
) -> None:
    world = rig.client.world
    if world is None:
        pytest.skip("needs gcc")
    case = Case(rig=rig, other=other, world=world, do=do, event=event)
    first = 0 if event in CLOCKS else 1
    numbers = cases.of(range(first, case.calls() + 1), 1)
    judged = sum(case.is_judged(number) for number in numbers)
    print(f"{rig.name}: {event} at {judged} calls of {do}")
