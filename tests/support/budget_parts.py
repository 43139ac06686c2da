"""A cluster with `limits.budget` on an account in memory, and what it really costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtrain.cluster import drift, provision
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import Session
from cloudtrain.commands.up import create_cluster
from cloudtrain.core import retry
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudConfigError, UsageError
from cloudtrain.core.events import Event, to_line
from cloudtrain.core.model import (
    ON_DEMAND,
    SPOT,
    ClusterConfig,
    Identity,
    Limits,
    Node,
    NodeGroup,
    Plan,
    Train,
)
from cloudtrain.money.estimate import price_of
from cloudtrain.money.node_hours import KEPT_FOR
from cloudtrain.providers.base.driver import LaunchRequest, Location, Tell, Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.runs.landing_steps import NOTHING, decide_drift
from tests.support.fake_account import Clock, FakeAccount
from tests.support.landing_parts import Heard

PLACES = {
    "gcp": (Location(region="us-central1", zone="us-central1-a"), "n1-standard-8"),
    "aws": (Location(region="us-east-1", zone="us-east-1a"), "g4dn.xlarge"),
    "azure": (Location(region="eastus"), "Standard_NC4as_T4_v3"),
}


@dataclass
class Account(FakeAccount):
    """An account of one cloud, which moves ends only if that cloud does."""

    place: Location = field(default_factory=lambda: PLACES["gcp"][0])
    born: dict[str, Node] = field(default_factory=dict)
    """Every VM that there ever was, by its id, as it is or was last."""
    gone_at: dict[str, float] = field(default_factory=dict)
    stopped_at: dict[str, float] = field(default_factory=dict)
    pauses: dict[str, float] = field(default_factory=dict)
    """Seconds that a VM was stopped until it was started again."""

    def places(self, plan: Plan) -> tuple[Location, ...]:
        return (self.place,)

    def launch(self, order: LaunchRequest[str]) -> Vm:
        made = super().launch(order)
        assert order.node.machine is not None
        node = replace(made.node, machine=order.node.machine, provisioning=order.node.provisioning)
        self.machines_[made.id] = replace(made, node=node)
        self.born[made.id] = node
        return self.machines_[made.id]

    def start(self, machine: Vm, expires: float | None) -> None:
        super().start(machine, expires)
        pause = self.clock.now() - self.stopped_at.pop(machine.id)
        self.pauses[machine.id] = self.pauses.get(machine.id, 0.0) + pause

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        cloud = cloud_of(self.name)
        assert cloud is not None
        return not cloud.fixed_end and super().move_ends(machines, expires, tell)

    def take(self, id: str) -> None:
        """The cloud takes a VM away."""
        self.born[id] = self.machines_.pop(id).node
        self.gone_at[id] = self.clock.now()


class Record:
    """A journal in memory, on the account's clock."""

    folder = Path("/nowhere")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lines: list[dict[str, Any]] = []

    def journal(self, event: Event, /) -> None:
        self.lines.append(to_line(event, time=self.clock.now(), pid=1))

    def events(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.lines)

    def active_run(self) -> None:
        return None

    def is_open(self) -> bool:
        return True


