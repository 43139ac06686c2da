"""SIGSTOP at every API call, while another machine creates the cluster anew: that one is spared."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.model import Holding
from tests.support.cloud_client import Client, Running, Verb, client
from tests.support.cloud_rig import CLOUDS, Rig
from tests.support.fakes import eventually
from tests.support.lanes import Cases

pytestmark = pytest.mark.parametrize("rig", CLOUDS, indirect=True)


class Other:
    """Another machine with the same account, and no record of what the first one made."""

    def __init__(self, rig: Rig, client: Client, folder: Path) -> None:
        self.rig, self.client = rig, client
        self.journal = folder / "journal of the other machine"
        self.journal.touch()

    def run(self, do: Verb, **changes: object) -> tuple[Holding, ...]:
        outcome = self.client.run(self.rig.job(do, **changes), self.journal)
        assert not outcome.error, f"{do}: {outcome.error}: {outcome.message}"
        return outcome.value if do == "sweep" else ()

    def create_anew(self) -> set[str]:
        """Its generation, once it has deleted the cluster that was there, and made its own."""
        self.run("down", expected=False)
        self.rig.cloud.quiet()
        self.run("create", expected=False)
        return self.generations()

    def generations(self) -> set[str]:
        """Of the nodes, if all are there. Azure's may be stopped, their disks kept, if they were
        deallocated by name less than 5 s after they were seen.
        """
        (held,) = self.run("sweep")
        assert sorted(node.name for node in held.nodes) == sorted(self.rig.names()), held
        return {node.generation for node in held.nodes}


@pytest.fixture
def other(rig: Rig, tmp_path: Path) -> Iterator[Other]:
    rig.begin_anew()
    with client(rig.cloud, tmp_path) as second:
        yield Other(rig, second, tmp_path)


@pytest.mark.parametrize("do", ["down", "gc", "leave"])
@pytest.mark.sweep(1, of="frozen")
def test_a_frozen_command_spares_what_another_machine_creates_meanwhile(
    rig: Rig, other: Other, do: Verb, cases: Cases
) -> None:
    rig.begin_for("destroy")
    rig.cloud.forget_calls()
    assert not rig.run(do, expected=do != "gc").error
    last = len(rig.cloud.calls())
    for number in cases.of(range(1, last + 1), 1):
        rig.begin_for("destroy")
        other.journal.write_text("")
        running = frozen_at(rig, do, number)
        if running is None:
            continue  # how often something is polled differs
        made = other.create_anew()
        os.kill(running.pid, signal.SIGCONT)
        outcome = running.outcome()
        assert outcome.clean, outcome
        rig.cloud.quiet()
        assert other.generations() == made, f"{do}, frozen at call {number}: {outcome}"


def frozen_at(rig: Rig, do: Verb, number: int) -> Running | None:
    """A process that stands still, its call done and not heard; None if it made fewer calls."""
    rig.cloud.forget_calls()
    running = rig.client.ready(rig.job(do, expected=do != "gc"), rig.journal)
    rig.cloud.fault("stop", number=number, pid=running.pid)
    running.go()
    eventually(lambda: stands_still(running.pid) or not Path(f"/proc/{running.pid}").exists())
    rig.cloud.no_more_faults()
    if stands_still(running.pid):
        return running
    running.outcome()
    return None


def stands_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
