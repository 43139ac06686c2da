"""The AWS stand-in, driven by AWS's own SDK and by libcloud, says what the real one says."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.standins.aws_data import CANONICAL, quota_of
from tests.standins.cloud import Cloud, start

ONCE = Config(retries={"total_max_attempts": 1})
UBUNTU = "ami-0a00000000002204b"


@pytest.fixture(scope="module")
def one_cloud() -> Iterator[Cloud]:
    with start("aws", thread=True) as cloud:
        yield cloud


@pytest.fixture
def cloud(one_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An empty account, where nothing takes time."""
    for name, value in one_cloud.environment.items():
        monkeypatch.setenv(name, value)
    one_cloud.renew()
    one_cloud.app.delay = 0.0
    return one_cloud


def client(service: str = "ec2", region: str = "us-east-1") -> Any:
    return boto3.session.Session().client(service, region_name=region, config=ONCE)


def wish(**changes: Any) -> dict[str, Any]:
    made = {
        "ImageId": UBUNTU,
        "InstanceType": "g4dn.xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": "Name", "Value": "mnist-chief0"}]}
            for kind in ("instance", "volume")
        ],
    }
    return {**made, **changes}


def run(ec2: Any, **changes: Any) -> str:
    return str(ec2.run_instances(**wish(**changes))["Instances"][0]["InstanceId"])


def refused(call: Any, **given: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**given)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def told(ec2: Any, instance: str) -> dict[str, Any]:
    found = ec2.describe_instances(InstanceIds=[instance])
    return dict(found["Reservations"][0]["Instances"][0])


def state(ec2: Any, instance: str) -> str:
    return str(told(ec2, instance)["State"]["Name"])


def test_an_instance_is_pending_then_running_then_shutting_down_then_gone(cloud: Cloud) -> None:
    cloud.app.delay = 60.0
    ec2 = client()
    made = run(ec2)
    assert state(ec2, made) == "pending"
    assert "PublicIpAddress" not in told(ec2, made)
    assert cloud.holdings() == ["instance mnist-chief0 us-east-1a pending"]
    cloud.advance(60)
    assert state(ec2, made) == "running"
    assert told(ec2, made)["PublicIpAddress"].startswith("203.0.113.")
    answer = ec2.terminate_instances(InstanceIds=[made])["TerminatingInstances"][0]
    assert answer["PreviousState"]["Name"] == "running"
    assert answer["CurrentState"]["Name"] == "shutting-down"
    assert cloud.holdings() == ["instance mnist-chief0 us-east-1a shutting-down"]
    cloud.advance(60)
    assert state(ec2, made) == "terminated"
    assert cloud.holdings() == []
    assert ec2.describe_volumes()["Volumes"] == []
    cloud.advance(3600)
    assert refused(ec2.describe_instances, InstanceIds=[made]) == (
        "InvalidInstanceID.NotFound",
        400,
    )


def test_a_disk_that_does_not_go_with_its_instance_is_held(cloud: Cloud) -> None:
    ec2 = client()
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 50, "DeleteOnTermination": False}}
    made = run(ec2, BlockDeviceMappings=[disk])
    ec2.terminate_instances(InstanceIds=[made])
    (volume,) = ec2.describe_volumes()["Volumes"]
    assert cloud.holdings() == [f"volume {volume['VolumeId']} us-east-1"]
    assert volume["Tags"] == [{"Key": "Name", "Value": "mnist-chief0"}]


def test_the_same_token_makes_one_instance_also_when_that_has_ended(cloud: Cloud) -> None:
    ec2 = client()
    made = run(ec2, ClientToken="a" * 32)
    assert run(ec2, ClientToken="a" * 32) == made
    assert refused(ec2.run_instances, **wish(ClientToken="a" * 32, InstanceType="g5.xlarge")) == (
        "IdempotentParameterMismatch",
        400,
    )
    ec2.terminate_instances(InstanceIds=[made])
    again = ec2.run_instances(**wish(ClientToken="a" * 32))["Instances"][0]
    assert (again["InstanceId"], again["State"]["Name"]) == (made, "terminated")
    assert run(ec2, ClientToken="b" * 32) != made


