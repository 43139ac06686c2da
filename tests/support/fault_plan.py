"""Which faults come to a run, when, and what they may do to it; pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

PHASES = {"up": 4.0, "train": 9.0, "land": 0.6, "down": 2.5}
"""Phase → seconds after its beginning within which a fault comes; where the phase is over before,
the fault comes at its end."""

KINDS: dict[str, tuple[str, frozenset[str]]] = {
    "kill task": ("SIGKILL to every process of a task", frozenset({"signal"})),
    "kill watcher": ("SIGKILL to the process that records a task's end", frozenset({"lost"})),
    "kill agent": ("SIGKILL to the process that stores without a client", frozenset()),
    "kill client": ("SIGKILL to the command", frozenset()),
    "kill node": ("every process of a node, server and task", frozenset({"lost", "signal"})),
    "freeze task": ("SIGSTOP to every process of a task, for good", frozenset({"frozen"})),
    "freeze server": ("SIGSTOP to a node's server and its sessions for a while", frozenset()),
    "freeze client": ("SIGSTOP to the command for a while", frozenset()),
    "cut": ("a node does not answer for a while", frozenset()),
    "full disk": (
        "no free block on the nodes' disk for a while",
        frozenset({"exit", "not_started"}),
    ),
    "full store": ("no free block in the store, until `down`", frozenset({"not_started"})),
}
"""Fault → what is done, and the kinds of a cause that it may have. Without any, the run must come
through."""

OF_TASKS = frozenset({"kill task", "kill watcher", "kill agent", "freeze task"})
"""Faults of what exists only while a task runs."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault to come."""

    kind: str
    task: str
    """The task, or the one on the node, that it comes to."""
    phase: str
    after: float
    """Seconds from the beginning of the phase."""
    lasts: float
    """Seconds until what is cut, frozen or full is not any more."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.task}) {self.after:.2f} s into {self.phase}"


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """One run and its faults."""

    seed: int
    faults: tuple[Fault, ...]
    restarts: int
    """`train.max_restarts`."""


def planned(
    seed: int, kinds: Iterable[str], tasks: Iterable[str], *, pair: bool, slow: float = 1.0
) -> FaultPlan:
    """The same for the same arguments. `slow`: how much longer the place's `up` takes."""
    chance, names, among = random.Random(seed), sorted(kinds), sorted(tasks)
    faults = []
    for _ in range(2 if pair else 1):
        kind = chance.choice(names)
        phase = "train" if kind in OF_TASKS else chance.choice(list(PHASES))
        longest = PHASES[phase] * (slow if phase in ("up", "down") else 1.0)
        faults.append(
            Fault(
                kind=kind,
                task=chance.choice(among),
                phase=phase,
                after=chance.uniform(0.0, longest),
                lasts=chance.choice([2.0, 6.0, 20.0]),
            )
        )
    return FaultPlan(seed=seed, faults=tuple(faults), restarts=chance.choice([0, 1]))


def may_cause(faults: Iterable[Fault]) -> frozenset[str]:
    return frozenset().union(*(KINDS[fault.kind][1] for fault in faults))
