"""The AWS driver on its stand-in: zones, network, one VM per request, nothing left behind."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtrain.core.errors import (
    CapacityError,
    CloudConfigError,
    CloudtrainError,
    CredentialsError,
    NotAskedError,
    PermissionsError,
    QuotaError,
    TransientError,
)
from cloudtrain.core.events import Event, PlacementRefused
from cloudtrain.core.model import (
    SPOT,
    Accelerator,
    Away,
    HostKey,
    Limits,
    Network,
    NodeGroup,
    Plan,
    Secret,
)
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.core.retry import Clock
from cloudtrain.providers.aws import images, requests
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import name_of
from cloudtrain.providers.aws.provider import AwsDriver
from cloudtrain.providers.aws.types import ClusterNetwork
from cloudtrain.providers.base import boot
from cloudtrain.providers.base.driver import Location, Vm
from tests.standins import aws_data
from tests.standins.cloud import Cloud
from tests.support.aws_parts import (
    CALLER,
    EXPIRES,
    FAST,
    HERE,
    account_of,
    bare_moto,
    ec2,
    order_of,
    plan_of,
    provider_of,
    silent,
    stand_in,
    with_spot,
)
from tests.support.fakes import facts_of, line_of, make_identity

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def one_cloud() -> Iterator[Cloud]:
    with stand_in() as aws:
        yield aws


@pytest.fixture
def aws(one_cloud: Cloud) -> Cloud:
    one_cloud.app.__init__()
    one_cloud.app.delay = 0.0
    one_cloud.no_more_faults()
    one_cloud.forget_calls()
    return one_cloud


def launched(
    aws: Cloud, plan: Plan, account: AwsDriver | None = None, place: Location = HERE
) -> tuple[Vm, ...]:
    """Every node of the plan, as `up` makes them."""
    account = account or account_of(plan)
    ground = account.create_network(plan, place, CALLER, silent)
    return tuple(account.launch(order_of(plan, node, ground, place)) for node in plan.nodes)


def erase_all(account: AwsDriver, cluster: str | None = None) -> None:
    alive = [m for m in account.machines(cluster) if m.node.state != "gone"]
    account.delete(alive, account.resources(cluster))


def tries(aws: Cloud, action: str) -> int:
    return sum(call["action"].startswith(f"{action} ") for call in aws.calls())


def actions(aws: Cloud) -> list[str]:
    return [call["action"] for call in aws.calls()]


# ── Places ───────────────────────────────────────────────────────────────────


def test_a_region_that_is_not_enabled_is_told_so_and_not_as_wrong_credentials(aws: Cloud) -> None:
    """EC2 answers AuthFailure there, as it does for credentials that it does not know."""
    plan = plan_of(aws, placement=("eu-south-1b", "us-east-1"))
    identity, finding = account_of(plan).check(plan)
    assert identity.ok
    assert (finding.what, finding.ok, finding.error) == ("placement", False, CloudConfigError)
    assert "region eu-south-1 is not enabled for this account" in finding.text
    assert "aws account enable-region --region-name eu-south-1" in (finding.hint or "")


def test_a_region_on_record_that_is_not_enabled_hides_no_machine_elsewhere(aws: Cloud) -> None:
    """It is asked without a list of regions first, and refuses these credentials."""
    plan = plan_of(aws)
    made = launched(account_of(plan), plan)[0]
    aws.fault("answer", action="* eu-south-1", status=401, code="AuthFailure", times=1000)
    found = account_of(plan).machines("mnist", places=("eu-south-1b", str(made.place)))
    assert made.id in [machine.id for machine in found]
    assert len(found) == len(plan.nodes)
    (told,) = found.not_asked
    assert (told.place, told.denied) == ("eu-south-1", True)


def test_a_region_on_record_that_was_disabled_is_asked_itself_and_named_by_down(
    aws: Cloud, tmp_path: Path
) -> None:
    """Its instances are still billed, and no list of enabled regions has it."""
    plan = plan_of(aws, placement=("eu-west-1a",))
    provider_of(plan).create(plan, make_identity(tmp_path, plan), silent)
    aws.set(regions=["us-east-1", "us-west-2"])
    provider = provider_of(plan)
    where = Whereabouts(cluster="mnist", places=("eu-west-1a",), complete=True)
    provider.whereabouts = replace(where, tried=("eu-west-1a",))
    assert [each.place for each in provider.find("mnist").not_asked] == ["eu-west-1"]
    with pytest.raises(NotAskedError, match=r"not checked: eu-west-1 \(not enabled: `aws account"):
        provider.destroy("mnist", silent)
    aws.set(regions=["us-east-1", "us-west-2", "eu-west-1"])
    provider_of(plan).destroy("mnist", silent)
    assert aws.holdings() == []


def test_a_session_token_that_an_opt_in_region_refuses_is_told(aws: Cloud) -> None:
    plan = plan_of(aws, placement=("us-west-2",))
    refused = {"status": 401, "code": "AuthFailure", "times": 1000}
    aws.fault("answer", action="* us-west-2", **refused)
    (finding,) = account_of(plan).check(plan)
    assert (finding.what, finding.error) == ("credentials", CredentialsError)
    assert "AWS_STS_REGIONAL_ENDPOINTS=regional" in (finding.hint or "")


def test_a_named_subnet_without_a_way_in_is_refused(aws: Cloud) -> None:
    vpc = ec2().create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2().create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone="us-east-1a")[
        "Subnet"
    ]["SubnetId"]
    plan = plan_of(aws, placement=("us-east-1",), network=Network(subnet=subnet))
    (finding,) = findings(plan)["network"]
    assert not finding.ok
    assert f"{subnet} has no route to an internet gateway" in finding.text
    with pytest.raises(CloudConfigError, match="cannot be reached"):
        launched(aws, plan)
    private = plan_of(aws, placement=("us-east-1",), network=Network(subnet=subnet, private=True))
    (finding,) = findings(private)["network"]
    assert finding.ok
    assert "no route to the internet" in finding.text
    gateway = ec2().create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2().attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2().describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    ec2().create_route(
        RouteTableId=table["RouteTables"][0]["RouteTableId"],
        DestinationCidrBlock="0.0.0.0/0",
        GatewayId=gateway,
    )
    assert findings(plan)["network"][0].ok


def test_a_named_subnet_leaves_only_its_zone(aws: Cloud) -> None:
    subnet = next(
        each["SubnetId"]
        for each in ec2().describe_subnets()["Subnets"]
        if each["AvailabilityZone"] == "us-east-1c"
    )
    plan = plan_of(aws, placement=("us-west-2", "us-east-1"), network=Network(subnet=subnet))
    assert [str(place) for place in account_of(plan).places(plan)] == ["us-east-1c"]
    elsewhere = plan_of(aws, placement=("us-west-2",), network=Network(subnet=subnet))
    with pytest.raises(CloudConfigError, match=f"{subnet} is in none of us-west-2"):
        account_of(elsewhere).places(elsewhere)


# ── Ground ───────────────────────────────────────────────────────────────────


def rules(group: str) -> list[tuple[str, int | None, str]]:
    found = ec2().describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    return sorted(
        (rule["IpProtocol"], rule.get("FromPort"), source)
        for rule in found["IpPermissions"]
        for source in [
            *(each["CidrIp"] for each in rule["IpRanges"]),
            *(each["CidrIpv6"] for each in rule["Ipv6Ranges"]),
            *(each["GroupId"] for each in rule["UserIdGroupPairs"]),
        ]
    )


def test_the_firewall_lets_in_ssh_from_the_caller_and_all_from_itself(aws: Cloud) -> None:
    plan = plan_of(aws)
    made: list[str] = []
    ground = account_of(plan).create_network(
        plan,
        HERE,
        CALLER,
        lambda event: made.append(" ".join([event.word, *facts_of(event).values()])),
    )
    assert rules(ground.groups[0]) == [("-1", None, ground.groups[0]), ("tcp", 22, CALLER)]
    assert [line for line in made if line.startswith("make ")] == [
        "make security group cloudtrain-mnist",
        "make placement group cloudtrain-mnist-us-east-1a",
    ]


def test_a_caller_with_another_address_is_let_in_and_the_old_one_is_not(aws: Cloud) -> None:
    plan = plan_of(aws)
    group = account_of(plan).create_network(plan, HERE, CALLER, silent).groups[0]
    ec2().authorize_security_group_ingress(
        GroupId=group, IpProtocol="tcp", FromPort=6006, ToPort=6006, CidrIp="198.51.100.0/24"
    )
    account_of(plan).create_network(plan, HERE, "2001:db8::7/128", silent)
    assert rules(group) == [
        ("-1", None, group),
        ("tcp", 22, "2001:db8::7/128"),
        ("tcp", 6006, "198.51.100.0/24"),  # the user's own
    ]


def test_without_a_default_vpc_it_is_told_how_to_get_one(aws: Cloud) -> None:
    client = ec2()
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    client.delete_vpc(VpcId=client.describe_vpcs()["Vpcs"][0]["VpcId"])
    plan = plan_of(aws)
    with pytest.raises(CloudConfigError, match="us-east-1 has no default VPC") as caught:
        account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert "aws ec2 create-default-vpc --region us-east-1" in (caught.value.hint or "")
    assert aws.holdings() == []


def test_one_node_or_a_machine_that_cannot_stand_close_needs_no_placement_group(aws: Cloud) -> None:
    alone = plan_of(aws, strategy="one_device", nodes={"chief": NodeGroup(machine="g4dn.xlarge")})
    small = plan_of(aws, nodes={"worker": NodeGroup(machine="t3.large", count=2)})
    mixed = plan_of(
        aws, nodes={"chief": NodeGroup(machine="m5.large"), "worker": NodeGroup(machine="c5.large")}
    )
    slow = plan_of(aws, network=Network())
    off = plan_of(aws, network=Network(close="off"))
    for plan in (alone, small, mixed, slow, off):
        assert account_of(plan).create_network(plan, HERE, CALLER, silent).placement_group == ""


@pytest.mark.parametrize(
    ("machine", "accelerator", "private", "kinds"),
    [
        ("p4d.24xlarge", "A100:8", False, [(None, "efa", "true")]),
        (
            "p4d.24xlarge",
            "A100:8",
            True,
            [(None, "efa", None), *((n, "efa-only", None) for n in ("1", "2", "3"))],
        ),
        ("g5.8xlarge", "A10G:1", True, [(None, "efa", "false")]),
        ("g4dn.xlarge", "T4:1", False, [(None, None, "true")]),
    ],
)
def test_nodes_with_gpus_that_stand_close_get_the_fabric_adapters_of_their_machine(
    aws: Cloud,
    machine: str,
    accelerator: str,
    private: bool,
    kinds: list[tuple[str | None, str | None, str | None]],
) -> None:
    """With a public address only one interface is possible."""
    kind, _, count = accelerator.partition(":")
    group = NodeGroup(
        machine=machine, count=2, accelerator=Accelerator(kind=kind, count=int(count))
    )
    plan = plan_of(aws, nodes={"worker": group}, network=Network(private=private))
    account = account_of(plan)
    for _ in range(2):  # the second finds the group's rules as they should be
        ground = account.create_network(plan, HERE, CALLER, silent)
    asked = requests.flat(requests.run_instances(order_of(plan, plan.nodes[0], ground), "t"))
    found = [
        tuple(
            asked.get(f"NetworkInterface.{number}.{name}")
            for name in ("NetworkCardIndex", "InterfaceType", "AssociatePublicIpAddress")
        )
        for number in range(1, 1 + len(kinds))
    ]
    assert found == kinds
    assert f"NetworkInterface.{len(kinds) + 1}.DeviceIndex" not in asked
    (rules,) = ec2().describe_security_groups(GroupIds=[ground.groups[0]])["SecurityGroups"]
    inside = [
        pair["GroupId"]
        for rule in rules["IpPermissionsEgress"]
        for pair in rule["UserIdGroupPairs"]
    ]
    assert inside == ([ground.groups[0]] if kinds[0][1] else [])
    account.launch(order_of(plan, plan.nodes[0], ground))


def test_nodes_that_do_not_stand_close_get_no_fabric_adapter(aws: Cloud) -> None:
    group = NodeGroup(machine="g5.8xlarge", count=2, accelerator=Accelerator(kind="A10G", count=1))
    plan = plan_of(aws, nodes={"worker": group}, network=Network(close="off"))
    assert account_of(plan).create_network(plan, HERE, CALLER, silent).efa_cards == ()


def test_an_adapter_whose_group_does_not_let_its_own_traffic_out_is_refused(aws: Cloud) -> None:
    """By the stand-in: the real EC2 takes it, and nothing arrives."""
    group = NodeGroup(machine="g5.8xlarge", count=2, accelerator=Accelerator(kind="A10G", count=1))
    plan = plan_of(aws, nodes={"worker": group})
    account = account_of(plan)
    ground = account.create_network(plan, HERE, CALLER, silent)
    pairs = [{"GroupId": ground.groups[0]}]
    ec2().revoke_security_group_egress(
        GroupId=ground.groups[0], IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": pairs}]
    )
    with pytest.raises(CloudConfigError, match="EFA without rules"):
        account.launch(order_of(plan, plan.nodes[0], ground))


def test_an_endpoint_without_placement_groups_is_gone_on_with(aws: Cloud) -> None:
    aws.fault("answer", action="*PlacementGroup*", status=400, code="InvalidAction", times=100)
    plan = plan_of(aws)
    assert account_of(plan).create_network(plan, HERE, CALLER, silent).placement_group == ""


# ── Images ───────────────────────────────────────────────────────────────────

T4 = Accelerator(kind="T4")


@pytest.mark.parametrize(
    ("image", "group", "found"),
    [
        ("auto", NodeGroup(machine="m5.large"), "ami-0a00000000002204b"),
        ("auto", NodeGroup(machine="g4dn.xlarge", accelerator=T4), "ami-0d00000000002204b"),
        (
            "auto",  # V100: its driver is not the open one
            NodeGroup(machine="p3dn.24xlarge", accelerator=Accelerator(kind="V100-32GB", count=8)),
            "ami-0a00000000002204b",
        ),
        ("ubuntu-22.04", NodeGroup(machine="m5.large"), "ami-0a00000000002204b"),
        ("ubuntu-24.04", NodeGroup(machine="m5.large"), "ami-0a00000000002404a"),
        ("deeplearning", NodeGroup(machine="m5.large"), "ami-0d00000000002204b"),
        ("ami-0a00000000002204a", NodeGroup(machine="m5.large"), "ami-0a00000000002204a"),
    ],
)
def test_an_image_is_the_newest_of_its_owner(
    aws: Cloud, image: str, group: NodeGroup, found: str
) -> None:
    """Not the one that a stranger gave the same name."""
    plan = plan_of(aws, strategy="one_device", nodes={"chief": group}, image=image)
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert ground.images["mnist-chief0"].id == found


SINGLE = "Deep Learning Base AMI with Single CUDA (Ubuntu {}) 20261117"
OSS = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu {}) 20261120"


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ((SINGLE, "24.04"), (SINGLE, "24.04")),
        ((OSS, "24.04"), (OSS, "24.04")),
        ((SINGLE, "24.04", OSS, "24.04"), (SINGLE, "24.04")),
        ((SINGLE, "24.04", OSS, "22.04"), (OSS, "22.04")),
        ((SINGLE, "22.04", OSS, "22.04", SINGLE, "24.04"), (SINGLE, "22.04")),
    ],
    ids=["24.04", "24.04-many-cudas", "one-cuda", "22.04-first", "all"],
)
def test_ubuntu_24_serves_once_an_image_of_22_is_no_more(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], taken: tuple[str, str]
) -> None:
    names = [name.format(of) for name, of in zip(there[::2], there[1::2], strict=True)]
    known = next(each for each in aws_data.IMAGES if each.name.startswith("Deep Learning"))
    made = tuple(
        replace(known, id=f"ami-0e0000000000000{n:02}", name=name) for n, name in enumerate(names)
    )
    others = tuple(each for each in aws_data.IMAGES if not each.name.startswith("Deep Learning"))
    monkeypatch.setattr(aws_data, "IMAGES", others + made)
    group = NodeGroup(machine="g4dn.xlarge", accelerator=T4)
    plan = plan_of(aws, strategy="one_device", nodes={"chief": group}, image="auto")
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert ground.images["mnist-chief0"].name == taken[0].format(taken[1])


def test_without_22_a_node_without_gpus_gets_ubuntu_24(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tuple(each for each in aws_data.IMAGES if "22.04" not in each.name)
    later = replace(kept[0], id="ami-0f000000000000001", created="2026-11-21T00:00:00.000Z")
    later = replace(later, name=later.name.replace("noble-24.04", "plucky-25.04"))
    monkeypatch.setattr(aws_data, "IMAGES", (*kept, later))
    plan = plan_of(aws, strategy="one_device", nodes={"chief": NodeGroup(machine="m5.large")})
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert "24.04" in ground.images["mnist-chief0"].name


def test_what_does_not_change_is_asked_for_once_in_a_command(aws: Cloud) -> None:
    plan = plan_of(aws)
    account = account_of(plan)
    account.check(plan)
    account.places(plan)
    account.create_network(plan, HERE, CALLER, silent)
    for action in ("Images", "Vpcs", "Subnets", "RouteTables", "AvailabilityZones"):
        for region in {place.region for place in account.places(plan)}:
            asked = [a for a in actions(aws) if a == f"Describe{action} {region}"]
            assert len(asked) == 1, (action, region)


@pytest.mark.parametrize("image", ["ami-0123456789abcdef0", "windows"])
def test_an_image_that_is_not_there_is_told_before_anything_is_made(aws: Cloud, image: str) -> None:
    plan = plan_of(aws, image=image)
    with pytest.raises(CloudConfigError, match=image):
        account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert aws.holdings() == []


def test_an_endpoint_that_knows_no_image_is_told_so(aws: Cloud) -> None:
    ec2 = Ec2Client(plan_of(aws).config, FAST)
    ec2.ask("us-east-1", "DescribeVpcs")
    aws.app.backend("us-east-1").amis.clear()
    with pytest.raises(
        CloudConfigError, match=r"image ubuntu-22\.04 or ubuntu does not exist in us-east-1"
    ):
        images.find(ec2, "us-east-1", ("ubuntu-22.04", "ubuntu"))


def test_a_node_without_a_machine_type_is_refused_and_not_ec2_s_choice(aws: Cloud) -> None:
    account, order = one_order(aws)
    with pytest.raises(CloudConfigError, match="mnist-chief0 has no machine type"):
        account.launch(replace(order, node=replace(order.node, machine=None)))
    assert tries(aws, "RunInstances") == 0


# ── Launch ───────────────────────────────────────────────────────────────────


def test_a_node_is_what_was_asked_for(aws: Cloud) -> None:
    plan = with_spot(plan_of(aws))
    launched(aws, plan)
    time.sleep(0.01)
    machines = {m.node.name: m for m in account_of(plan).machines("mnist", HERE)}
    assert sorted(machines) == ["mnist-chief0", "mnist-worker0", "mnist-worker1"]
    machine = machines["mnist-worker1"]
    node = machine.node
    assert (machine.cluster, machine.place, machine.error) == ("mnist", HERE, None)
    assert (node.role, node.index, node.state, node.spot) == ("worker", 1, "running", True)
    assert (node.placement, node.machine, node.expires) == ("us-east-1a", "g4dn.xlarge", EXPIRES)
    assert re.fullmatch(r"203\.0\.113\.\d+", node.address)
    assert re.fullmatch(r"172\.31\.\d+\.\d+", node.internal)
    assert node.created is not None
    assert abs(node.created - time.time()) < 60


def test_ec2_itself_says_that_the_node_is_safe(aws: Cloud) -> None:
    plan = with_spot(plan_of(aws, nodes={"worker": NodeGroup(machine="g4dn.xlarge")}))
    launched(aws, plan)
    (reservation,) = ec2().describe_instances()["Reservations"]
    (found,) = reservation["Instances"]
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert found["InstanceLifecycle"] == "spot"
    assert "IamInstanceProfile" not in found
    assert "KeyName" not in found
    (volume,) = ec2().describe_volumes()["Volumes"]
    assert volume["Encrypted"] is True
    assert found["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
    labelled = {"Key": "cloudtrain-cluster", "Value": "mnist"}
    (card,) = found["NetworkInterfaces"]
    cards = ec2().describe_network_interfaces(NetworkInterfaceIds=[card["NetworkInterfaceId"]])
    assert labelled in found["Tags"]
    assert labelled in volume["Tags"]
    assert labelled in cards["NetworkInterfaces"][0]["TagSet"]


def test_a_node_that_shuts_itself_down_is_gone_with_all_that_it_had(aws: Cloud) -> None:
    plan = plan_of(aws)
    launched(aws, plan)
    account_of(plan).machines("mnist", HERE)
    aws.tell("shut_down", name="mnist-worker0")
    machine = next(m for m in account_of(plan).machines("mnist") if m.node.name == "mnist-worker0")
    assert (machine.node.state, machine.error) == ("gone", None)
    assert account_of(plan).resources("mnist") == account_of(plan).resources()
    assert {r.kind for r in account_of(plan).resources()} == {"security group", "placement group"}


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


def role_of(service: str) -> None:
    trust = json.dumps(TRUST).replace("scheduler", service)
    iam = boto3.session.Session().client("iam", region_name="us-east-1")
    iam.create_role(RoleName="cloudtrain-terminate", AssumeRolePolicyDocument=trust)


def test_a_node_that_hangs_is_ended_by_aws_where_the_account_has_a_role_for_it(aws: Cloud) -> None:
    role_of("scheduler")
    plan = plan_of(aws, placement=("us-east-1a",))
    assert "AWS itself 3 minutes later" in findings(plan)["lifetime"][0].text
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    orders = [order_of(plan, n, ground, expires=time.time() + 3600) for n in plan.nodes]
    for order in orders:
        account_of(plan).launch(order)
    machines = {m.node.name: m for m in account_of(plan).machines("mnist")}
    assert aws.app.schedules() == sorted(
        name_of(machine.id, machine.node.expires or 0.0) for machine in machines.values()
    )
    chief = machines["mnist-chief0"]
    assert account_of(plan).move_ends([chief], time.time() + 7200, lambda node, line: None)
    aws.app.advance(3700)
    assert len(instances(aws)) == 3
    aws.app.advance(200)
    aws.app.advance(1)
    assert instances(aws) == ["instance mnist-chief0 us-east-1a running"]
    account = account_of(plan)
    erase_all(account)
    assert (aws.app.schedules(), aws.holdings()) == ([], [])


def test_a_schedule_is_of_one_instance_not_of_its_name(aws: Cloud) -> None:
    """The end of an extra instance goes with it, and no other does."""
    role_of("scheduler")
    plan = plan_of(aws, placement=("us-east-1a",))
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    order = order_of(plan, plan.nodes[0], ground, expires=time.time() + 3600)
    first = account_of(plan).launch(order)
    second = account_of(plan).launch(replace(order, token="1" * 32))
    assert first.id != second.id
    account_of(plan).delete([second], ())
    assert aws.app.schedules() == [name_of(first.id, order.expires or 0.0)]


def test_a_schedule_that_an_earlier_version_named_by_the_node_is_moved(aws: Cloud) -> None:
    role_of("scheduler")
    plan = plan_of(aws, placement=("us-east-1a",))
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    order = order_of(plan, plan.nodes[0], ground, expires=time.time() + 3600)
    chief = account_of(plan).launch(order)
    as_earlier(name_of(chief.id, order.expires or 0.0), "cloudtrain-mnist-chief0")
    chief = account_of(plan).machines("mnist")[0]
    later = time.time() + 7200
    account_of(plan).move_ends([chief], later, lambda node, line: None)
    assert aws.app.schedules() == [name_of(chief.id, later)]


def test_an_end_is_asked_of_aws_and_mended_by_up(aws: Cloud, tmp_path: Path) -> None:
    role_of("scheduler")
    limits = Limits(max_lifetime=3600.0)
    plan = plan_of(aws, placement=("us-east-1a",), limits=limits)
    provider, identity = provider_of(plan), make_identity(tmp_path, plan)
    provider.create(plan, identity, silent)
    assert {node.no_end for node in provider.nodes_and_ends("mnist")} == {""}
    scheduler = boto3.session.Session().client("scheduler", region_name="us-east-1")
    before = aws.app.schedules()
    scheduler.delete_schedule(Name=before[0])
    (why,) = {node.no_end for node in provider.nodes_and_ends("mnist")} - {""}
    assert why.startswith("role cloudtrain-terminate exists, and AWS has no schedule for i-")
    (held,) = provider.sweep()
    assert {node.no_end for node in held.nodes} == {"", why}
    provider.create(plan, identity, silent)
    assert aws.app.schedules() == before


def as_earlier(name: str, before: str) -> None:
    scheduler = boto3.session.Session().client("scheduler", region_name="us-east-1")
    found = scheduler.get_schedule(Name=name)
    kept = ("ScheduleExpression", "ScheduleExpressionTimezone", "FlexibleTimeWindow", "Target")
    scheduler.create_schedule(Name=before, **{key: found[key] for key in kept})
    scheduler.delete_schedule(Name=name)


def test_an_end_that_aws_refuses_to_move_stays_where_it_was(aws: Cloud) -> None:
    role_of("scheduler")
    plan = plan_of(aws, placement=("us-east-1a",))
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    order = order_of(plan, plan.nodes[0], ground, expires=time.time() + 3600)
    account_of(plan).launch(order)
    (chief,) = account_of(plan).machines("mnist")
    before, lines = aws.app.schedules(), []
    aws.fault("answer", action="CreateTags*", status=403, code="UnauthorizedOperation", times=9)
    with pytest.raises(PermissionsError):
        account_of(plan).move_ends(
            [chief], time.time() + 7200, lambda node, line: lines.append(line)
        )
    assert aws.app.schedules() == before
    assert lines[-1] == boot.move_end_command(order.expires)
    assert [m.node for m in account_of(plan).machines("mnist")] == [chief.node]


@pytest.mark.parametrize("with_role", [False, True])
def test_a_stopped_node_is_started_only_with_its_end_moved(aws: Cloud, with_role: bool) -> None:
    if with_role:
        role_of("scheduler")
    plan = plan_of(aws, placement=("us-east-1a",))
    ground = account_of(plan).create_network(plan, HERE, CALLER, silent)
    data = boot.user_data(
        public_key="ssh-ed25519 AAAA", host_key=HOST_KEY, expires=time.time() + 3600, timed=True
    )
    order = order_of(plan, plan.nodes[0], ground, expires=time.time() + 3600)
    account_of(plan).launch(replace(order, user_data=data))
    account_of(plan).machines("mnist")
    aws.tell("stop", name="mnist-chief0")
    (chief,) = account_of(plan).machines("mnist")
    before, later = aws.app.schedules(), time.time() + 7200
    aws.fault("answer", action="ModifyInstanceAttribute*", status=403, code="UnauthorizedOperation")
    with pytest.raises(PermissionsError, match="ModifyInstanceAttribute"):
        account_of(plan).start(chief, later)
    assert [m.node for m in account_of(plan).machines("mnist")] == [chief.node]
    assert aws.app.schedules() == before
    account_of(plan).start(chief, later)
    (started,) = account_of(plan).machines("mnist")
    assert started.node.expires == int(later)
    assert aws.app.schedules() == ([name_of(chief.id, later)] if with_role else [])
    told = aws.app.named("mnist-chief0").user_data.decode()
    assert f"end={int(later)}" in told
    assert f"end={int(order.expires or 0.0)}" not in told


HOST_KEY = HostKey(public="ssh-ed25519 AAAA", private=Secret("a key of tests"))


def test_without_such_a_role_the_nodes_own_timers_end_them(aws: Cloud) -> None:
    plan = plan_of(aws)
    assert "with a role cloudtrain-terminate" in findings(plan)["lifetime"][0].text
    launched(aws, plan)
    assert aws.app.schedules() == []


def test_a_role_that_cannot_be_used_leaves_no_node_behind(aws: Cloud) -> None:
    role_of("lambda")
    plan = plan_of(aws)
    with pytest.raises(CloudConfigError, match="must allow AWS EventBridge Scheduler to assume"):
        launched(aws, plan)
    aws.app.advance(1)
    assert instances(aws) == []


def test_check_tells_what_spot_costs_now(aws: Cloud) -> None:
    nodes = {"chief": NodeGroup(machine="g4dn.xlarge", provisioning=SPOT)}
    plan = plan_of(aws, strategy="one_device", nodes=nodes, placement=("us-east-1a",))
    (finding,) = findings(plan)["spot price"]
    assert re.fullmatch(r"g4dn\.xlarge [0-9.e-]+ \$/hour in us-east-1a", finding.text)


def one_order(aws: Cloud, expires: float = EXPIRES) -> tuple[AwsDriver, Any]:
    plan = plan_of(aws, strategy="one_device", nodes={"chief": NodeGroup(machine="m5.large")})
    account = account_of(plan)
    ground = account.create_network(plan, HERE, CALLER, silent)
    return account, order_of(plan, plan.nodes[0], ground, expires=expires)


def instances(aws: Cloud) -> list[str]:
    return [line for line in aws.holdings() if line.startswith("instance ")]


def test_a_wish_with_another_end_adopts_the_vm_that_is_there(aws: Cloud) -> None:
    """A second `up` comes with the same token and another time: EC2 refuses, and is asked."""
    account, order = one_order(aws)
    first = account.launch(order)
    account, order = one_order(aws, expires=EXPIRES + 60)
    assert account.launch(order).id == first.id
    assert len(instances(aws)) == 1


def test_a_vm_that_is_not_listed_yet_is_adopted_all_the_same(aws: Cloud) -> None:
    aws.set(lag=0.3)
    account, order = one_order(aws)
    first = account.launch(order)
    account, order = one_order(aws, expires=EXPIRES + 60)
    asked = replace(order, asked=time.time())
    assert account.launch(asked).id == first.id
    assert len(instances(aws)) == 1


@pytest.mark.parametrize("expires", [EXPIRES, EXPIRES + 60], ids=["same words", "other words"])
def test_a_wish_whose_vm_has_ended_gets_a_new_one(aws: Cloud, expires: float) -> None:
    account, order = one_order(aws)
    first = account.launch(order)
    account.delete([first], [])
    account, order = one_order(aws, expires=expires)
    second = account.launch(order)
    assert second.id != first.id
    assert account.launch(order).id == second.id
    assert len(instances(aws)) == 1


def test_a_token_that_was_refused_with_another_end_costs_no_wait(aws: Cloud) -> None:
    """EC2 binds a token to its parameters also where it has no room, and each `up` has another
    end: the next one goes on at once, and again makes one VM for one wish."""
    account, order = one_order(aws)
    aws.set(capacity={"m5.large us-east-1a": 0})
    for later in range(3):
        with pytest.raises(CapacityError):
            account.launch(one_order(aws, expires=EXPIRES + later)[1])
    aws.set(capacity={})
    waits: list[float] = []
    account = account_of(order.plan, replace(FAST, clock=Clock(sleep=waits.append)))
    last = one_order(aws, expires=EXPIRES + 4)[1]
    first = account.launch(last)
    assert account.launch(last).id == first.id
    assert (len(instances(aws)), waits) == (1, [])


def test_a_token_of_a_call_that_may_have_been_carried_out_is_waited_for(aws: Cloud) -> None:
    account, order = one_order(aws)
    first = account.launch(order)
    aws.set(lag=0.3)
    other = replace(one_order(aws, expires=EXPIRES + 60)[1], asked=time.time())
    assert account.launch(other).id == first.id
    assert len(instances(aws)) == 1


@pytest.mark.sweep(0)
def test_a_cluster_that_went_up_and_down_many_times_goes_up_again(aws: Cloud) -> None:
    account, order = one_order(aws)
    for _ in range(40):
        account.delete([account.launch(order)], [])
    aws.forget_calls()
    account.launch(order)
    assert tries(aws, "RunInstances") == 2
    assert len(instances(aws)) == 1


def test_a_token_whose_instance_ec2_calls_terminated_is_followed_by_the_next(aws: Cloud) -> None:
    account, order = one_order(aws)
    aws.fault("answer", action="RunInstances *", status=400, code="IdempotentInstanceTerminated")
    account.launch(order)
    assert len(instances(aws)) == 1
    assert tries(aws, "RunInstances") == 2


def test_a_launch_that_is_never_answered_is_given_up_like_any_call(aws: Cloud) -> None:
    account, order = one_order(aws)
    aws.fault("answer", action="RunInstances *", status=500, times=1000)
    with pytest.raises(TransientError):
        account.launch(order)
    assert tries(aws, "RunInstances") == FAST.calls.tries


def test_a_throttled_launch_is_tried_for_longer(aws: Cloud) -> None:
    account, order = one_order(aws)
    throttled = {"status": 503, "code": "RequestLimitExceeded"}
    aws.fault("answer", action="RunInstances *", times=FAST.calls.tries + 3, **throttled)
    account.launch(order)
    assert tries(aws, "RunInstances") == FAST.calls.tries + 4


def test_a_group_that_ec2_does_not_know_everywhere_yet_is_waited_for(aws: Cloud) -> None:
    account, order = one_order(aws)
    code = "InvalidGroup.NotFound"
    aws.fault("answer", action="RunInstances *", status=400, code=code, times=2)
    account.launch(order)
    assert tries(aws, "RunInstances") == 3


def test_a_new_group_that_ec2_lists_late_makes_one_group_and_all_nodes(aws: Cloud) -> None:
    aws.set(group_lag=0.4)
    plan = plan_of(aws, placement=("us-east-1a",))
    launched(aws, plan)
    assert len(instances(aws)) == 3
    assert sum(line.startswith("security group ") for line in aws.holdings()) == 1
    erase_all(account_of(plan))
    assert aws.holdings() == []


def test_a_machine_that_the_zone_does_not_have_is_no_capacity_there(aws: Cloud) -> None:
    plan = plan_of(aws, placement=("us-east-1e",))
    place = Location(region="us-east-1", zone="us-east-1e")
    with pytest.raises(CapacityError, match="not supported in your requested") as caught:
        launched(aws, plan, place=place)
    assert caught.value.code == "Unsupported"


def test_a_stopped_node_is_started_again_once_it_has_stopped(aws: Cloud) -> None:
    aws.set(delay=0.03)
    account, order = one_order(aws)
    machine = account.launch(order)
    assert FAST.until(
        lambda: [m for m in account.machines("mnist", HERE) if m.node.state == "running"] or None,
        within=60.0,
    )
    ec2().stop_instances(InstanceIds=[machine.id])
    (stopping,) = account.machines("mnist", HERE)
    assert stopping.node.state == "stopped"
    aws.set(delay=3.0)  # of what begins from now on: it is not running before it is looked at
    account.start(stopping, stopping.node.expires)
    (started,) = account.machines("mnist", HERE)
    assert started.node.state == "starting"


def test_the_next_zone_is_taken_where_the_first_has_no_room(aws: Cloud, tmp_path: Path) -> None:
    plan = plan_of(aws, placement=("us-east-1a", "us-east-1b"), network=Network())
    aws.set(capacity={"g4dn.xlarge us-east-1a": 2})
    refused: list[str] = []

    def journal(event: Event, /) -> None:
        if isinstance(event, PlacementRefused):
            refused.append(f"{event.placement} {event.error}: {event.text}")

    nodes = provider_of(plan).create(plan, make_identity(tmp_path, plan), journal)
    assert {node.placement for node in nodes} == {"us-east-1b"}
    assert len(instances(aws)) == 3
    (told,) = refused
    assert told.startswith("us-east-1a CapacityError: ")
    assert "We currently do not have sufficient g4dn.xlarge capacity" in told


def test_without_permission_no_other_place_is_tried(aws: Cloud, tmp_path: Path) -> None:
    plan = plan_of(aws, placement=("us-east-1a", "us-east-1b", "us-west-2"))
    code = "UnauthorizedOperation"
    aws.fault("answer", action="RunInstances *", status=403, code=code, times=100)
    with pytest.raises(CloudtrainError, match="RunInstances in us-east-1"):
        provider_of(plan).create(plan, make_identity(tmp_path, plan), silent)
    assert tries(aws, "RunInstances") == 3
    assert aws.holdings() == []


# ── Erase ────────────────────────────────────────────────────────────────────


def test_everything_is_gone_when_erase_returns(aws: Cloud) -> None:
    aws.set(delay=0.03)
    plan = plan_of(aws)
    launched(aws, plan)
    assert len(aws.holdings()) > 3
    erase_all(account_of(plan), "mnist")
    assert aws.holdings() == []


def test_another_cluster_and_another_region_are_left_alone_and_found(aws: Cloud) -> None:
    plan, other = plan_of(aws), plan_of(aws, name="mnist2", placement=("us-west-2",))
    launched(aws, plan)
    launched(aws, other, place=Location(region="us-west-2", zone="us-west-2b"))
    erase_all(account_of(plan), "mnist")
    assert {line.split()[1].split("-")[0] for line in instances(aws)} == {"mnist2"}
    nowhere = AwsDriver(replace(plan.config, placement=(), name="any"), FAST)
    assert {m.cluster for m in nowhere.machines() if m.node.state != "gone"} == {"mnist2"}
    assert {r.cluster for r in nowhere.resources()} == {"mnist2"}
    erase_all(nowhere)
    assert aws.holdings() == []


def test_what_somebody_else_deleted_already_is_fine(aws: Cloud) -> None:
    plan = plan_of(aws)
    account = account_of(plan)
    machines = launched(aws, plan, account)
    resources = account.resources("mnist")
    erase_all(account_of(plan), "mnist")
    aws.advance(2 * 3600)  # EC2 forgets what has ended
    timing = replace(FAST, clock=Clock(now=lambda: time.time() + 2 * 3600))
    AwsDriver(plan.config, timing).delete(machines, resources)


def test_one_unknown_instance_does_not_keep_the_others(aws: Cloud) -> None:
    """EC2 ends none of a call's instances where it does not know one of them."""
    plan = plan_of(aws)
    machines = launched(aws, plan)
    gone = replace(machines[0], id="i-0123456789abcdef0")
    account_of(plan).delete([*machines, gone], [])
    assert instances(aws) == []


