"""Playbooks on a real node whose steps are killed half-way, again and again: the next `up` repairs.

The node has no network: apt and pip read what its image brings.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig, Code, Node, NodeGroup, Setup
from cloudtrain.core.shell import Step
from cloudtrain.playbooks import base, code, tensorflow
from cloudtrain.playbooks.apply import apply
from cloudtrain.ssh.keys import load_identity
from cloudtrain.ssh.transport import SshTransport
from tests.standins.image import MODULES, with_archive, with_package
from tests.standins.nodes import unavailable
from tests.support.lanes import Cases
from tests.support.nodes_here import Remembered
from tests.support.one_machine import NAME, Machine

FILES = 500
KILLS = (
    ("packages", "apt-get install"),
    ("packages", "Unpacking"),
    ("packages", "Unpacking"),
    ("packages", "Setting up"),
    ("packages", "Setting up"),
    ("python", "virtual environment"),
    ("python-packages", ""),
    ("python-packages", "install"),
    ("code", "code"),
    ("code", "code"),
)
"""Steps, and the words in their output after which each is killed."""

SOONEST = (0, 5, 6, 7, 8, 9)
"""Of these, those that come when most is left to do; code may be delivered before the kill."""

PAUSE = {"packages": 0.3, "python": 0.3, "python-packages": 0.1, "code": 0.03}
"""Seconds after those words, at most: code is delivered in a moment."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if reason := unavailable():
        pytest.skip(reason)
    with_archive(tmp_path / "image")
    with_package(tmp_path / "image")
    made = Machine(tmp_path / "keys", files=tmp_path / "image")
    with made.nodes:
        made.start()
        made.enter()
        yield made


@pytest.mark.sweep(0)  # on a busy machine code is delivered before it can be killed
def test_steps_that_are_killed_at_any_moment_are_repaired_by_the_next_up(
    machine: Machine, tmp_path: Path, cases: Cases
) -> None:
    steps = playbooks(tmp_path / "code")
    rng = random.Random(4)
    kills = [KILLS[number] for number in cases.of(range(len(KILLS)), 1, always=SOONEST)]
    killed = [
        (step, words)
        for step, words in kills
        if not ready(machine, steps, step, words, rng.uniform(0, PAUSE[step]))
    ]
    print("killed:", *killed, sep="\n  ")
    assert {step for step, _ in killed} == set(PAUSE)
    assert len(killed) >= len(kills) - 3
    assert ready(machine, steps)
    whole(machine, tmp_path / "code")
    again = Remembered()
    with SshTransport(load_identity(machine.folder)) as transport:
        apply(lambda _: steps, [machine.node], transport, again)
    assert again.ended == [(NAME, "nothing to do")]


def playbooks(folder: Path) -> Sequence[Step]:
    """As `up` puts them together on a rented machine."""
    rng = random.Random(1)
    for number in range(FILES):
        place = folder / f"part{number % 10}" / f"{number}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(rng.randbytes(80_000))
    config = ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="multi_worker_mirrored",
        nodes={"chief": NodeGroup()},
        setup=Setup(packages=("many",)),
        code=Code(path=str(folder)),
        source=str(folder.parent / "mnist.yaml"),
    )
    one = Node(name=NAME, role="chief", index=0, state="running", address="", internal="")
    return (
        *base.steps(config, one),
        *tensorflow.steps(config, one),
        *code.steps(code.resolve(config), config.name),
    )


class Until(Remembered):
    """A Stage that tells when the step has said these words."""

    def __init__(self, step: str, words: str) -> None:
        super().__init__()
        self.step, self.words = step, words
        self.said = threading.Event()

    def node(self, name: str, text: str) -> None:
        super().node(name, text)
        if text.startswith(self.step) and self.words in text:
            self.said.set()


def ready(
    machine: Machine,
    steps: Sequence[Step],
    step: str = "none",
    words: str = "",
    pause: float = 0.0,
) -> bool:
    """Applies the steps; all that runs on the node is killed `pause` seconds after `step` has
    said the words. False where that came before the end."""
    stage, over = Until(step, words), threading.Event()

    def kill() -> None:
        while not stage.said.wait(0.01):
            if over.is_set():
                return
        over.wait(pause)
        kill_all_that_runs(machine)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with SshTransport(load_identity(machine.folder)) as transport:
            apply(lambda _: steps, [machine.node], transport, stage)
    except CloudtrainError:
        if not stage.said.is_set():
            raise
        return False
    finally:
        over.set()
        killer.join()
    return True


def kill_all_that_runs(machine: Machine) -> None:
    """SIGKILL to every process that came in by SSH, at one moment: first they are held."""
    held: set[int] = set()
    while new := set(sessions(machine)) - held:
        for pid in new:
            send(pid, signal.SIGSTOP)
        held |= new
    for pid in held:
        send(pid, signal.SIGKILL)


def sessions(machine: Machine) -> Iterator[int]:
    """Descendants of the node's sshd, but for its own processes."""
    parents, names = {}, {}
    for pid in machine.nodes.pids(NAME):
        with suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            name, _, rest = stat.partition("(")[2].rpartition(")")
            names[pid], parents[pid] = name, int(rest.split()[1])
    for pid, name in names.items():
        above = parents[pid]
        while above in names and names[above] != "sshd":
            above = parents[above]
        if above in names and name != "sshd":
            yield pid


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def whole(machine: Machine, folder: Path) -> None:
    """What the steps make is there, and nothing else; dpkg has no complaint."""
    names = machine.ask("dpkg --audit; ls -A ~/.cache/cloudtrain/venvs | grep -v lock").split()
    assert [name.rpartition("-")[0] for name in names] == ["python", "python-packages"], names
    python = "~/.cache/cloudtrain/venvs/python-packages-*/bin/python"
    asked = f"{python} -c 'import many; print(many.all_of_it())'"
    assert machine.ask(asked) == f"{MODULES}\n"
    digests = "find . -type f -exec sha256sum {} + | sort"
    asked = ["sh", "-c", digests]
    here = subprocess.run(asked, cwd=folder, capture_output=True, text=True).stdout
    assert here.count("\n") == FILES
    assert machine.ask(f"cd ~/.cloudtrain/mnist/code/*/ && {digests}") == here
