"""A cloud's stand-in, a user's processes, one cluster: what tests of crashes and faults begin with.

With `--sweep` there are three nodes, every region, and no call is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.model import ClusterConfig, NodeGroup
from tests.standins.cloud import DESCRIPTIONS, Cloud, start
from tests.support.cloud_client import ANSWER, PATIENT, Client, Haste, Job, Outcome, Verb, client
from tests.support.fakes import make_identity
from tests.support.lanes import Cases
from tests.support.once import once

CLOUDS = [
    name
    for name, described in DESCRIPTIONS.items()
    if find_spec(f"cloudtrain.providers.{name}") and find_spec(described.at.partition(":")[0])
]

SLICE: dict[str, Any] = {
    "strategy": "tpu",
    "nodes": {"worker": NodeGroup(machine="v5p-16", count=2)},
    "placement": ("us-central1-a",),
}
"""Config of one TPU of two hosts."""
ONE_HOST: dict[str, Any] = {**SLICE, "nodes": {"worker": NodeGroup(machine="v5p-8")}}
"""Config of a TPU of one host."""
TPUS = {"tpu": ("gcp", SLICE), "one-host-tpu": ("gcp", ONE_HOST)}
MACHINES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CLOUDS},
    **(TPUS if "gcp" in CLOUDS else {}),
}
"""Everything that can be created: its cloud, and the changes of the config."""


def on_each_cloud(*others: object) -> pytest.MarkDecorator:
    """A test of MACHINES: the sample is each cloud, and one of the kinds of TPU. `others`: values
    of a parameter that stands before the rig."""
    always = [f"{other}-{name}" for other in others for name in CLOUDS]
    return pytest.mark.sweep(1, over="rig", always=(*CLOUDS, *always))


MAKES = ("RunInstances", "instances.insert", "PUT virtualMachines", "nodes.create")
DELETES = ("TerminateInstances", "Delete", "DELETE", ".delete")
"""Words of the actions that make a VM or a TPU, and of those that delete anything."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One call: by its number, or the first of an action. `after` the work of it, or before."""

    number: int | None = None
    action: str | None = None
    after: bool = False


class Rig:
    """A cloud, a user's processes, and one cluster's keys and journal. `name`: one of MACHINES;
    `shape`: changes of every config; `whole`: see the module's first lines; `of_run`: folder of
    what one process learns for all."""

    def __init__(
        self,
        name: str,
        cloud: Cloud,
        client: Client,
        folder: Path,
        shape: Mapping[str, Any],
        *,
        whole: bool = False,
        of_run: Path | None = None,
    ) -> None:
        self.name = name
        self._of_run = of_run or folder
        self.shape = shape
        self.cloud = cloud
        self.client = client
        self.whole = whole
        self._folders = (folder / f"cluster{number}" for number in itertools.count())
        self.begin_anew()

    def begin_anew(self, **changes: object) -> None:
        """An empty account, new keys; `changes` of the config."""
        self.cloud.renew()
        self.cloud.set(delay=0.0)
        self.timing = Haste().timing()  # it begins with the cloud's time
        if self.client.world:
            self.client.world.tell()
        if not self.whole:
            self.cloud.set(**DESCRIPTIONS[self.cloud.name].small)
        folder = next(self._folders)
        folder.mkdir(parents=True)
        self.journal = folder / "journal"
        self.journal.touch()
        workers = 2 if self.whole else 1
        self.plan = make_plan(config(self.cloud, workers, **{**self.shape, **changes}))
        self.identity = make_identity(folder, self.plan)

    def job(self, do: Verb, **changes: object) -> Job:
        answer = ANSWER if self.cloud.silences else PATIENT
        job = Job(do=do, plan=self.plan, identity=self.identity, answer=answer, timing=self.timing)
        return replace(job, **changes)  # type: ignore[arg-type]

    def run(self, do: Verb, **changes: object) -> Outcome:
        return self.client.run(self.job(do, **changes), self.journal)

    def killed(self, do: Verb, point: Point) -> bool:
        """Whether there was such a call to be killed at."""
        self.cloud.forget_calls()
        running = self.client.ready(self.job(do), self.journal)
        self.cloud.fault("kill", **vars(point), pid=running.pid)
        outcome = running.go().outcome()
        self.cloud.no_more_faults()
        assert outcome.clean, outcome
        return outcome.killed

    def kills(
        self, do: Verb, cases: Cases, begin: Callable[[], None] | None = None, first: int = 1
    ) -> Iterator[Point]:
        """Yields after each: before and after every call from `first` on. The sample is after the
        call that makes a VM, before the first that deletes anything, and two that are drawn."""
        whole, own = cases.every, begin
        begin = begin or (lambda: self.begin_for(do))
        tried = 0
        for point in every_call(first) if whole else self._sample(do, cases, own, first):
            begin()
            reached = self.killed(do, point)
            while not (reached or whole):  # how often something is polled differs
                assert point.number
                assert point.number > first
                point = replace(point, number=point.number - 1)
                begin()
                reached = self.killed(do, point)
            if not reached:
                break
            tried += 1
            print(f"{self.name}: {do} was killed at {point}")
            yield point
        assert tried > (2 if do in ("remove", "leave") or not whole else 10)

    def begin_for(self, do: Verb) -> None:
        """An account with what there is before it is done."""
        self.begin_anew()
        if do in ("destroy", "remove", "leave"):
            assert self.run("create").nodes

    def _sample(
        self, do: Verb, cases: Cases, begin: Callable[[], None] | None, first: int
    ) -> list[Point]:
        def calls() -> list[str]:
            return self._calls_of(lambda: self._done(do), begin or (lambda: self.begin_for(do)))

        actions = self._known(do, calls) if begin is None else calls()
        return [*named(actions), *cases.of(every_call(first, len(actions)), 2)]

    def undisturbed(self, what: str, do: Callable[[], object]) -> list[str]:
        """The actions of the calls in which it is done, from an empty account. Leaves an account in
        any state."""
        return self._known(what, lambda: self._calls_of(do, self.begin_anew))

    def _known(self, what: str, calls: Callable[[], list[str]]) -> list[str]:
        """They are the same each time: one process asks for them, in a run of the tests."""
        actions: list[str] = once(self._of_run, f"calls of {what} on {self.name}", calls)
        return actions

    def _calls_of(self, do: Callable[[], object], begin: Callable[[], None]) -> list[str]:
        begin()
        self.cloud.forget_calls()
        do()
        return [call["action"] for call in self.cloud.calls()]

    def _done(self, do: Verb) -> None:
        done = self.run(do)
        assert not done.error, done

    def names(self) -> list[str]:
        return [node.name for node in self.plan.nodes]

    def held(self) -> list[str]:
        """What exists once nothing is being worked on, also not for a client that is gone."""
        self.cloud.quiet()
        return self.cloud.holdings()

    def instances(self) -> list[str]:
        """Names of the VMs and of the hosts of TPUs, once for each that exists."""
        words = ("instance ", "virtual machine ", "TPU ")
        lines = [line for line in self.cloud.holdings() if line.startswith(words)]
        names = [line.removeprefix("virtual ").split()[1] for line in lines]
        if self.shape is not SLICE:
            return names
        return [host for name in names if name == self.names()[0] for host in self.names()]