def test_an_instance_that_ec2_does_not_know_yet_is_ended_once_it_does(aws: Cloud) -> None:
    aws.set(lag=0.3)
    account, order = one_order(aws)
    machine = account.launch(order)
    account.delete([machine], account.resources("mnist"))
    assert aws.holdings() == []


def test_a_busy_security_group_is_asked_again(aws: Cloud) -> None:
    plan = plan_of(aws)
    account = account_of(plan)
    account.create_network(plan, HERE, CALLER, silent)
    code = "DependencyViolation"
    aws.fault("answer", action="DeleteSecurityGroup *", status=400, code=code, times=3)
    erase_all(account)
    assert tries(aws, "DeleteSecurityGroup") == 4
    assert aws.holdings() == []


def test_one_failed_delete_is_told_and_does_not_keep_the_rest(aws: Cloud) -> None:
    plan = plan_of(aws)
    account = account_of(plan)
    launched(aws, plan, account)
    code = "UnauthorizedOperation"
    aws.fault("answer", action="DeletePlacementGroup *", status=403, code=code, times=100)
    with pytest.raises(PermissionsError, match="DeletePlacementGroup in us-east-1"):
        erase_all(account)
    assert aws.holdings() == ["placement group cloudtrain-mnist-us-east-1a us-east-1"]


