"""The driver of each cloud on its stand-in, with one set of names for all: what a test asks of it,
and what it does in the account by hand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from cloudtrain.core.model import NodeGroup, Plan
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.base.driver import LaunchRequest, Location, Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import Timing
from cloudtrain.providers.gcp.provider import GcpDriver
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import Cloud
from tests.support import aws_parts, azure_parts, gcp_parts

CALLER = "203.0.113.7/32"


class Rig(ABC):
    """An account with a plan of three nodes without accelerators."""

    here: ClassVar[Location]
    nodes: ClassVar[Mapping[str, Any]]
    """Of the plan, unless the changes say otherwise."""
    launch_call: ClassVar[str]
    """A pattern of the call that makes a VM."""
    reads: ClassVar[tuple[str, ...]]
    """Parts of the names of calls that change nothing."""
    moves_caller: ClassVar[int]
    """Calls that let another address in, and the old one no more."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def plan(self, **changes: Any) -> Plan:
        return self._plan({**({} if "nodes" in changes else {"nodes": self.nodes}), **changes})

    @abstractmethod
    def _plan(self, changes: dict[str, Any]) -> Plan: ...

    @abstractmethod
    def account(self, plan: Plan) -> Any:
        """A driver made anew, which remembers nothing."""

    def timing(self) -> Timing:
        return aws_parts.FAST

    def provider(self, plan: Plan, caller: str = CALLER) -> CloudProvider[Any]:
        account = self.account(plan)
        return CloudProvider(account, caller=lambda: caller, timing=self.timing())

    @abstractmethod
    def order(
        self, plan: Plan, ground: Any, number: int = 0, place: Location | None = None
    ) -> LaunchRequest[Any]: ...

    @abstractmethod
    def ssh_sources(self) -> list[str]:
        """Addresses that the account's rules of the cluster let in on port 22."""

    @abstractmethod
    def take_the_name(self) -> None:
        """Somebody else makes what bears the name of the cluster's network."""

    def lets_itself_in(self) -> bool:
        """Whether the nodes reach each other. Azure has a rule of its own for that."""
        return True

    def one_on_each_page(self) -> None:
        """Lists of the account have one thing on each page."""
        raise NotImplementedError

    @abstractmethod
    def pass_a_minute(self) -> None:
        """The end of a spot VM takes some time, of the cloud or of a test."""

    def ground(
        self,
        plan: Plan,
        caller: str = CALLER,
        journal: Journal = aws_parts.silent,
        place: Location | None = None,
    ) -> Any:
        return self.account(plan).create_network(plan, place or self.here, caller, journal)

    def launched(self, plan: Plan, count: int = 1) -> tuple[Vm, ...]:
        account, ground = self.account(plan), self.ground(plan)
        return tuple(account.launch(self.order(plan, ground, number)) for number in range(count))

    def calls(self) -> list[str]:
        actions = [call["action"] for call in self.cloud.calls()]
        return [action for action in actions if action != "token"]

    def writes(self) -> list[str]:
        return [each for each in self.calls() if not any(word in each for word in self.reads)]

    def vms(self) -> list[str]:
        words = ("instance ", "virtual machine ")
        return [line for line in self.cloud.holdings() if line.startswith(words)]


def three(machine: str) -> dict[str, NodeGroup]:
    group = NodeGroup(machine=machine, disk_gb=64)
    return {"chief": group, "worker": replace(group, count=2)}


class AwsRig(Rig):
    here = aws_parts.HERE
    nodes = three("m5.large")
    launch_call = "RunInstances *"
    reads = ("Describe", "Get", "List")
    moves_caller = 2

    def _plan(self, changes: dict[str, Any]) -> Plan:
        return aws_parts.plan_of(self.cloud, **changes)

    def account(self, plan: Plan) -> Any:
        return aws_parts.account_of(plan)

    def order(
        self, plan: Plan, ground: Any, number: int = 0, place: Location | None = None
    ) -> LaunchRequest[Any]:
        return aws_parts.order_of(plan, plan.nodes[number], ground, place or self.here)

    def _rules(self) -> list[Any]:
        named = [{"Name": "group-name", "Values": ["cloudtrain-mnist"]}]
        (group,) = aws_parts.ec2().describe_security_groups(Filters=named)["SecurityGroups"]
        rules: list[Any] = group["IpPermissions"]
        return rules

    def lets_itself_in(self) -> bool:
        return any(rule["UserIdGroupPairs"] for rule in self._rules())

    def pass_a_minute(self) -> None:
        self.cloud.app.advance(60)

    def ssh_sources(self) -> list[str]:
        return [
            source["CidrIp"]
            for rule in self._rules()
            if rule.get("FromPort") == 22
            for source in rule["IpRanges"]
        ]

    def take_the_name(self) -> None:
        client = aws_parts.ec2()
        vpc = client.describe_vpcs()["Vpcs"][0]["VpcId"]
        client.create_security_group(GroupName="cloudtrain-mnist", Description="x", VpcId=vpc)


