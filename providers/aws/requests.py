"""Request parameters for EC2's query API, built by pure functions."""

from __future__ import annotations

import base64
import gzip
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Plan, Provisioning
from cloudtrain.providers.aws.facts import DISK_GB
from cloudtrain.providers.aws.types import AwsImage, ClusterNetwork
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest

VERSION = "2016-11-15"
USER_DATA = 16 * 1024
"""Maximum size of user data in bytes, before base64:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""
FASTER = {"Iops": 3000, "Throughput": 500}
"""Volume throughput in MiB/s for $0.02 per hour; the default is 125. Nodes read CUDA's libraries at
each start, from volumes that fetch an image's blocks at first use.
https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html#gp3-ebs-volume-type"""
ALL = "-1"
"""Stands for any protocol and port."""


def flat(parameters: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Flatten `{"Filter": [{"Name": "vpc-id"}]}` to `{"Filter.1.Name": "vpc-id"}`, without None."""
    found: dict[str, str] = {}
    for name, value in parameters.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{key}.")
        elif isinstance(value, list | tuple):
            found |= flat({str(n): each for n, each in enumerate(value, 1)}, f"{key}.")
        elif isinstance(value, bool):
            found[key] = str(value).lower()
        elif value is not None:
            found[key] = str(value)
    return found


def filters(**wanted: str | Sequence[str]) -> dict[str, Any]:
    """Build filters: `filters(vpc_id="vpc-1")`, or `**{"tag:Name": …}`; `_` becomes `-`."""
    return {
        "Filter": [
            {
                "Name": name.replace("_", "-"),
                "Value": [value] if isinstance(value, str) else list(value),
            }
            for name, value in wanted.items()
        ]
    }


def tagged(kinds: Sequence[str], values: Mapping[str, str]) -> dict[str, Any]:
    """The tags to set in a request that creates these kinds of resources."""
    tags = [{"Key": key, "Value": value} for key, value in values.items()]
    return {"TagSpecification": [{"ResourceType": kind, "Tag": tags} for kind in kinds]}


def security_group(plan: Plan, vpc: str) -> dict[str, Any]:
    """The request for the cluster's own group."""
    return {
        "GroupName": labels.group_name(plan.config.name),
        "GroupDescription": f"cloudtrain cluster {plan.config.name}",
        "VpcId": vpc,
        **tagged(["security-group"], labels.on_resources(plan)),
    }


def placement_group(name: str, plan: Plan) -> dict[str, Any]:
    tags = tagged(["placement-group"], labels.on_resources(plan))
    return {"GroupName": name, "Strategy": "cluster", **tags}


def run_instances(order: LaunchRequest[ClusterNetwork], token: str) -> dict[str, Any]:
    """Build the request for one instance, which is deleted when it shuts down, has no instance
    profile unless `identity` names one, and requires IMDSv2 from the instance itself (one hop)."""
    node, network = order.node, order.network
    image = network.images[node.name]
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] * node.spot)]
    gpus = node.accelerator is not None
    disk = {
        "VolumeType": "gp3",
        "VolumeSize": disk_gb(node.disk_gb, image, gpus=gpus),
        **(FASTER if gpus else {}),
        "DeleteOnTermination": True,
        "Encrypted": True,
        "KmsKeyId": order.plan.config.disk_key_in(order.place.region),
    }
    return {
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token or None,
        "ImageId": image.id,
        "InstanceType": node.machine,
        "NetworkInterface": interfaces(order),
        "BlockDeviceMapping": [{"DeviceName": image.root, "Ebs": disk}],
        "InstanceMarketOptions": market_options(node.provisioning),
        "CapacityReservationSpecification": reservation(node.provisioning),
        "IamInstanceProfile": instance_profile(order.plan.config.identity),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "Placement": {
            "AvailabilityZone": network.subnet.zone,
            "GroupName": network.placement_group or network.reserved_group or None,
        },
        "UserData": user_data(order.user_data),
        **tagged(kinds, {"Name": node.name, **order.labels}),
    }