def test_a_stray_disk_and_a_stray_network_card_are_found_and_deleted(aws: Cloud) -> None:
    plan = plan_of(aws)
    tags = [{"Key": "cloudtrain-cluster", "Value": "mnist"}]
    client = ec2()
    client.create_volume(
        AvailabilityZone="us-east-1a",
        Size=10,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    subnet = client.describe_subnets()["Subnets"][0]["SubnetId"]
    client.create_network_interface(
        SubnetId=subnet,
        TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}],
    )
    account = account_of(plan)
    kinds = sorted(resource.kind for resource in account.resources("mnist"))
    assert kinds == ["network interface", "volume"]
    erase_all(account)
    assert account.resources() == ()
    assert aws.holdings() == []


def test_no_group_is_tried_whose_machines_live(aws: Cloud) -> None:
    plan = plan_of(aws)
    account = account_of(plan)
    made = launched(aws, plan, account)
    deny = {"status": 403, "code": "UnauthorizedOperation", "times": 1000}
    aws.fault("answer", action="TerminateInstances *", **deny)
    aws.forget_calls()
    with pytest.raises(PermissionsError, match="TerminateInstances"):
        account.delete(made, account.resources("mnist"))
    assert not any(action.startswith("Delete") for action in actions(aws))


SEVENTEEN = [
    f"{part}-{n}" for part in ("us-east", "us-west", "eu-west", "ap-south") for n in (1, 2)
]
SEVENTEEN += [f"{part}-1" for part in ("ca-central", "eu-north", "eu-central", "sa-east")]
SEVENTEEN += [f"ap-northeast-{n}" for n in (1, 2, 3)] + [f"ap-southeast-{n}" for n in (1, 2)]