class Spender:
    """One cluster, its user, and the clock. `limit` is the budget of the last `up` that went
    through."""

    def __init__(self, cloud: str, limit: float, *, spot: bool = False, workers: int = 1) -> None:
        place, machine = PLACES[cloud]
        self.limit = limit
        self.clock = Clock()
        facts = cloud_of(cloud)
        assert facts is not None
        self.facts = facts
        self.account = Account(
            clock=self.clock, name=cloud, place=place, soonest_end=facts.soonest_end
        )
        self.record = Record(self.clock)
        self.provider = CloudProvider(
            self.account, caller=lambda: "198.51.100.7/32", timing=self.clock.timing()
        )
        group = NodeGroup(count=workers, machine=machine, provisioning=SPOT if spot else ON_DEMAND)
        self.config = ClusterConfig(
            name="mnist",
            provider=cloud,
            strategy="custom",
            nodes={"worker": group},
            placement=(str(place),),
            limits=Limits(budget=limit, max_lifetime=30 * 86400.0),
            train=Train(spot_retries=1),
        )

    def with_limits(self, **changes: Any) -> None:
        self.config = replace(self.config, limits=replace(self.config.limits, **changes))

    def session(self, plan: Plan | None = None) -> Session:
        nodes = self.provider.nodes("mnist")
        return Session(
            plan=plan or make_plan(self.config),
            records=cast("Any", self.record),
            provider=self.provider,
            store=cast("Any", None),
            console=Heard(),
            identity=cast("Identity", None),
            transport=cast("Any", SimpleNamespace(ask=None)),
            host_keys=cast("Any", None),
            nodes=nodes,
            clock=retry.Clock(now=self.clock.now, monotonic=self.clock.now, sleep=self.clock.sleep),
        )

    def up(self) -> bool:
        """`up`; False if it was refused, with what it may have done before."""
        before = self.config
        try:
            session = self.session()
            create_cluster(session, decide_drift(session, NOTHING))
        except (UsageError, CloudConfigError):
            self.config = replace(before, limits=replace(before.limits, budget=self.limit))
            return False
        assert self.config.limits.budget is not None
        self.limit = self.config.limits.budget
        return True

    def grow(self, more: int) -> None:
        group = self.config.nodes["worker"]
        nodes = {"worker": replace(group, count=min(8, group.count + more))}
        self.config = replace(self.config, nodes=nodes)

    def replace_lost(self, *, on_demand: bool = False) -> bool:
        """Recreate what is missing, as a run does before its next attempt."""
        plan = make_plan(self.config)
        if on_demand:
            there = {node.name for node in self.provider.nodes("mnist")}
            nodes = tuple(
                n if n.name in there else replace(n, provisioning=ON_DEMAND) for n in plan.nodes
            )
            plan = replace(plan, nodes=nodes)
        try:
            provision.create_nodes(self.session(), plan)
        except (UsageError, CloudConfigError):
            return False
        return True

    def lose(self, number: int) -> None:
        ids = sorted(self.account.machines_)
        if ids:
            self.account.take(ids[number % len(ids)])

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what expires meanwhile ends, and stays stopped on Azure."""
        until = self.clock.now() + seconds
        for id, vm in list(self.account.machines_.items()):
            end = vm.node.expires
            if end is None or end > until or vm.node.state == "stopped":
                continue
            if self.facts.keeps_parts:
                stopped = replace(vm.node, state="stopped")
                self.account.stopped_at.setdefault(id, end)
                self.account.machines_[id] = replace(vm, node=stopped)
            else:
                self.clock.time = max(self.clock.time, end)
                self.account.take(id)
        self.clock.time = until

    def ends(self) -> set[float]:
        return {node.expires or 0.0 for node in self.provider.nodes("mnist")}

    def bill_if_left_alone(self) -> float:
        """$ that the cloud bills in the end if nobody does anything any more, at most."""
        bill = 0.0
        for id, node in self.account.born.items():
            now = self.account.machines_.get(id)
            price = price_of(self.config, now.node if now else node)
            last = now.node if now else node
            assert last.created is not None
            assert last.expires is not None
            assert price.most is not None
            takes = self.facts.end_takes if now else 0.0
            end = min(self.account.gone_at.get(id, float("inf")), last.expires + takes)
            pause = self.account.pauses.get(id, 0.0)
            assert price.after_end is not None
            bill += price.most * max(0.0, end - last.created - pause) / 3600
            bill += price.after_end * pause / 3600
            if now:
                bill += price.after_end * KEPT_FOR / 3600
        return bill

    def per_hour(self) -> float:
        prices = [price_of(self.config, node).most for node in self.provider.nodes("mnist")]
        return sum(price or 0.0 for price in prices)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No keys, no SSH, no files: what is left of `create_nodes` is what it asks of the cloud."""
    from tests.support.fakes import make_identity
    from tests.support.fakes import make_plan as some_plan

    nodes = some_plan(workers=9)
    identity = make_identity(tmp_path, nodes)
    monkeypatch.setattr(provision, "identity_for", lambda session: identity)
    monkeypatch.setattr(provision, "load_identity", lambda folder: identity)
    monkeypatch.setattr(provision, "await_first_login", lambda *_, **__: None)
    monkeypatch.setattr(provision, "write_ssh_config", lambda *_: None)
    monkeypatch.setattr(provision, "current_owner", lambda provider, console: some_plan().owner)


def use(spender: Spender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the drift read this record, on this clock."""
    monkeypatch.setattr(drift, "Records", lambda name: spender.record)
    monkeypatch.setattr(drift, "moments", SimpleNamespace(now=spender.clock.now))
