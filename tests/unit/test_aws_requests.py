"""What is sent to EC2, checked against EC2's own service model."""

from __future__ import annotations

import base64
import gzip
import random
from dataclasses import replace

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import (
    ON_DEMAND,
    SPOT,
    ClusterConfig,
    Market,
    Network,
    NodeGroup,
    Plan,
    Provisioning,
)
from cloudtrain.providers.aws import requests
from cloudtrain.providers.aws.types import AwsImage, ClusterNetwork, Subnet
from cloudtrain.providers.base.driver import LaunchRequest
from tests.standins import aws_query
from tests.support.aws_parts import EXPIRES, HERE, order_of

IMAGE = AwsImage(id="ami-1", name="ubuntu", root="/dev/sda1", size_gb=8)


def plan(*, private: bool = False, spot: bool = False, disk: int | None = None) -> Plan:
    group = NodeGroup(machine="g4dn.xlarge", provisioning=SPOT if spot else ON_DEMAND, disk_gb=disk)
    config = ClusterConfig(
        name="mnist",
        provider="aws",
        strategy="one_device",
        nodes={"chief": group},
        network=Network(private=private),
    )
    return make_plan(config)


def order(
    plan: Plan, image: AwsImage = IMAGE, placement_group: str = ""
) -> LaunchRequest[ClusterNetwork]:
    ground = ClusterNetwork(
        subnet=Subnet(id="subnet-1", vpc="vpc-1", zone="us-east-1a"),
        groups=("sg-1",),
        placement_group=placement_group,
        images={node.name: image for node in plan.nodes},
    )
    made = order_of(plan, plan.nodes[0], ground)
    return replace(made, labels={"cloudtrain-cluster": "mnist"}, user_data="#cloud-config\n")


def sent(order: LaunchRequest[ClusterNetwork]) -> dict[str, str]:
    fields = requests.flat(requests.run_instances(order, "token"))
    aws_query.parse({"Action": "RunInstances", "Version": requests.VERSION, **fields})
    return fields


@pytest.mark.parametrize(
    ("identity", "key"),
    [("trainer", "Name"), ("arn:aws:iam::123456789012:instance-profile/trainer", "Arn")],
)
def test_an_instance_gets_the_profile_that_the_file_names(identity: str, key: str) -> None:
    wanted = plan()
    wanted = replace(wanted, config=replace(wanted.config, identity=identity))
    fields = sent(order(wanted))
    assert fields[f"IamInstanceProfile.{key}"] == identity
    assert not any("IamInstanceProfile" in name for name in sent(order(plan())))


def test_an_instance_is_asked_for_with_all_that_it_needs_and_no_more() -> None:
    assert sent(order(plan(disk=100), placement_group="cloudtrain-mnist-us-east-1a")) == {
        "MinCount": "1",
        "MaxCount": "1",
        "ClientToken": "token",
        "ImageId": "ami-1",
        "InstanceType": "g4dn.xlarge",
        "NetworkInterface.1.DeviceIndex": "0",
        "NetworkInterface.1.SubnetId": "subnet-1",
        "NetworkInterface.1.SecurityGroupId.1": "sg-1",
        "NetworkInterface.1.AssociatePublicIpAddress": "true",
        "NetworkInterface.1.DeleteOnTermination": "true",
        "BlockDeviceMapping.1.DeviceName": "/dev/sda1",
        "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
        "BlockDeviceMapping.1.Ebs.VolumeSize": "100",
        "BlockDeviceMapping.1.Ebs.Iops": "3000",
        "BlockDeviceMapping.1.Ebs.Throughput": "500",
        "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
        "BlockDeviceMapping.1.Ebs.Encrypted": "true",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpPutResponseHopLimit": "1",
        "Placement.AvailabilityZone": "us-east-1a",
        "Placement.GroupName": "cloudtrain-mnist-us-east-1a",
        "UserData": base64.b64encode(b"#cloud-config\n").decode(),
        **{
            f"TagSpecification.{number}.{rest}": value
            for number, kind in enumerate(("instance", "volume", "network-interface"), 1)
            for rest, value in (
                ("ResourceType", kind),
                ("Tag.1.Key", "Name"),
                ("Tag.1.Value", "mnist-chief0"),
                ("Tag.2.Key", "cloudtrain-cluster"),
                ("Tag.2.Value", "mnist"),
            )
        },
    }