def test_a_new_instance_is_not_known_for_a_while(cloud: Cloud) -> None:
    cloud.app.lag = 5.0
    ec2 = client()
    made = run(ec2)
    assert ec2.describe_instances()["Reservations"] == []
    for call in (ec2.describe_instances, ec2.terminate_instances):
        assert refused(call, InstanceIds=[made]) == ("InvalidInstanceID.NotFound", 400)
    assert cloud.holdings() == ["instance mnist-chief0 us-east-1a running"]
    cloud.advance(5)
    assert state(ec2, made) == "running"


def test_a_list_of_everything_may_be_behind_what_is_asked_by_name(cloud: Cloud) -> None:
    cloud.app.wide_lag = 5.0
    ec2 = client()
    made = run(ec2)
    zone = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    assert ec2.describe_instances()["Reservations"] == []
    assert state(ec2, made) == "running"
    assert len(ec2.describe_instances(Filters=zone)["Reservations"]) == 1
    cloud.advance(5)
    assert len(ec2.describe_instances()["Reservations"]) == 1


def test_nothing_is_terminated_where_one_is_unknown(cloud: Cloud) -> None:
    ec2 = client()
    made = run(ec2)
    call = ec2.terminate_instances
    assert (
        refused(call, InstanceIds=[made, "i-00000000000000000"])[0] == "InvalidInstanceID.NotFound"
    )
    assert state(ec2, made) == "running"


def test_capacity_is_by_type_and_zone(cloud: Cloud) -> None:
    cloud.set(capacity={"g4dn.xlarge us-east-1a": 1})
    ec2 = client()
    here = {"AvailabilityZone": "us-east-1a"}
    assert refused(ec2.run_instances, **wish(Placement=here, MinCount=2, MaxCount=2)) == (
        "InsufficientInstanceCapacity",
        500,
    )
    made = run(ec2, Placement=here, MaxCount=2)
    assert refused(ec2.run_instances, **wish(Placement=here))[0] == "InsufficientInstanceCapacity"
    run(ec2, Placement={"AvailabilityZone": "us-east-1b"})
    ec2.terminate_instances(InstanceIds=[made])
    run(ec2, Placement=here)


@pytest.mark.parametrize(
    ("market", "code"),
    [({}, "VcpuLimitExceeded"), ({"MarketType": "spot"}, "MaxSpotInstanceCountExceeded")],
)
def test_quotas_count_cpus_of_a_family(cloud: Cloud, market: dict[str, str], code: str) -> None:
    name = quota_of("g4dn.xlarge", bool(market))
    cloud.set(quotas={**cloud.app.quotas, name: 7.0})
    extra = {"InstanceMarketOptions": market} if market else {}
    ec2, quotas = client(), client("service-quotas")
    told = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=name)["Quota"]
    assert told["Value"] == 7.0
    made = run(ec2, **extra)
    assert refused(ec2.run_instances, **wish(**extra)) == (code, 400)
    ec2.terminate_instances(InstanceIds=[made])
    run(ec2, **extra)
    assert name in [
        one["QuotaCode"] for one in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]
    ]
    assert refused(quotas.get_service_quota, ServiceCode="ec2", QuotaCode="L-0")[0] == (
        "NoSuchResourceException"
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "ami-0a00000000002204c"}, "InvalidParameterValue"),
        ({"InstanceType": "g4dn.huge"}, "InvalidParameterValue"),
        (
            {"InstanceType": "p4d.24xlarge", "Placement": {"AvailabilityZone": "us-east-1e"}},
            "Unsupported",
        ),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"DryRun": True}, "DryRunOperation"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 4}}]},
            "InvalidBlockDeviceMapping",
        ),
    ],
)
def test_a_wrong_wish_is_refused_and_makes_nothing(
    cloud: Cloud, changes: dict[str, Any], code: str
) -> None:
    assert refused(client().run_instances, **wish(**changes))[0] == code
    assert cloud.holdings() == []


