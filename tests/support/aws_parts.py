"""What the tests of the AWS driver begin with: a stand-in, an account on it, orders for VMs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.events import Event
from cloudtrain.core.model import SPOT, NodePlan, Plan
from cloudtrain.providers.aws import permissions
from cloudtrain.providers.aws.provider import AwsDriver
from cloudtrain.providers.aws.types import ClusterNetwork
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Location
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import CALLS, POLLS, Timing
from tests.standins import cloud

FAST = Timing(
    calls=replace(CALLS, pause=0.005, longest=0.02),
    polls=replace(POLLS, pause=0.005, longest=0.02),
    boot=20.0,
    listing=1.0,
)
"""The stand-in's own delays are 30 ms at most."""
BY_TESTS = {"CreateSubnet", "RevokeSecurityGroupEgress", "StopInstances"}
"""Called by tests alone."""
CALLER = "203.0.113.7/32"
HERE = Location(region="us-east-1", zone="us-east-1a")
EXPIRES = 1_900_000_000.0


@contextmanager
def stand_in(**settings: Any) -> Iterator[cloud.Cloud]:
    """In a thread; the environment is as its user would have set it."""
    with (
        cloud.start("aws", thread=True, **{"delay": 0.0, **settings}) as aws,
        pytest.MonkeyPatch.context() as patch,
    ):
        live(patch, aws.environment)
        yield aws
        allowed = {action for s in permissions.policy()["Statement"] for action in s["Action"]}
        assert {f"ec2:{action}" for action in aws.app.actions - BY_TESTS} <= allowed


@contextmanager
def bare_moto(folder: Path) -> Iterator[str]:
    """moto with nothing around it, which others who stand in for EC2 begin with. In a process of
    its own: the stand-in's moto has other images."""
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", "0"]
    environ = {name: value for name, value in os.environ.items() if "MOTO" not in name}
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        )
        stack.callback(server.kill)
        assert server.stderr
        url = next(found[0].decode() for line in server.stderr if (found := URL.search(line)))
        threading.Thread(target=server.stderr.read, daemon=True).start()
        (folder / "empty").touch()
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        live(
            patch,
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE000000000",
                "AWS_SECRET_ACCESS_KEY": "any",
                "AWS_CONFIG_FILE": str(folder / "empty"),
                "AWS_SHARED_CREDENTIALS_FILE": str(folder / "empty"),
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
        yield url


URL = re.compile(rb"http://127\.0\.0\.1:\d+")


def live(patch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)


def ec2() -> Any:
    """What a person sees and does there with Amazon's own client."""
    return boto3.session.Session().client("ec2", region_name="us-east-1")


def plan_of(aws: cloud.Cloud, **changes: Any) -> Plan:
    """With a placement group wherever there can be one, unless the changes say otherwise."""
    config = aws.config(**changes)
    if "network" not in changes:
        config = replace(config, network=replace(config.network, close="on"))
    return make_plan(config)


def account_of(plan: Plan, timing: Timing = FAST) -> AwsDriver:
    return AwsDriver(plan.config, timing)


def provider_of(plan: Plan) -> CloudProvider[ClusterNetwork]:
    return CloudProvider(AwsDriver(plan.config, FAST), caller=lambda: CALLER, timing=FAST)


def silent(event: Event, /) -> None:
    """A journal that nobody reads."""


def order_of(
    plan: Plan,
    node: NodePlan,
    ground: ClusterNetwork,
    place: Location = HERE,
    expires: float = EXPIRES,
) -> LaunchRequest[ClusterNetwork]:
    return LaunchRequest(
        plan=plan,
        node=node,
        place=place,
        network=ground,
        user_data=f"#cloud-config\n# ends at {expires}\n",
        token=sha256(f"{node.name} {place}".encode()).hexdigest()[:32],
        expires=expires,
        labels=labels.of_node(plan.config.name, node, expires),
    )


def with_spot(plan: Plan) -> Plan:
    return replace(plan, nodes=tuple(replace(node, provisioning=SPOT) for node in plan.nodes))