def test_up_and_down_of_a_small_cluster_make_few_calls(aws: Cloud, tmp_path: Path) -> None:
    aws.set(regions=SEVENTEEN)
    plan = plan_of(aws, placement=("us-east-1a",))
    provider = provider_of(plan)
    provider.whereabouts = Whereabouts(cluster="mnist", places=("us-east-1a",), complete=True)
    provider.create(plan, make_identity(tmp_path, plan), silent)
    assert {action.split()[1] for action in actions(aws)} == {"us-east-1"}
    aws.forget_calls()
    again = provider_of(plan)
    again.whereabouts = provider.whereabouts
    assert len(again.find("mnist")) == 3
    assert again.destroy("mnist", silent) == ()
    assert len(actions(aws)) < 80
    assert aws.holdings() == []


# ── Regions that are denied ──────────────────────────────────────────────────


def test_a_denied_region_is_passed_over_where_it_is_not_in_the_placement(aws: Cloud) -> None:
    plan = plan_of(aws, placement=("us-east-1a",))
    launched(aws, plan)
    deny = {"status": 403, "code": "UnauthorizedOperation", "times": 1000}
    aws.fault("answer", action="Describe* eu-west-1", **deny)
    found = account_of(plan).machines("mnist")
    assert len(found) == 3
    (denied,) = found.not_asked
    assert (denied.place, denied.denied) == ("eu-west-1", True)
    in_it = plan_of(aws, placement=("us-east-1a", "eu-west-1"))
    with pytest.raises(PermissionsError, match="eu-west-1"):
        account_of(in_it).machines("mnist")


