"""A company's account on a cloud's stand-in: what it demands, what it already has, who may what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.events import Event
from cloudtrain.core.model import ClusterConfig, Node, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.timing import CALLS, POLLS, Timing
from tests.standins import cloud as standins
from tests.support.cloud_client import provider
from tests.support.fakes import make_identity

CLOUDS = ("aws", "azure", "gcp")
FAST = Timing(
    calls=replace(CALLS, pause=0.005, longest=0.02),
    polls=replace(POLLS, pause=0.005, longest=0.02),
    boot=20.0,
    listing=1.0,
)
OURS = ("AWS_", "AZURE_", "ARM_", "GOOGLE_", "CLOUDSDK_")


@dataclass
class Company:
    cloud: standins.Cloud
    folder: Path
    journaled: list[Event] = field(default_factory=list)

    @property
    def app(self) -> Any:
        return self.cloud.app

    def plan(self, **changes: Any) -> Plan:
        return make_plan(self.cloud.config(**changes))

    def provider(self, config: ClusterConfig) -> Any:
        return provider(self.cloud.name, config, FAST)

    def up(self, plan: Plan) -> tuple[Node, ...]:
        made: tuple[Node, ...] = self.provider(plan.config).create(
            plan, make_identity(self.folder, plan), self.journaled.append
        )
        return made

    def down(self, plan: Plan) -> None:
        self.provider(plan.config).destroy(plan.config.name, self.journaled.append)

    def check(self, plan: Plan) -> dict[str, Finding]:
        found: tuple[Finding, ...] = self.provider(plan.config).check(plan)
        return {each.what: each for each in found}

    def tags(self) -> dict[str, dict[str, str]]:
        """The tags of each thing that the account has, by its kind and name."""
        return _TAGS[self.cloud.name](self.app)


@contextmanager
def company(name: str, folder: Path, **settings: Any) -> Iterator[Company]:
    """In a thread; the environment is as its user would have set it."""
    with (
        standins.start(name, thread=True, **{"delay": 0.0, **settings}) as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        for variable in list(os.environ):
            if variable.startswith(OURS) or variable.lower().endswith("_proxy"):
                patch.delenv(variable)
        for variable, value in cloud.environment.items():
            patch.setenv(variable, value)
        yield Company(cloud, folder)
        assert getattr(cloud.app, "wrong", []) == []


def _aws(app: Any) -> dict[str, dict[str, str]]:
    backend = app.backend("us-east-1")
    found: dict[str, dict[str, str]] = {}
    for tag in backend.describe_tags():
        kind = f"{tag['resource_type']} {tag['resource_id']}"
        found.setdefault(kind, {})[tag["key"]] = tag["value"]
    for (_, name), group in app.placement_groups.items():
        found[f"placement-group {name}"] = {t["Key"]: t["Value"] for t in group["Tags"]}
    return found


def _azure(app: Any) -> dict[str, dict[str, str]]:
    return {f"{one.type} {one.name}": one.tags for one in app.things.values()}


def _gcp(app: Any) -> dict[str, dict[str, str]]:
    kinds = ("instances", "disks")
    return {
        f"{kind} {thing.name}": thing.body.get("labels", {})
        for kind in kinds
        for thing in app.under(kind)
    }


_TAGS = {"aws": _aws, "azure": _azure, "gcp": _gcp}