def every_call(first: int, last: int | None = None) -> Iterator[Point]:
    """Before and after each."""
    for number in range(first, last + 1) if last else itertools.count(first):
        yield Point(number=number, after=False)
        yield Point(number=number, after=True)


def named(actions: Sequence[str]) -> list[Point]:
    """After the call that makes a VM, and before the first that deletes anything."""
    made = [action for action in actions if any(word in action for word in MAKES)]
    deleted = [action for action in actions if any(word in action for word in DELETES)]
    return [
        *(Point(action=action, after=True) for action in made[:1]),
        *(Point(action=action) for action in deleted[:1]),
    ]


def config(cloud: Cloud, workers: int = 1, **changes: object) -> ClusterConfig:
    """In one placement, unless the changes say otherwise."""
    made = cloud.config()
    group = made.nodes["chief"]
    nodes: dict[str, NodeGroup] = {"chief": group, "worker": replace(group, count=workers)}
    made = replace(made, nodes=nodes, placement=made.placement[:1])
    return replace(made, **changes)  # type: ignore[arg-type]


class Rigs:
    """One of each name, made when it is first asked for: those of one cloud share its stand-in."""

    def __init__(self, folder: Path, of_run: Path, *, whole: bool) -> None:
        self._folder, self._of_run = folder, of_run
        self._whole = whole
        self._stack = ExitStack()
        self._made: dict[str, Rig] = {}
        self._clouds: dict[str, tuple[Cloud, Client]] = {}

    def __enter__(self) -> Rigs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def named(self, name: str, shape: Mapping[str, Any] | None = None) -> Rig:
        """`name`: one of MACHINES, or a new one with a `shape` of its own on Google Cloud."""
        if name not in self._made:
            cloud_name, known = MACHINES.get(name, ("gcp", {}))
            folder = self._folder / name
            folder.mkdir()
            made = self._cloud(cloud_name)
            shape, of_run = shape or known, self._of_run
            self._made[name] = Rig(name, *made, folder, shape, whole=self._whole, of_run=of_run)
        return self._made[name]

    def _cloud(self, name: str) -> tuple[Cloud, Client]:
        if name not in self._clouds:
            cloud = self._stack.enter_context(start(name))
            folder = self._folder / f"home-of-{name}"
            folder.mkdir()
            self._clouds[name] = (cloud, self._stack.enter_context(client(cloud, folder)))
        return self._clouds[name]
