"""A cloud's stand-in, a user's processes, one cluster: what tests of crashes and faults begin with.

With THOROUGH=1 in the environment there are three nodes, every region, and no call is left out.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloudtrain.cluster.plan import make_plan
from cloudtrain.model import ClusterConfig, NodeGroup
from tests.standins.cloud import DESCRIPTIONS, Cloud, start
from tests.support.cloud_client import Client, Job, Outcome, Verb, client
from tests.support.fakes import make_identity

THOROUGH = os.environ.get("THOROUGH") == "1"
WORKERS = 2 if THOROUGH else 1
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


class Rig:
    """A cloud, a user's processes, and one cluster's keys and journal. `name`: one of MACHINES;
    `shape`: changes of every config."""

    def __init__(
        self, name: str, cloud: Cloud, client: Client, folder: Path, shape: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.shape = shape
        self.cloud = cloud
        self.client = client
        self._folders = (folder / f"cluster{number}" for number in itertools.count())
        self.begin_anew()

    def begin_anew(self, **changes: object) -> None:
        """An empty account, new keys; `changes` of the config."""
        self.cloud.renew()
        self.cloud.set(delay=0.0)
        if not THOROUGH:
            self.cloud.set(**DESCRIPTIONS[self.cloud.name].small)
        folder = next(self._folders)
        folder.mkdir(parents=True)
        self.journal = folder / "journal"
        self.journal.touch()
        self.plan = make_plan(config(self.cloud, **{**self.shape, **changes}))
        self.identity = make_identity(folder, self.plan)

    def job(self, do: Verb, **changes: object) -> Job:
        return replace(Job(do=do, plan=self.plan, identity=self.identity), **changes)  # type: ignore[arg-type]

    def run(self, do: Verb, **changes: object) -> Outcome:
        return self.client.run(self.job(do, **changes), self.journal)

    def killed(self, do: Verb, number: int, after: bool) -> bool:
        """Whether there was such a call to be killed at."""
        self.cloud.forget_calls()
        running = self.client.ready(self.job(do), self.journal)
        self.cloud.fault("kill", number=number, after=after, pid=running.pid)
        outcome = running.go().outcome()
        self.cloud.no_more_faults()
        assert outcome.clean, outcome
        return outcome.killed

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


def config(cloud: Cloud, **changes: object) -> ClusterConfig:
    """In one placement, unless the changes say otherwise."""
    made = cloud.config()
    group = made.nodes["chief"]
    nodes: dict[str, NodeGroup] = {"chief": group, "worker": replace(group, count=WORKERS)}
    made = replace(made, nodes=nodes, placement=made.placement[:1])
    return replace(made, **changes)  # type: ignore[arg-type]


@contextmanager
def rigged(name: str, folder: Path) -> Iterator[Rig]:
    """`name`: one of MACHINES."""
    cloud_name, shape = MACHINES[name]
    with start(cloud_name) as cloud, client(cloud, folder) as clients:
        yield Rig(name, cloud, clients, folder, shape)