def test_a_spot_instance_is_asked_for_once_and_deleted_when_it_is_taken_back() -> None:
    fields = sent(order(plan(spot=True)))
    assert {key: value for key, value in fields.items() if key.startswith("InstanceMarket")} == {
        "InstanceMarketOptions.MarketType": "spot",
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
    }
    assert fields["TagSpecification.4.ResourceType"] == "spot-instances-request"


CR = "cr-0123456789abcdef0"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/training"


@pytest.mark.parametrize(
    ("market", "name", "fields"),
    [
        (
            "reservation",
            CR,
            {
                "CapacityReservationSpecification.CapacityReservationTarget."
                "CapacityReservationId": CR,
            },
        ),
        (
            "reservation",
            GROUP,
            {
                "CapacityReservationSpecification.CapacityReservationPreference": (
                    "capacity-reservations-only"
                ),
                "CapacityReservationSpecification.CapacityReservationTarget."
                "CapacityReservationResourceGroupArn": GROUP,
            },
        ),
        (
            "capacity-block",
            CR,
            {
                "InstanceMarketOptions.MarketType": "capacity-block",
                "CapacityReservationSpecification.CapacityReservationTarget."
                "CapacityReservationId": CR,
            },
        ),
    ],
)
def test_a_reserved_instance_names_its_reservation_and_is_never_on_demand(
    market: Market, name: str, fields: dict[str, str]
) -> None:
    bought = Provisioning(market=market, name=name)
    wanted = plan()
    wanted = replace(
        wanted, nodes=tuple(replace(node, provisioning=bought) for node in wanted.nodes)
    )
    ordinary, asked = sent(order(plan())), sent(order(wanted))
    assert {key: value for key, value in asked.items() if key not in ordinary} == fields
    assert ordinary.items() <= asked.items()


def test_a_private_node_gets_no_public_address() -> None:
    fields = sent(order(plan(private=True)))
    assert fields["NetworkInterface.1.AssociatePublicIpAddress"] == "false"


def test_a_node_is_asked_for_with_the_internal_address_that_it_must_have() -> None:
    wanted = plan()
    wanted = replace(wanted, nodes=(replace(wanted.nodes[0], internal="172.31.0.9"),))
    assert sent(order(wanted))["NetworkInterface.1.PrivateIpAddress"] == "172.31.0.9"
    on_gpus = order(wanted)
    cards = replace(on_gpus.network, efa_cards=(0, 1))
    fields = sent(replace(on_gpus, network=cards))
    assert fields["NetworkInterface.1.PrivateIpAddress"] == "172.31.0.9"
    assert "NetworkInterface.2.PrivateIpAddress" not in fields


@pytest.mark.parametrize(
    ("wanted", "image", "made"), [(100, 8, 100), (None, 8, 50), (10, 35, 35), (None, 105, 105)]
)
def test_a_disk_is_never_smaller_than_its_image(wanted: int | None, image: int, made: int) -> None:
    assert requests.disk_gb(wanted, replace(IMAGE, size_gb=image)) == made


@pytest.mark.parametrize(
    ("wanted", "image", "made"), [(None, 8, 58), (None, 65, 115), (200, 65, 200), (40, 65, 65)]
)
def test_a_disk_with_gpus_has_room_for_cuda_beside_the_image(
    wanted: int | None, image: int, made: int
) -> None:
    assert requests.disk_gb(wanted, replace(IMAGE, size_gb=image), gpus=True) == made


def test_long_first_boot_data_is_packed_and_too_long_data_is_refused() -> None:
    long = "#cloud-config\n" + "# the same line again\n" * 1000
    assert gzip.decompress(base64.b64decode(requests.user_data(long))).decode() == long
    noise = "".join(random.Random(1).choices("0123456789abcdef", k=60_000))
    with pytest.raises(CloudConfigError, match="the limit is 16384"):
        requests.user_data(noise)


def test_first_boot_data_is_the_same_each_time_so_that_a_token_stays_good() -> None:
    long = "# line\n" * 5000
    assert requests.user_data(long) == requests.user_data(long)


def test_an_ipv6_caller_is_let_in_by_an_ipv6_rule() -> None:
    assert requests.ssh_from("2001:db8::7/128")["Ipv6Ranges"] == [{"CidrIpv6": "2001:db8::7/128"}]
    assert requests.ssh_from("203.0.113.7/32")["IpRanges"] == [{"CidrIp": "203.0.113.7/32"}]


def test_the_order_says_when_the_node_ends() -> None:
    assert str(EXPIRES) in order_of(plan(), plan().nodes[0], order(plan()).network, HERE).user_data