def test_what_was_asked_for_is_what_is_told(cloud: Cloud) -> None:
    ec2 = client()
    ec2.create_placement_group(GroupName="cloudtrain-mnist", Strategy="cluster")
    made = run(
        ec2,
        InstanceType="g4dn.12xlarge",
        Placement={"AvailabilityZone": "us-east-1b", "GroupName": "cloudtrain-mnist"},
        MetadataOptions={"HttpTokens": "required"},
        InstanceInitiatedShutdownBehavior="terminate",
        InstanceMarketOptions={"MarketType": "spot"},
        UserData="#cloud-config\n",
    )
    instance = told(ec2, made)
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert instance["Placement"]["GroupName"] == "cloudtrain-mnist"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["InstanceLifecycle"] == "spot"
    assert abs(instance["LaunchTime"].timestamp() - time.time()) < 60
    data = ec2.describe_instance_attribute(InstanceId=made, Attribute="userData")["UserData"]
    assert base64.b64decode(data["Value"]) == b"#cloud-config\n"


def test_a_machine_that_shuts_itself_down_ends_or_stops_as_it_was_asked_to(cloud: Cloud) -> None:
    ec2 = client()
    for behavior, ends in (("terminate", "terminated"), ("stop", "stopped")):
        made = run(ec2, InstanceInitiatedShutdownBehavior=behavior)
        cloud.tell("shut_down", name="mnist-chief0")
        assert state(ec2, made) == ends
        assert told(ec2, made)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    ec2.start_instances(InstanceIds=[made])
    assert state(ec2, made) == "running"


def test_a_spot_instance_that_is_taken_away_says_so(cloud: Cloud) -> None:
    ec2 = client()
    made = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    cloud.tell("interrupt", name="mnist-chief0")
    assert state(ec2, made) == "terminated"
    assert told(ec2, made)["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_a_security_group_in_use_stays(cloud: Cloud) -> None:
    cloud.app.delay = 60.0
    ec2 = client()
    tags = [{"ResourceType": "security-group", "Tags": [{"Key": "k", "Value": "v"}]}]
    made = {
        name: ec2.create_security_group(GroupName=name, Description="d", TagSpecifications=tags)[
            "GroupId"
        ]
        for name in ("one", "other")
    }
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": made["one"]}]}
    for group in made.values():
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    (group,) = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["one"]}])[
        "SecurityGroups"
    ]
    assert group["Tags"] == [{"Key": "k", "Value": "v"}]
    instance = run(ec2, SecurityGroupIds=[made["other"]])
    assert cloud.holdings() == [
        "instance mnist-chief0 us-east-1a pending",
        "security group one us-east-1",
        "security group other us-east-1",
    ]
    assert refused(ec2.delete_security_group, GroupId=made["one"])[0] == "DependencyViolation"
    assert refused(ec2.delete_security_group, GroupId=made["other"])[0] == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=[instance])
    assert refused(ec2.delete_security_group, GroupId=made["other"])[0] == "DependencyViolation"
    cloud.advance(60)
    ec2.delete_security_group(GroupId=made["other"])
    ec2.delete_security_group(GroupId=made["one"])
    assert cloud.holdings() == []
    assert refused(ec2.delete_security_group, GroupId=made["one"])[0] == "InvalidGroup.NotFound"


def test_a_security_groups_name_is_there_once(cloud: Cloud) -> None:
    ec2 = client()
    ec2.create_security_group(GroupName="one", Description="d")
    assert refused(ec2.create_security_group, GroupName="one", Description="d")[0] == (
        "InvalidGroup.Duplicate"
    )


def test_placement_groups(cloud: Cloud) -> None:
    ec2 = client()
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "k", "Value": "v"}]}]
    ec2.create_placement_group(GroupName="pg", Strategy="cluster", TagSpecifications=tags)
    assert refused(ec2.create_placement_group, GroupName="pg", Strategy="cluster")[0] == (
        "InvalidPlacementGroup.Duplicate"
    )
    for filters in ([{"Name": "tag:k", "Values": ["v"]}], [{"Name": "tag-key", "Values": ["k"]}]):
        (found,) = ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
        assert (found["GroupName"], found["State"], found["Tags"]) == (
            "pg",
            "available",
            tags[0]["Tags"],
        )
    assert client(region="us-west-2").describe_placement_groups()["PlacementGroups"] == []
    assert (
        refused(ec2.run_instances, **wish(InstanceType="t3.micro", Placement={"GroupName": "pg"}))[
            0
        ]
        == "InvalidParameterCombination"
    )
    instance = run(ec2, Placement={"GroupName": "pg"})
    assert refused(ec2.delete_placement_group, GroupName="pg")[0] == "InvalidPlacementGroup.InUse"
    ec2.terminate_instances(InstanceIds=[instance])
    ec2.delete_placement_group(GroupName="pg")
    assert refused(ec2.delete_placement_group, GroupName="pg")[0] == "InvalidPlacementGroup.Unknown"
    assert cloud.holdings() == []


