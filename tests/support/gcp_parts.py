"""The GCP driver on Compute Engine's stand-in, on a clock that sleeping moves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.events import Event
from cloudtrain.core.model import Accelerator, ClusterConfig, HostKey, NodeGroup, Plan
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Secret
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.boot import user_data
from cloudtrain.providers.base.driver import LaunchRequest, Location
from cloudtrain.providers.base.timing import Timing
from cloudtrain.providers.gcp import permissions
from cloudtrain.providers.gcp.provider import GcpDriver
from cloudtrain.providers.gcp.requests import ClusterNetwork
from tests.standins import cloud as standins
from tests.support.fakes import facts_of

PLACE = Location(region="us-east4", zone="us-east4-c")
CALLER = "203.0.113.7/32"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"


@dataclass
class Gcp:
    """One account on a stand-in, and a test's hand on both."""

    cloud: standins.Cloud
    slept: float = 0.0
    journaled: list[str] = field(default_factory=list)

    @property
    def app(self) -> Any:
        return self.cloud.app

    @property
    def actions(self) -> list[str]:
        return [call["action"] for call in self.cloud.calls() if call["action"] != "token"]

    def timing(self) -> Timing:
        return Timing(
            clock=Clock(
                now=self.app.now, monotonic=self.clock, sleep=self.sleep, chance=lambda: 0.5
            )
        )

    def clock(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        """The cloud's time goes on with ours."""
        self.slept += seconds
        self.app.advance(seconds)

    def account(self, **changes: Any) -> GcpDriver:
        return GcpDriver(self.config(**changes), self.timing())

    def config(self, **changes: Any) -> ClusterConfig:
        return self.cloud.config(**changes)

    def plan(self, **changes: Any) -> Plan:
        return make_plan(self.config(**changes))

    def journal(self, event: Event, /) -> None:
        self.journaled.append(" ".join([event.word, *map(str, facts_of(event).values())]))

    def ground(self, account: GcpDriver, plan: Plan, place: Location = PLACE) -> ClusterNetwork:
        return account.create_network(plan, place, CALLER, self.journal)


@contextmanager
def standing_in(**settings: Any) -> Iterator[Gcp]:
    """Operations take no time that a test would wait for."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOOGLE_", "CLOUDSDK_"))}
    with (
        standins.start("gcp", thread=True, delay=0.01, **settings) as cloud,
        patch.dict(os.environ, {**clean, **cloud.environment}, clear=True),
    ):
        gcp = Gcp(cloud)
        yield gcp
        assert gcp.app.wrong == []
        assert gcp.app.methods <= permissions.CALLS.keys() | BY_TESTS


def order(
    plan: Plan,
    ground: ClusterNetwork,
    number: int = 0,
    *,
    place: Location = PLACE,
    expires: float | None = 0,
) -> LaunchRequest[ClusterNetwork]:
    """`expires` 0: in an hour of the year 2033."""
    node = plan.nodes[number]
    ends = 2_000_003_600.0 if expires == 0 else expires
    key = HostKey(public="ssh-ed25519 AAAAC3Nz", private=Secret(KEY))
    return LaunchRequest(
        plan=plan,
        node=node,
        place=place,
        network=ground,
        user_data=user_data(public_key="ssh-ed25519 AAAAuser", host_key=key, expires=None),
        token="0123456789abcdef0123456789abcdef",
        expires=ends,
        labels=labels.of_node(plan.config.name, node, ends),
    )


def groups(**changes: Any) -> dict[str, NodeGroup]:
    """A chief and two workers, each so."""
    group = replace(NodeGroup(machine="n1-standard-8"), **changes)
    return {"chief": group, "worker": replace(group, count=2)}


BY_TESTS = {"instances.stop"}
"""Called by tests alone."""
T4 = Accelerator(kind="T4", count=1)