def test_where_every_region_is_denied_it_is_an_error_and_not_an_empty_list(aws: Cloud) -> None:
    config = replace(plan_of(aws).config, placement=())
    deny = {"status": 403, "code": "UnauthorizedOperation", "times": 1000}
    aws.fault("answer", action="DescribeInstances *", **deny)
    with pytest.raises(PermissionsError):
        AwsDriver(config, FAST).machines()


def test_a_region_that_does_not_answer_is_never_taken_for_an_empty_one(aws: Cloud) -> None:
    """It is told, with EC2's words, and hides no other; nobody waits long for it."""
    plan = plan_of(aws, placement=("us-east-1a",))
    launched(aws, plan)
    aws.fault("answer", action="DescribeInstances eu-west-1", status=503, times=1000)
    aws.fault("answer", action="DescribeVolumes us-west-2", status=503, times=1000)
    found = account_of(plan).machines("mnist")
    assert len(found) == 3
    (silent,) = found.not_asked
    assert (silent.place, silent.denied) == ("eu-west-1", False)
    assert silent.why.startswith("DescribeInstances in eu-west-1: ")
    assert actions(aws).count("DescribeInstances eu-west-1") == 2
    resources = account_of(plan).resources("mnist")
    assert [each.place for each in resources.not_asked] == ["us-west-2"]
    assert {r.kind for r in resources} == {"security group", "placement group"}


