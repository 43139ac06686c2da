"""What holds of a node's end on each cloud, whatever call is refused or never answered.

After one operation on a node with an end, in which one call went wrong, the cloud ends the node by
the end that it lists, and no earlier than both the old and the new end. Where it is said that the
listed end is not armed (NO END), one of the two is. The nodes of AWS have no timers here: the
account's own schedule ends them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import Event
from cloudtrain.core.model import HostKey, Identity, Limits, NodeGroup, Plan
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Secret
from cloudtrain.providers.aws.expiry import LATER, ROLE
from cloudtrain.providers.aws.provider import AwsDriver
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.base.driver import Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import CALLS, POLLS, Timing
from cloudtrain.providers.gcp.provider import GcpDriver
from tests.standins import cloud as standins
from tests.standins.cloud import Cloud
from tests.support.cloud_user import MACHINES
from tests.support.lanes import Cases

HOUR = 3600.0
CALLER = "203.0.113.7/32"
LATEST = LATER + 120.0
"""Seconds after the listed end by which the cloud has ended the node: AWS's schedule is last."""
DRIVERS: dict[str, Any] = {"gcp": GcpDriver, "aws": AwsDriver, "azure": AzureDriver}
LIVES = [("gcp", 4.0), ("aws", 4.0), ("azure", 4.0), ("azure", 30.0)]


def silent(event: Event, /) -> None:
    """A journal that nobody reads."""


@dataclass
class World:
    """One node on one stand-in, and a user whose clock goes with the cloud's."""

    cloud: Cloud
    hours: float
    folder: Path
    skew: float = 0.0
    there: list[Vm] = field(default_factory=list)
    """As listed before the operation."""

    def __post_init__(self) -> None:
        clock = Clock(now=lambda: time.time() + self.skew)
        self.timing = Timing(
            calls=replace(CALLS, pause=0.001, longest=0.002, within=60.0),
            polls=replace(POLLS, pause=0.002, longest=0.01),
            boot=60.0,
            listing=0.2,
            clock=clock,
        )
        limits = Limits(max_lifetime=self.hours * HOUR)
        group = NodeGroup(machine=MACHINES[self.cloud.name], disk_gb=64)
        config = self.cloud.config(nodes={"chief": group}, limits=limits, strategy="one_device")
        self.plan: Plan = make_plan(config)
        keys = {
            node.name: HostKey(public="ssh-ed25519 AAAA", private=Secret("a key of tests"))
            for node in self.plan.nodes
        }
        self.identity = Identity(
            private_key=self.folder / "id",
            public_key=KEY,
            host_keys=keys,
            known_hosts=self.folder / "known_hosts",
        )
        self.new_driver()

    def new_driver(self) -> None:
        """As another command begins, which remembers nothing."""
        self.driver: Any = DRIVERS[self.cloud.name](self.plan.config, self.timing)
        self.provider: Any = CloudProvider(self.driver, caller=lambda: CALLER, timing=self.timing)

    def up(self, **changes: Any) -> None:
        self.provider.create(replace(self.plan, **changes), self.identity, silent)

    def later(self, seconds: float) -> None:
        self.skew += seconds
        self.cloud.advance(seconds)
        self.machines()
        time.sleep(0.02)

    def machines(self) -> list[Vm]:
        return [m for m in self.driver.machines("mnist") if m.node.state != "gone"]

    def move(self, hours: float) -> None:
        (machine,) = self.there
        self.driver.move_ends(
            [machine], (machine.node.expires or 0.0) + hours * HOUR, lambda node, line: None
        )

    def stop(self) -> None:
        self.cloud.tell("stop", name="mnist-chief0")
        self.timing.until(
            lambda: True if self.machines()[0].node.state == "stopped" else None, within=60.0
        )

    def down(self) -> None:
        self.driver.delete(self.machines(), self.driver.resources("mnist"))


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Rk0C4S3YkNn3nCeS5oH1c9mYt4yqRj1sQxk7q1mXz t@example"


@dataclass(frozen=True)
class Operation:
    before: Callable[[World], None]
    work: Callable[[World], None]
    later: float = 0.0
    """By how much the end that is wished is later than the one before, in hours."""


def nothing(world: World) -> None:
    """A running node."""


def stopped(world: World) -> None:
    world.later(HOUR)
    world.stop()


def stopped_past_its_end(world: World) -> None:
    """Where the cloud has not deleted it meanwhile: AWS's schedule comes three minutes later."""
    world.later(HOUR)
    world.stop()
    world.later((world.hours - 1.0) * HOUR + 60.0)


def up(world: World) -> None:
    world.up()


def start_to_land(world: World) -> None:
    world.up(earliest_end=world.timing.clock.now() + 40 * 60.0)


OPERATIONS = {
    "up again": Operation(nothing, up),
    "move later": Operation(nothing, lambda world: world.move(+3.0), later=3.0),
    "move earlier": Operation(nothing, lambda world: world.move(-1.0), later=-1.0),
    "start": Operation(stopped, up),
    "start past its end": Operation(stopped_past_its_end, start_to_land, later=0.6),
    "down": Operation(nothing, lambda world: world.down()),
}