class AzureRig(Rig):
    here = azure_parts.HERE
    nodes = three("Standard_D4s_v5")
    launch_call = "PUT virtualMachines*"
    reads = ("GET ", "LIST ")
    moves_caller = 1

    def _plan(self, changes: dict[str, Any]) -> Plan:
        return azure_parts.plan_of(self.cloud, **changes)

    def account(self, plan: Plan) -> Any:
        return azure_parts.account_of(plan)

    def order(
        self, plan: Plan, ground: Any, number: int = 0, place: Location | None = None
    ) -> LaunchRequest[Any]:
        return azure_parts.order_of(plan, plan.nodes[number], ground, place=place or self.here)

    def one_on_each_page(self) -> None:
        self.cloud.set(page_size=1)

    def pass_a_minute(self) -> None:
        azure_parts.FAST.clock.sleep(0.05)

    @property
    def _group(self) -> str:
        return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/cloudtrain-mnist-eastus"

    def ssh_sources(self) -> list[str]:
        path = f"{self._group}/providers/Microsoft.Network/networkSecurityGroups/cloudtrain-mnist"
        rules = self.account(self.plan())._arm.get(path)["properties"]["securityRules"]
        told = [rule["properties"] for rule in rules]
        for rule in told:
            assert (rule["access"], rule["direction"]) == ("Allow", "Inbound")
            assert (rule["protocol"], rule["destinationPortRange"]) == ("Tcp", "22")
        return [rule["sourceAddressPrefix"] for rule in told]

    def take_the_name(self) -> None:
        body = {"location": "eastus", "tags": {"cloudtrain-cluster": "other"}}
        self.account(self.plan())._arm.put(self._group, body)


class GcpRig(Rig):
    here = gcp_parts.PLACE
    nodes = three("n1-standard-8")
    launch_call = "instances.insert*"
    reads = (".get", ".list", ".aggregatedList", ".wait")
    moves_caller = 1

    def __init__(self, gcp: gcp_parts.Gcp) -> None:
        super().__init__(gcp.cloud)
        self._gcp = gcp
        self._page: dict[str, str] = {}

    def timing(self) -> Timing:
        return self._gcp.timing()

    def _plan(self, changes: dict[str, Any]) -> Plan:
        return self._gcp.plan(**changes)

    def account(self, plan: Plan) -> Any:
        account: Any = GcpDriver(plan.config, self.timing())
        pages = account._api.pages
        account._api.pages = lambda *asked, **how: pages(*asked, **how, **self._page)
        return account

    def order(
        self, plan: Plan, ground: Any, number: int = 0, place: Location | None = None
    ) -> LaunchRequest[Any]:
        return gcp_parts.order(plan, ground, number, place=place or self.here)

    def lets_itself_in(self) -> bool:
        rule = "projects/test-project/global/firewalls/cloudtrain-mnist-inside"
        return rule in self.cloud.app.things

    def one_on_each_page(self) -> None:
        self._page = {"maxResults": "1"}

    def pass_a_minute(self) -> None:
        self.cloud.app.advance(60)
        self.cloud.app.advance(1)

    def ssh_sources(self) -> list[str]:
        rule = self.cloud.app.things.get(
            "projects/test-project/global/firewalls/cloudtrain-mnist-ssh"
        )
        if rule is None:
            return []
        assert rule.body["targetTags"] == ["cloudtrain-mnist"]
        assert rule.body["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
        sources: list[str] = rule.body["sourceRanges"]
        return sources

    def take_the_name(self) -> None:
        body = {"name": "cloudtrain-mnist", "autoCreateSubnetworks": False}
        account = self.account(self.plan())
        account._api.run("a stranger's", "POST", "global/networks", body=body)


@contextmanager
def _aws(**settings: Any) -> Iterator[Rig]:
    with aws_parts.stand_in(**settings) as cloud:
        yield AwsRig(cloud)


@contextmanager
def _azure(**settings: Any) -> Iterator[Rig]:
    with azure_parts.stand_in(**settings) as cloud:
        yield AzureRig(cloud)


@contextmanager
def _gcp(**settings: Any) -> Iterator[Rig]:
    with gcp_parts.standing_in(**settings) as gcp:
        yield GcpRig(gcp)


RIGS: Mapping[str, Callable[..., Any]] = {"aws": _aws, "azure": _azure, "gcp": _gcp}