def test_only_the_regions_that_count_are_asked_where_these_are_told(aws: Cloud) -> None:
    plan = plan_of(aws, placement=("us-east-1a",))
    launched(aws, plan)
    aws.fault("answer", action="* eu-west-1", status=503, times=1000)
    aws.forget_calls()
    account = account_of(plan)
    assert len(account.machines("mnist", places=("us-east-1a", "us-west-2"))) == 3
    assert len(account.resources("mnist", places=("us-east-1a",))) == 2
    assert {action.split()[1] for action in actions(aws)} == {"us-east-1", "us-west-2"}


def test_the_region_that_is_asked_for_the_others_may_be_down(aws: Cloud) -> None:
    plan = plan_of(aws, placement=("eu-west-1",))
    aws.fault("answer", action="* eu-west-1", status=503, times=1000)
    (silent,) = account_of(plan).machines("mnist").not_asked
    assert silent.place == "eu-west-1"


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "RequestTimeTooSkewed"])
def test_credentials_that_have_expired_are_no_denied_region(aws: Cloud, code: str) -> None:
    plan = plan_of(aws, placement=("us-east-1a",))
    refusal = {"status": 400, "code": code, "times": 1000}
    aws.fault("answer", action="DescribeInstances eu-west-1", **refusal)
    with pytest.raises(CredentialsError, match="eu-west-1"):
        account_of(plan).machines("mnist")


# ── Check ────────────────────────────────────────────────────────────────────


def findings(plan: Plan) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for finding in account_of(plan).check(plan):
        found.setdefault(finding.what, []).append(finding)
    return found


def test_check_finds_all_well_and_makes_nothing(aws: Cloud) -> None:
    found = findings(plan_of(aws))
    assert list(found) == [
        *("credentials", "placement", "machines", "image", "network", "quota", "lifetime"),
        "permissions",
    ]
    assert all(each.ok for group in found.values() for each in group)
    assert found["quota"][0].text == (
        "us-east-1: G and VT on-demand: 12 vCPUs needed, 0 in use, 128 allowed"
    )
    assert found["permissions"][0].text == (
        "RunInstances g4dn.xlarge, CreateSecurityGroup, CreatePlacementGroup allowed"
    )
    assert aws.holdings() == []