CASES = [
    (name, hours, what)
    for name, hours in LIVES
    for what in OPERATIONS
    if name != "gcp" or not what.startswith("move")  # Google moves the end of a stopped node alone
]

Break = Callable[[Cloud, int], None]


def refused(cloud: Cloud, number: int) -> None:
    code = {"aws": "UnauthorizedOperation", "azure": "AuthorizationFailed"}.get(cloud.name, "")
    cloud.fault("answer", number=number, status=403, code=code)


def broken_off(cloud: Cloud, number: int) -> None:
    """The network is away from this call on."""
    cloud.fault("reset", action="*", skip=number - 1, times=100_000)


def broken_off_after(cloud: Cloud, number: int) -> None:
    """The same, with this call carried out: its answer is lost."""
    cloud.fault("reset", number=number, after=True)
    cloud.fault("reset", action="*", skip=number, times=100_000)


BREAKS: dict[str, Break] = {
    "refused": refused,
    "broken off": broken_off,
    "broken off after": broken_off_after,
}


@contextmanager
def standing_in(name: str) -> Iterator[Cloud]:
    with (
        standins.start(name, thread=True, delay=0.0) as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        for variable in list(os.environ):
            if variable.startswith(
                ("AWS_", "AZURE_", "ARM_", "GOOGLE_", "CLOUDSDK_")
            ) or variable.lower().endswith("_proxy"):
                patch.delenv(variable)
        for variable, value in cloud.environment.items():
            patch.setenv(variable, value)
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield cloud


TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "scheduler.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def world_of(cloud: Cloud, hours: float, folder: Path) -> World:
    cloud.renew()
    if cloud.name == "aws":
        iam = boto3.session.Session().client("iam", region_name="us-east-1")
        with suppress(iam.exceptions.EntityAlreadyExistsException):
            iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(TRUST))
    world = World(cloud, hours, folder)
    world.up()
    return world


def calls_of(world: World, operation: Operation) -> int:
    """How many calls the operation makes if nothing goes wrong, which it then survives."""
    operation.before(world)
    world.there = world.machines()
    world.new_driver()
    world.cloud.forget_calls()
    operation.work(world)
    return len(world.cloud.calls())


@pytest.mark.parametrize(
    ("name", "hours", "most"),
    [("gcp", 4.0, 4), ("aws", 4.0, 4), ("azure", 4.0, 9), ("azure", 30.0, 9)],
)
def test_to_ask_for_a_node_and_its_end_is_one_call_more_than_for_the_node(
    name: str, hours: float, most: int, tmp_path: Path
) -> None:
    """`most`: one more than `status` sent before it asked for ends (commit e79d2af), signing in to
    Azure included."""
    with standing_in(name) as cloud:
        world = world_of(cloud, hours, tmp_path)
        world.new_driver()
        places = world.plan.config.placement
        world.provider.whereabouts = Whereabouts(cluster="mnist", places=places)
        cloud.forget_calls()
        (node,) = world.provider.nodes_and_ends("mnist")
        assert node.no_end == ""
        actions = [call["action"] for call in cloud.calls()]
        assert len(actions) <= most, actions


def judged(world: World, old: float, operation: Operation) -> str:
    """What is wrong with the node's end: nothing, if it is empty."""
    world.cloud.no_more_faults()
    world.new_driver()
    guarded = [n for n in world.provider.nodes_and_ends("mnist") if n.state in RUNS]
    if not guarded:
        return ""
    (node,) = guarded
    if node.expires is None:
        return "it lists no end"
    now, wished = world.timing.clock.now(), old + operation.later * HOUR
    first = min(node.expires, old if old > now else node.expires, wished)
    # NO END excuses a listed end that is not the armed one, but not that none is armed.
    last = max(node.expires, old, wished) if node.no_end else node.expires
    if first - 62.0 > now:
        world.later(first - 62.0 - now)
        if not any(m.node.state in RUNS for m in world.machines()):
            return f"it ended before {first - old:.0f} s after its old end"
    world.later(last + LATEST - world.timing.clock.now())
    if any(m.node.state in RUNS for m in world.machines()):
        return f"it runs {LATEST:.0f} s after its end ({node.no_end or 'which nobody said'})"
    return ""


RUNS = ("running", "starting")


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("name", "hours", "what"), CASES, ids=lambda each: str(each))
def test_a_node_has_an_end_or_it_is_said_whatever_call_goes_wrong(
    name: str, hours: float, what: str, tmp_path: Path, cases: Cases
) -> None:
    operation, wrong = OPERATIONS[what], {}
    with standing_in(name) as cloud:
        count = calls_of(world_of(cloud, hours, tmp_path), operation)
        assert count
        every = [(how, number) for number in range(1, count + 1) for how in BREAKS]
        for how, number in cases.of(every, 1):
            world = world_of(cloud, hours, tmp_path)
            (old,) = {machine.node.expires for machine in world.machines()}
            operation.before(world)
            world.there = world.machines()
            world.new_driver()
            cloud.forget_calls()
            BREAKS[how](cloud, number)
            with suppress(CloudtrainError):
                operation.work(world)
            met = cloud.calls()[number - 1 : number]
            if found := judged(world, old or 0.0, operation):
                wrong[f"{how} {number} {[call['action'] for call in met]}"] = found
    assert wrong == {}
