"""Existing networks and firewalls on the three stand-ins: used as they are, never changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtrain.core.errors import CloudConfigError, CloudError, NodesError, PermissionsError
from cloudtrain.core.model import Network, NodeGroup
from cloudtrain.providers.aws import permissions
from cloudtrain.providers.gcp import permissions as gcp_permissions
from tests.support.company_parts import Company, company

HOST = "net-host"
NETWORK = f"projects/{HOST}/global/networks/corp"
SUBNET = f"projects/{HOST}/regions/us-east4/subnetworks/training"
USE = ("compute.subnetworks.use", "compute.subnetworks.useExternalIp")


# ── GCP: a Shared VPC ────────────────────────────────────────────────────────


@pytest.fixture
def gcp(tmp_path: Path) -> Iterator[Company]:
    with company("gcp", tmp_path) as gcp:
        granted = (*USE, "compute.subnetworks.get", "compute.subnetworks.list")
        gcp.app.share(HOST, "corp", ["us-east4", "us-central1"], *granted)
        yield gcp


def in_host(gcp: Company) -> dict[str, Any]:
    return {path: thing.body for path, thing in gcp.app.things.items() if f"/{HOST}/" in path}


@pytest.mark.parametrize("network", [{"subnet": SUBNET}, {"vpc": NETWORK}])
@pytest.mark.parametrize("firewall", [("training-nodes", "egress-proxy"), ()])
def test_nodes_join_a_shared_vpc_by_network_tags_and_no_rule_is_created(
    gcp: Company, network: dict[str, str], firewall: tuple[str, ...]
) -> None:
    plan = gcp.plan(network=Network(**network, firewall=firewall), placement=("us-east4-c",))
    before = in_host(gcp)
    needless = gcp_permissions.unneeded(plan.config.network)
    if not firewall:
        needless |= {"compute.instances.setTags"}
    gcp.app.granted = [each for each in gcp_permissions.NEEDED if each not in needless]
    found = gcp.check(plan)
    assert {what for what, each in found.items() if not each.ok} == set()
    assert found["subnet"].text == SUBNET
    needed = "training-nodes or egress-proxy" if firewall else "for all nodes of the network"
    assert needed in found["firewall"].text
    assert "TCP port 22" in found["firewall"].text
    gcp.up(plan)
    for thing in gcp.app.under("instances"):
        assert tuple(thing.body.get("tags", {}).get("items", ())) == firewall
        (interface,) = thing.body["networkInterfaces"]
        assert interface["subnetwork"].endswith(SUBNET)
    made = [call["action"] for call in gcp.cloud.calls()]
    assert not {"firewalls.insert", "networks.insert", "subnetworks.insert"} & set(made)
    gcp.down(plan)
    assert gcp.cloud.holdings() == []
    assert in_host(gcp) == before
    deleted = [each for each in made if each.startswith(("firewalls", "networks", "subnet"))]
    assert not [each for each in deleted if each.endswith((".delete", ".patch"))]


def test_the_same_vpc_serves_the_next_region(gcp: Company) -> None:
    gcp.cloud.set(capacity={"us-east4-c": 0})
    plan = gcp.plan(network=Network(vpc=NETWORK, firewall=("training-nodes",)))
    nodes = gcp.up(plan)
    assert {node.placement for node in nodes} == {"us-central1-a"}
    gcp.down(plan)


def test_a_shared_vpc_without_firewall_is_told_what_rules_have_to_exist(gcp: Company) -> None:
    plan = gcp.plan(network=Network(subnet=SUBNET), placement=("us-east4-c",))
    for refused in (gcp.check(plan)["subnet"], _refused(gcp, plan)):
        assert "(a Shared VPC), in which cloudtrain creates no firewall rules" in str(refused)
        assert "network.firewall to their target tag" in str(refused.hint)
    assert gcp.cloud.holdings() == []


def test_a_subnet_that_may_not_be_used_is_found_by_check_and_refused_by_up(gcp: Company) -> None:
    gcp.app.host_granted = ["compute.subnetworks.get"]
    plan = gcp.plan(network=Network(subnet=SUBNET, firewall=("nodes",)), placement=("us-east4-c",))
    finding = gcp.check(plan)["subnet"]
    assert finding.error is PermissionsError
    assert "compute.subnetworks.use, compute.subnetworks.useExternalIp" in finding.text
    assert "roles/compute.networkUser" in str(finding.hint)
    assert "compute.subnetworks.use" in str(_refused(gcp, plan))
    assert gcp.cloud.holdings() == []


def test_a_vpc_with_several_subnets_in_a_region_asks_for_one(gcp: Company) -> None:
    link = gcp.app.things[NETWORK].body["selfLink"]
    from tests.standins.gcp_networks import add_subnet

    body = {"network": link, "ipCidrRange": "10.200.0.0/20"}
    add_subnet(gcp.app, f"projects/{HOST}/regions/us-east4/subnetworks/second", body)
    plan = gcp.plan(network=Network(vpc=NETWORK, firewall=()), placement=("us-east4-c",))
    assert "no single subnetwork in us-east4: second, training" in gcp.check(plan)["subnet"].text


# ── AWS: a VPC and its security groups ───────────────────────────────────────


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Company]:
    with company("aws", tmp_path) as aws:
        yield aws


@pytest.fixture
def vpc(aws: Company) -> dict[str, Any]:
    """A VPC of the network team: a public subnet and a security group that admits an office."""
    ec2 = boto3.client("ec2", region_name="us-east-1")
    vpc = ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    where = {"AvailabilityZone": "us-east-1a", "CidrBlock": "10.8.0.0/20"}
    subnet = ec2.create_subnet(VpcId=vpc, **where)["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    (table,) = [
        each["RouteTableId"]
        for each in ec2.describe_route_tables()["RouteTables"]
        if each["VpcId"] == vpc
    ]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    group = ec2.create_security_group(GroupName="training", Description="x", VpcId=vpc)["GroupId"]
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    office = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    office |= {"IpRanges": [{"CidrIp": "203.0.113.0/24"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[inside, office])
    return {"vpc": vpc, "subnet": subnet, "group": group, "ec2": ec2}


def rules(vpc: dict[str, Any]) -> Any:
    (group,) = vpc["ec2"].describe_security_groups(GroupIds=[vpc["group"]])["SecurityGroups"]
    return group


def without_groups() -> dict[str, Any]:
    """The policy of docs/aws.md without what an existing group makes superfluous."""
    statements = permissions.policy()["Statement"]
    for each in statements:
        each["Action"] = [a for a in each["Action"] if a not in permissions.OF_GROUPS]
    return {"Statement": statements}


@pytest.mark.parametrize("named", ["vpc", "subnet"])
def test_a_security_group_of_yours_is_used_and_stays_as_it_is(
    aws: Company, vpc: dict[str, Any], named: str
) -> None:
    before, held = rules(vpc), aws.cloud.holdings()
    aws.app.granted = without_groups()
    network = Network(**{named: vpc[named]}, firewall=(vpc["group"],))
    plan = aws.plan(network=network, placement=("us-east-1a",))
    found = aws.check(plan)
    assert {what for what, each in found.items() if not each.ok} == set()
    assert f"{vpc['group']}, used as it is: SSH from 203.0.113.0/24" in found["network"].text
    aws.up(plan)
    aws.app.granted = None
    for reservation in vpc["ec2"].describe_instances()["Reservations"]:
        (instance,) = reservation["Instances"]
        (nic,) = instance["NetworkInterfaces"]
        assert [each["GroupId"] for each in nic["Groups"]] == [vpc["group"]]
        assert nic["SubnetId"] == vpc["subnet"]
    aws.app.granted = without_groups()
    aws.up(plan)
    aws.down(plan)
    aws.app.granted = None
    assert rules(vpc) == before
    assert aws.cloud.holdings() == held
    made = {call["action"].partition(" ")[0] for call in aws.cloud.calls()}
    assert not {"RevokeSecurityGroupIngress", "DeleteSecurityGroup"} & made


def test_a_security_group_that_cannot_work_is_refused_by_check(
    aws: Company, vpc: dict[str, Any]
) -> None:
    ec2 = vpc["ec2"]
    network = Network(vpc=vpc["vpc"], firewall=(vpc["group"],))
    plan = aws.plan(network=network, placement=("us-east-1a",))
    ec2.revoke_security_group_ingress(
        GroupId=vpc["group"], IpPermissions=rules(vpc)["IpPermissions"]
    )
    assert "lets its members reach each other" in aws.check(plan)["network"].text
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": vpc["group"]}]}
    ec2.authorize_security_group_ingress(GroupId=vpc["group"], IpPermissions=[inside])
    office = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443}
    office |= {"IpRanges": [{"CidrIp": "203.0.113.0/24"}]}
    ec2.authorize_security_group_ingress(GroupId=vpc["group"], IpPermissions=[office])
    # All traffic among its members includes port 22, but nobody else's.
    assert aws.check(plan)["network"].ok
    wrong = aws.plan(network=Network(firewall=(vpc["group"],)), placement=("us-east-1a",))
    finding = aws.check(wrong)["network"]
    assert f"network.firewall {vpc['group']} is in {vpc['vpc']}, but the subnet is in" in (
        finding.text
    )


# ── Azure: a network security group ──────────────────────────────────────────

SUBSCRIPTION = "/subscriptions/00000000-0000-4000-8000-000000000001"
NETS = f"{SUBSCRIPTION}/resourceGroups/nets"
AZURE_SUBNET = f"{NETS}/providers/Microsoft.Network/virtualNetworks/corp/subnets/training"
NSG = f"{NETS}/providers/Microsoft.Network/networkSecurityGroups/training"


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Company]:
    with company("azure", tmp_path) as azure:
        admin = azure.provider(azure.cloud.config())._account._arm
        admin.put(NETS, {"location": "eastus"})
        subnet = {"name": "training", "properties": {"addressPrefix": "10.9.0.0/24"}}
        space = {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}, "subnets": [subnet]}
        path = AZURE_SUBNET.partition("/subnets")[0]
        admin.put(path, {"location": "eastus", "properties": space})
        admin.put(NSG, {"location": "eastus", "tags": {"of": "the network team"}})
        yield azure


@pytest.mark.parametrize("firewall", [(NSG,), ()])
def test_a_security_group_of_azure_is_attached_or_left_to_the_subnet(
    azure: Company, firewall: tuple[str, ...]
) -> None:
    before = azure.cloud.holdings()
    nodes = {"chief": NodeGroup(machine="Standard_D4s_v5", disk_gb=64)}
    network = Network(subnet=AZURE_SUBNET, firewall=firewall)
    plan = azure.plan(network=network, placement=("eastus",), nodes=nodes)
    assert "used as it is; it must allow SSH (TCP port 22)" in azure.check(plan)["firewall"].text
    (rehearsed, *_) = azure.provider(plan.config).dry_run(plan)
    assert rehearsed.ok, rehearsed
    azure.up(plan)
    (nic,) = azure.app.of_type("Microsoft.Network/networkInterfaces")
    attached = nic.properties.get("networkSecurityGroup", {}).get("id")
    assert (attached,) == (firewall or (None,))
    (group,) = azure.app.of_type("Microsoft.Network/networkSecurityGroups")
    azure.down(plan)
    assert azure.cloud.holdings() == before
    (group,) = azure.app.of_type("Microsoft.Network/networkSecurityGroups")
    assert group.tags == {"of": "the network team"}


def test_a_security_group_of_azure_that_does_not_exist_is_told(azure: Company) -> None:
    network = Network(subnet=AZURE_SUBNET, firewall=(f"{NSG}-other",))
    finding = azure.check(azure.plan(network=network, placement=("eastus",)))["firewall"]
    assert finding.error is CloudConfigError


def _refused(account: Company, plan: Any) -> CloudError:
    with pytest.raises((CloudError, NodesError)) as refused:
        account.up(plan)
    error = refused.value
    one = next(iter(error.failures.values())) if isinstance(error, NodesError) else error
    assert isinstance(one, CloudError)
    return one