def test_check_sums_the_need_of_all_roles_and_what_runs(aws: Cloud) -> None:
    launched(aws, plan_of(aws, name="other"))
    aws.set(quotas={**aws.app.quotas, "L-DB2E81BA": 20})
    found = findings(plan_of(aws, placement=("us-east-1a",)))
    (quota,) = found["quota"]
    assert (quota.ok, quota.error) == (False, QuotaError)
    assert "12 vCPUs needed, 12 in use, 20 allowed" in quota.text
    assert "--quota-code L-DB2E81BA --desired-value 24" in quota.hint
    assert findings(plan_of(aws, name="other"))["quota"][0].ok  # its own are not counted twice


def test_a_quota_that_was_never_changed_is_aws_s_default(aws: Cloud) -> None:
    aws.set(unapplied_quotas=["L-DB2E81BA"], quotas={**aws.app.quotas, "L-DB2E81BA": 0})
    (quota,) = findings(plan_of(aws, placement=("us-east-1a",)))["quota"]
    assert (quota.ok, quota.error) == (False, QuotaError)
    assert "12 vCPUs needed, 0 in use, 0 allowed" in quota.text


def test_a_region_without_the_quota_does_not_matter_where_the_next_has_it(aws: Cloud) -> None:
    west = plan_of(aws, placement=("us-east-1a", "eu-west-1"))
    launched(aws, plan_of(aws, name="other"))
    aws.set(quotas={**aws.app.quotas, "L-DB2E81BA": 20})
    assert [each.ok for each in findings(west)["quota"]] == [True, True]


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (
            NodeGroup(machine="g4dn.xlarge", accelerator=Accelerator(kind="V100")),
            "g4dn.xlarge has T4:1, not V100:1",
        ),
        (
            NodeGroup(machine="g4dn.xlarge", accelerator=Accelerator(kind="T4", count=4)),
            "g4dn.xlarge has T4:1, not T4:4",
        ),
        (
            NodeGroup(machine="m5.large", accelerator=T4),
            "m5.large has no accelerator, not T4:1",
        ),
        (NodeGroup(machine="c6g.large"), "c6g.large is an ARM machine"),
    ],
)
def test_a_machine_that_does_not_fit_is_told(aws: Cloud, group: NodeGroup, words: str) -> None:
    plan = plan_of(aws, strategy="one_device", nodes={"chief": group}, placement=("us-east-1a",))
    (finding,) = findings(plan)["machines"]
    assert (finding.ok, finding.error) == (False, CloudConfigError)
    assert words in finding.text


def test_denied_permissions_are_told_by_name(aws: Cloud) -> None:
    code = "UnauthorizedOperation"
    aws.fault("answer", action="RunInstances *", status=403, code=code, times=10)
    (finding,) = findings(plan_of(aws))["permissions"]
    assert (finding.ok, finding.error) == (False, PermissionsError)
    assert finding.text.startswith("RunInstances in us-east-1")


GUARD_RAILS = {
    "MetadataOptions.HttpTokens": "required",
    "BlockDeviceMappings.Ebs.Encrypted": True,
    "NetworkInterfaces.AssociatePublicIpAddress": True,
}


def test_check_passes_the_guard_rails_that_up_passes(aws: Cloud) -> None:
    """An organization's policies deny by parameters: the dry run has those of `up`."""
    aws.set(required=GUARD_RAILS)
    (finding,) = findings(plan_of(aws))["permissions"]
    assert (finding.ok, finding.error) == (True, None)
    launched(aws, plan_of(aws))
    assert len(instances(aws)) == 3


def test_check_fails_where_a_guard_rail_stops_up(aws: Cloud) -> None:
    aws.set(required={"MetadataOptions.HttpEndpoint": "disabled"})
    (finding,) = findings(plan_of(aws))["permissions"]
    assert (finding.ok, finding.error) == (False, PermissionsError)
    assert "explicit deny in a service control policy" in finding.text
    with pytest.raises(PermissionsError):
        launched(aws, plan_of(aws))


def test_the_encoded_reason_of_a_denial_is_kept_for_an_administrator(
    aws: Cloud, tmp_path: Path
) -> None:
    aws.set(required={"MetadataOptions.HttpEndpoint": "disabled"})
    plan = plan_of(aws, placement=("us-east-1a",))
    written: list[dict[str, Any]] = []

    def journal(event: Event, /) -> None:
        written.append(line_of(event))

    with pytest.raises(PermissionsError) as caught:
        provider_of(plan).create(plan, make_identity(tmp_path, plan), journal)
    assert "Encoded" not in str(caught.value)
    assert "events.jsonl" in (caught.value.hint or "")
    (denied,) = [each for each in written if each["event"] == "denied"]
    assert denied["detail"].startswith(
        "aws sts decode-authorization-message --encoded-message Ab3-_Ab3-_"
    )


def test_each_kind_of_machine_is_asked_for_by_dry_run(aws: Cloud) -> None:
    nodes = {
        "chief": NodeGroup(machine="g4dn.xlarge"),
        "worker": NodeGroup(count=2, machine="g4dn.xlarge", provisioning=SPOT),
    }
    aws.set(required={"InstanceMarketOptions.MarketType": "spot"})  # nothing on demand
    (finding,) = findings(plan_of(aws, nodes=nodes))["permissions"]
    assert not finding.ok
    aws.set(required={})
    (finding,) = findings(plan_of(aws, nodes=nodes))["permissions"]
    assert finding.text.startswith("RunInstances g4dn.xlarge, RunInstances g4dn.xlarge spot, ")


def test_a_dry_run_says_nothing_of_room(aws: Cloud) -> None:
    aws.set(capacity={"g4dn.xlarge us-east-1a": 0})
    (finding,) = findings(plan_of(aws))["permissions"]
    assert finding.ok


def test_a_profile_that_is_not_there_is_the_one_finding(aws: Cloud) -> None:
    plan = plan_of(aws, project="nobody")
    (finding,) = account_of(plan).check(plan)
    assert (finding.what, finding.ok, finding.error) == ("credentials", False, CredentialsError)
    assert "nobody" in finding.text