def test_images_are_named_as_their_owners_name_them(cloud: Cloud) -> None:
    ec2 = client()
    named = {"Name": "name", "Values": ["ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*"]}
    found = ec2.describe_images(Owners=[CANONICAL], Filters=[named])["Images"]
    newest = max(found, key=lambda image: image["CreationDate"])
    assert newest["ImageId"] == UBUNTU
    assert newest["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 8
    assert len(ec2.describe_images(Filters=[named])["Images"]) == len(found) + 1
    deep = {
        "Name": "name",
        "Values": ["Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"],
    }
    assert len(ec2.describe_images(Owners=["amazon"], Filters=[deep])["Images"]) == 2


def test_machines_regions_and_zones(cloud: Cloud) -> None:
    ec2 = client()
    assert [one["RegionName"] for one in ec2.describe_regions()["Regions"]] == cloud.app.regions
    assert refused(client(region="af-south-1").describe_instances) == ("AuthFailure", 401)
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    assert "us-east-1a" in [zone["ZoneName"] for zone in zones]
    (t4,) = ec2.describe_instance_types(InstanceTypes=["g4dn.xlarge"])["InstanceTypes"]
    assert t4["GpuInfo"]["Gpus"][0]["Name"] == "T4"
    offers = ec2.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": ["g4dn.xlarge"]}],
    )["InstanceTypeOfferings"]
    assert "us-east-1a" in [offer["Location"] for offer in offers]


def test_the_default_network_leads_to_the_internet(cloud: Cloud) -> None:
    ec2 = client()
    (network,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    (table,) = ec2.describe_route_tables(
        Filters=[{"Name": "vpc-id", "Values": [network["VpcId"]]}]
    )["RouteTables"]
    assert any(route.get("GatewayId", "").startswith("igw-") for route in table["Routes"])
    assert cloud.holdings() == []


def test_a_wrong_signature_is_refused(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert refused(client().describe_instances) == ("AuthFailure", 401)
    answer = requests.post(cloud.url, data={"Action": "DescribeInstances"}, timeout=10)
    assert answer.status_code == 401


def test_the_caller_is_told(cloud: Cloud) -> None:
    assert client("sts").get_caller_identity()["Account"] == cloud.app.account


def test_calls_are_named_by_action_and_region(cloud: Cloud) -> None:
    client().describe_regions()
    client("service-quotas").list_service_quotas(ServiceCode="ec2")
    client("sts").get_caller_identity()
    assert [call["action"] for call in cloud.calls()] == [
        "DescribeRegions us-east-1",
        "ListServiceQuotas us-east-1",
        "GetCallerIdentity us-east-1",
    ]


def test_an_injected_fault_is_in_ec2s_own_words(cloud: Cloud) -> None:
    cloud.fault("answer", action="RunInstances *", status=503, message="slow down", retry_after=2)
    with pytest.raises(ClientError, match="slow down") as caught:
        client().run_instances(**wish())
    assert caught.value.response["Error"]["Code"] == "ServiceUnavailable"
    assert cloud.holdings() == []


def test_libclouds_own_driver_sees_the_same(cloud: Cloud) -> None:
    from libcloud.compute.drivers.ec2 import EC2NodeDriver

    run(client())
    host, _, port = cloud.url.removeprefix("http://").partition(":")
    driver = EC2NodeDriver(
        cloud.environment["AWS_ACCESS_KEY_ID"],
        cloud.environment["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        signature_version="4",
        secure=False,
        host=host,
        port=int(port),
    )
    (node,) = driver.list_nodes()
    assert (node.name, node.state) == ("mnist-chief0", "running")
    assert node.public_ips[0].startswith("203.0.113.")
    made = driver.ex_create_security_group("one", "d")
    with pytest.raises(Exception, match=r"^InvalidGroup\.Duplicate: "):
        driver.ex_create_security_group("one", "d")
    driver.ex_delete_security_group_by_id(made["group_id"])
    assert driver.destroy_node(node)