def market_options(bought: Provisioning) -> dict[str, Any] | None:
    if bought.market == "capacity-block":
        return {"MarketType": "capacity-block"}
    once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    return {"MarketType": "spot", "SpotOptions": once} if bought.spot else None


def reservation(bought: Provisioning) -> dict[str, Any] | None:
    """The parameter for a reservation or block (ID) or a group of them (ARN); None for none.

    A launch that targets an ID fails if it is full; one that targets a group runs on demand then,
    unless it demands otherwise:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-groups-launch.html (documented)"""
    if not bought.name:
        return None
    if bought.name.startswith("arn:"):
        return {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": bought.name},
        }
    return {"CapacityReservationTarget": {"CapacityReservationId": bought.name}}


def interfaces(order: LaunchRequest[ClusterNetwork]) -> list[dict[str, Any]]:
    """The network interfaces: the first has the node's addresses, others only carry EFA traffic.

    Without EFA's driver in the image, an interface of type `efa` is an ordinary one, and one of
    type `efa-only` is unused.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html (documented)

    A requested address must be in the subnet's range and free; an address belongs to its interface
    until the instance is terminated, also while it is stopped (documented):
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceNetworkInterfaceSpecification.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-instance-addressing.html"""
    network, gpus = order.network, order.node.accelerator is not None
    common = {
        "DeviceIndex": 0,
        "SubnetId": network.subnet.id,
        "SecurityGroupId": list(network.groups),
        "DeleteOnTermination": True,
    }
    cards = network.efa_cards if gpus else ()
    first: dict[str, Any] = {**common, **({"InterfaceType": "efa"} if 0 in cards else {})}
    if order.node.internal:
        first["PrivateIpAddress"] = order.node.internal
    others = [
        {**common, "NetworkCardIndex": card, "InterfaceType": "efa-only"} for card in cards if card
    ]
    if not others:
        first["AssociatePublicIpAddress"] = not order.plan.config.network.private
    return [first, *others]


def instance_profile(identity: str | None) -> dict[str, str] | None:
    """The parameter for an instance profile's name or ARN; None if there is none."""
    if identity is None:
        return None
    return {"Arn" if identity.startswith("arn:") else "Name": identity}


def disk_gb(wanted: int | None, image: AwsImage, *, gpus: bool = False) -> int:
    """The disk size in GB: at least the image's; with GPUs, 50 GB more. CUDA's libraries for
    TensorFlow take 7 GB, and their downloads another 3 GB during installation."""
    default = image.size_gb + 50 if gpus else DISK_GB
    return max(wanted or default, image.size_gb)


def user_data(document: str) -> str:
    """Encode user data in base64; gzip it, as cloud-init understands, if it is too long for EC2."""
    data = document.encode()
    if len(data) > USER_DATA:
        data = gzip.compress(data, mtime=0)
    if len(data) > USER_DATA:
        raise CloudConfigError(
            f"the first-boot data has {len(data)} bytes, the limit is {USER_DATA}"
        )
    return base64.b64encode(data).decode()


def from_itself(group: str) -> dict[str, Any]:
    """The rule that allows all traffic between the members of a security group."""
    return {"IpProtocol": ALL, "Groups": [{"GroupId": group}]}


def ssh_from(cidr: str) -> dict[str, Any]:
    if ipaddress.ip_network(cidr, strict=False).version == 6:
        return {**_SSH, "Ipv6Ranges": [{"CidrIpv6": cidr}]}
    return {**_SSH, "IpRanges": [{"CidrIp": cidr}]}


_SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}


def is_ssh(rule: Tree) -> bool:
    """True for a rule of a response (`ipPermissions`) that allows SSH and nothing else."""
    return (rule.get("ipProtocol"), rule.get("fromPort"), rule.get("toPort")) == ("tcp", "22", "22")