def test_wrong_credentials_are_the_one_finding(aws: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = account_of(plan_of(aws)).check(plan_of(aws))
    assert [(each.what, each.ok) for each in found] == [("credentials", False)]


def test_an_endpoint_that_has_ec2_alone_tells_no_quota_and_no_name(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", aws.url)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    found = findings(plan_of(aws))
    assert found["credentials"][0].text == "accepted; the identity is not reported by this endpoint"
    assert "not reported by this endpoint" in found["quota"][0].text
    assert all(each.ok for group in found.values() for each in group)


# ── Others that answer in EC2's place ────────────────────────────────────────


@pytest.mark.sweep(0)
def test_moto_alone_is_enough_for_up_and_down(tmp_path: Path) -> None:
    """It has another namespace, no placement groups, no client tokens, no jammy image."""
    with bare_moto(tmp_path):
        plan = make_bare_plan()
        account = account_of(plan)
        assert [finding for finding in account.check(plan) if not finding.ok] == []
        (first, *_) = account.places(plan)
        made = launched_on(account, plan, first)
        assert [m.node.name for m in made] == ["mnist-chief0", "mnist-worker0", "mnist-worker1"]
        running = {m.node.name: m.node for m in account.machines("mnist")}
        assert {node.state for node in running.values()} == {"running"}
        assert all(node.address for node in running.values())
        erase_all(account, "mnist")
        assert [m for m in account.machines() if m.node.state != "gone"] == []
        assert account.resources() == ()


def make_bare_plan() -> Plan:
    from tests.standins import cloud

    return plan_of(cloud.Cloud("aws", {"url": "", "environment": {}, "endpoints": {}}))


def launched_on(account: AwsDriver, plan: Plan, place: Location) -> list[Vm]:
    ground: ClusterNetwork = account.create_network(plan, place, CALLER, silent)
    assert ground.placement_group == ""
    return [account.launch(order_of(plan, node, ground, place)) for node in plan.nodes]


# ── A new account ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("machine", "more", "said"),
    [
        ("m7i-flex.large", None, ""),
        ("m7i-flex.large", "away", "cannot launch t3.medium, only"),
        ("m6i.large", None, "cannot launch m6i.large, only c7i-flex.large, m7i-flex.large, t3."),
        ("g4dn.xlarge", T4, "none of them has a GPU"),
    ],
)
def test_check_says_what_the_free_plan_cannot_launch(
    aws: Cloud, machine: str, more: Accelerator | str | None, said: str
) -> None:
    """Before anything is created; EC2's own refusal says it, too, where nobody may ask. The desk of
    `run --away` is a machine as well.
    """
    group = NodeGroup(machine=machine, accelerator=None if isinstance(more, str) else more)
    away = Away(identity="desk" if more == "away" else None)
    plan = plan_of(aws, strategy="one_device", nodes={"chief": group}, away=away)
    assert "account" not in findings(plan)
    aws.set(account_plan="FREE")
    (finding,) = findings(plan)["account"]
    assert finding.ok is not bool(said)
    assert said in finding.text
    assert not said or "freetier/upgrade" in str(finding.hint)
    account = account_of(plan)
    ground = account.create_network(plan, HERE, CALLER, silent)
    if said and more != "away":
        with pytest.raises(PermissionsError, match="not eligible for Free Tier") as raised:
            account.launch(order_of(plan, plan.nodes[0], ground))
        assert "upgrade" in str(raised.value.hint)
    aws.fault("answer", status=403, code="AccessDeniedException", action="GetAccountPlanState *")
    assert "account" not in findings(plan)


# ── Subnets ──────────────────────────────────────────────────────────────────


def two_subnets(aws: Cloud) -> tuple[str, str]:
    """The default one of the zone, and another that leads to the internet."""
    here = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    (usual,) = ec2().describe_subnets(Filters=here)["Subnets"]
    made = ec2().create_subnet(
        VpcId=usual["VpcId"], CidrBlock="172.31.200.0/24", AvailabilityZone="us-east-1a"
    )["Subnet"]
    return usual["SubnetId"], made["SubnetId"]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"room": 1}, "free addresses"),
        ({"state": "pending"}, "is pending"),
        ({"ipv6_only": "true", "room": 0}, "is for IPv6 only"),
        ({"blocked": "block-bidirectional"}, "VPC Block Public Access is block-bidirectional"),
        ({"blocked": "block-ingress"}, "VPC Block Public Access is block-ingress"),
    ],
)
def test_a_subnet_that_can_take_no_node_is_passed_over_with_its_reason(
    aws: Cloud, facts: dict[str, Any], why: str
) -> None:
    """Its nodes would be billed for 600 s in which nobody gets in."""
    usual, other = two_subnets(aws)
    plan = plan_of(aws, placement=("us-east-1a",))
    place = account_of(plan)
    aws.set(subnets={usual: facts})
    assert place.create_network(plan, HERE, CALLER, silent).subnet.id == other
    aws.set(subnets={usual: facts, other: facts})
    (finding,) = findings(plan)["network"]
    assert not finding.ok
    assert why in finding.text
    assert finding.hint
    if "room" in facts and len(facts) == 1:  # nodes that are there already need no more
        again = account_of(plan).create_network(plan, HERE, CALLER, silent)
        assert again.subnet.id in (usual, other)
        return
    with pytest.raises(CloudConfigError, match=re.escape(why)) as raised:
        account_of(plan).create_network(plan, HERE, CALLER, silent)
    assert raised.value.scope == "zone"
    private = Network(private=True, subnet=usual, ssh_from="10.0.0.0/8")
    named = plan_of(aws, placement=("us-east-1a",), network=private)
    if "blocked" in facts:
        assert account_of(named).create_network(named, HERE, CALLER, silent).subnet.id == usual


@pytest.mark.parametrize("there", [False, True])
def test_the_dry_run_is_the_request_of_up(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """A pair of p5 in a private subnet: 32 network cards each, and its groups once they exist."""
    sent: list[dict[str, Any]] = []
    build = requests.run_instances

    def built(order: Any, token: str) -> dict[str, Any]:
        sent.append(build(order, token))
        return sent[-1]

    group = NodeGroup(machine="p5.48xlarge", accelerator=Accelerator(kind="H100", count=8), count=2)
    private = Network(private=True, ssh_from="10.0.0.0/8")
    plan = plan_of(
        aws,
        nodes={"chief": replace(group, count=1), "worker": replace(group, count=1)},
        network=private,
        placement=("us-east-1a",),
    )
    account = account_of(plan)
    ground = account.create_network(plan, HERE, CALLER, silent) if there else None
    monkeypatch.setattr(requests, "run_instances", built)
    (finding,) = findings(plan)["permissions"]
    assert finding.ok, finding.text
    ground = ground or account.create_network(plan, HERE, CALLER, silent)
    (dry, up) = sent[0], build(order_of(plan, plan.nodes[0], ground), "a token")
    assert len(dry["NetworkInterface"]) == len(up["NetworkInterface"]) == 32
    left_out = {"ClientToken", "UserData", "TagSpecification"}
    if not there:
        left_out |= {"Placement"}
        for each in (*dry["NetworkInterface"], *up["NetworkInterface"]):
            each.pop("SecurityGroupId")
    assert {k: v for k, v in dry.items() if k not in left_out} == {
        k: v for k, v in up.items() if k not in left_out
    }


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "UnfulfillableCapacity"])
def test_every_word_for_no_capacity_goes_on_to_the_next_zone_at_once(
    aws: Cloud, tmp_path: Path, code: str
) -> None:
    """Taken for a passing fault, one of them was asked for 9 times, and the next zone never."""
    group = {"chief": NodeGroup(machine="m5.large")}
    zones = ("us-east-1a", "us-east-1b")
    plan = plan_of(aws, strategy="one_device", nodes=group, placement=zones)
    aws.set(capacity={"m5.large us-east-1a": 0}, capacity_code=code)
    (node,) = provider_of(plan).create(plan, make_identity(tmp_path, plan), silent)
    assert node.placement == "us-east-1b"
    asked = [call for call in aws.calls() if call["action"].startswith("RunInstances")]
    assert [call["status"] for call in asked] == [500, 200]


@pytest.mark.parametrize(
    ("code", "words", "asked"),
    [
        ("UnauthorizedOperation", "with an explicit deny in a service control policy", [403, 200]),
        ("InvalidParameterValue", "The architecture 'arm64' … does not match", [400]),
    ],
)
def test_what_one_region_denies_goes_on_to_the_next_and_what_all_would_say_ends_it(
    aws: Cloud, tmp_path: Path, code: str, words: str, asked: list[int]
) -> None:
    group = {"chief": NodeGroup(machine="m5.large")}
    zones = ("us-east-1a", "us-east-1b", "us-west-2a")
    plan = plan_of(aws, strategy="one_device", nodes=group, placement=zones)
    aws.fault(
        "answer",
        action="RunInstances us-east-1",
        status=asked[0],
        code=code,
        message=words,
        times=9,
    )
    with suppress(CloudConfigError):
        provider_of(plan).create(plan, make_identity(tmp_path, plan), silent)
    sent = [call for call in aws.calls() if call["action"].startswith("RunInstances")]
    assert [call["status"] for call in sent] == asked
    (permissions,) = findings(plan)["permissions"]
    assert permissions.ok == (200 in asked)
