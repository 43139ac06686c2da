"""The EC2 client over HTTP: credentials, POST, pages, retries, kinds of errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from cloudtrain.core import moments
from cloudtrain.core.errors import (
    CloudConfigError,
    CloudError,
    CredentialsError,
    RateError,
    TransientError,
)
from cloudtrain.core.model import ClusterConfig, Endpoints
from cloudtrain.core.retry import Clock
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.base.timing import Timing
from tests.standins.cloud import Cloud
from tests.support.aws_parts import FAST, stand_in


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


class Patient:
    """A timing that notes what it slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.timing = Timing(clock=Clock(sleep=self.slept.append, chance=lambda: 1.0))


def ec2_of(aws: Cloud, timing: Timing = FAST) -> Ec2Client:
    return Ec2Client(aws.config(), timing)


def actions(aws: Cloud) -> list[str]:
    return [call["action"] for call in aws.calls()]


def test_a_clock_that_is_set_during_a_command_dates_no_request(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 refuses a request that is dated wrongly, the deletion of nodes too."""

    class Set(datetime):
        @classmethod
        def utcnow(cls) -> datetime:
            return datetime(2020, 1, 1)

    monkeypatch.setattr("libcloud.common.aws.datetime", Set)
    ec2_of(aws).ask("us-east-1", "DescribeRegions")
    assert actions(aws) == ["DescribeRegions us-east-1"]


def test_a_clock_that_was_wrong_all_along_costs_one_request(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments.MOMENTS, "began", moments.MOMENTS.began - 7200)
    ec2_of(aws).ask("us-east-1", "DescribeRegions")
    assert actions(aws) == ["DescribeRegions us-east-1"] * 2


def test_a_call_is_signed_for_the_region_that_it_is_for(aws: Cloud) -> None:
    """The stand-in checks the signature as botocore makes it."""
    ec2 = ec2_of(aws)
    for region in ("us-east-1", "eu-west-1"):
        zones = xml.items(ec2.ask(region, "DescribeAvailabilityZones"), "availabilityZoneInfo")
        assert {xml.text(zone, "regionName") for zone in zones} == {region}


def test_an_endpoint_of_the_config_comes_before_those_of_the_environment(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:2")
    config = aws.config(endpoints=Endpoints(compute=aws.url))
    assert Ec2Client(config, FAST).url("us-east-1") == aws.url
    assert Ec2Client(aws.config(), FAST).url("us-east-1") == "http://127.0.0.1:2"
    monkeypatch.delenv("AWS_ENDPOINT_URL_EC2")
    assert Ec2Client(aws.config(), FAST).url("us-east-1") == "http://127.0.0.1:1"
    Ec2Client(config, FAST).ask("us-east-1", "DescribeRegions")


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("us-east-1", "https://ec2.us-east-1.amazonaws.com"),
        ("us-gov-west-1", "https://ec2.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "https://ec2.cn-north-1.amazonaws.com.cn"),
        ("eusc-de-east-1", "https://ec2.eusc-de-east-1.amazonaws.eu"),
    ],
)
def test_without_one_the_region_has_its_own(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch, region: str, url: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert ec2_of(aws).url(region) == url


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_what_is_no_url_is_told_as_a_config_error(aws: Cloud, url: str) -> None:
    config = aws.config(endpoints=Endpoints(compute=url))
    with pytest.raises(CloudConfigError, match="endpoint"):
        Ec2Client(config, FAST).ask("us-east-1", "DescribeRegions")


def test_credentials_are_asked_for_anew_for_each_call(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role's or SSO's are renewed by botocore: the next call must be signed with the new."""
    ec2 = ec2_of(aws)
    ec2.ask("us-east-1", "DescribeRegions")
    aws.set(secrets={"AKIASTANDIN000000001": "another"})
    with pytest.raises(CredentialsError, match="DescribeRegions in us-east-1"):
        ec2.ask("us-east-1", "DescribeRegions")
    from botocore.credentials import Credentials

    renewed = Credentials("AKIASTANDIN000000001", "another", "a session's token")
    monkeypatch.setattr(ec2.identity, "_found", renewed)
    ec2.ask("us-east-1", "DescribeRegions")


def test_a_profile_is_the_config_s_project(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text(
        "[other]\naws_access_key_id = AKIASTANDIN000000000\n"
        "aws_secret_access_key = the-stand-in-knows-this-secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    Ec2Client(aws.config(project="other"), FAST).ask("us-east-1", "DescribeRegions")
    with pytest.raises(CredentialsError, match="no AWS credentials"):
        Ec2Client(aws.config(), FAST).ask("us-east-1", "DescribeRegions")
    with pytest.raises(CredentialsError, match="nobody"):
        Ec2Client(aws.config(project="nobody"), FAST).ask("us-east-1", "DescribeRegions")


def test_a_line_in_netrc_does_not_replace_the_signature(
    aws: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    ec2_of(aws).ask("us-east-1", "DescribeRegions")


def test_all_pages_are_read(aws: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain.providers.aws import client

    monkeypatch.setattr(client, "PAGES", {"DescribeInstances": 5})
    ec2 = ec2_of(aws)
    asked = {"ImageId": "ami-0a00000000002204b", "InstanceType": "m5.large"}
    for _ in range(12):
        ec2.ask("us-east-1", "RunInstances", {**asked, "MinCount": 1, "MaxCount": 1})
    aws.forget_calls()
    found = ec2.pages("us-east-1", "DescribeInstances", "reservationSet")
    assert len(found) == 12
    assert len(aws.calls()) == 3


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "answer", "status": 429},
        {"kind": "answer", "status": 500},
        {"kind": "answer", "status": 503},
        {"kind": "answer", "status": 503, "code": "RequestLimitExceeded"},
        {"kind": "reset"},
        {"kind": "reset", "after": True},
    ],
    ids=str,
)
def test_what_passes_is_tried_again(aws: Cloud, fault: dict[str, object]) -> None:
    aws.fault(**fault, action="DescribeVpcs *", times=2)  # type: ignore[arg-type]
    ec2_of(aws).ask("us-east-1", "DescribeVpcs")
    assert actions(aws) == ["DescribeVpcs us-east-1"] * 3


def test_the_cloud_is_left_alone_for_as_long_as_it_asks(aws: Cloud) -> None:
    patient = Patient()
    aws.fault("answer", action="DescribeVpcs *", status=503, retry_after=17)
    ec2_of(aws, patient.timing).ask("us-east-1", "DescribeVpcs")
    assert patient.slept == [17.0]


@pytest.mark.parametrize(
    ("code", "kind"), [("RequestLimitExceeded", RateError), ("Unavailable", TransientError)]
)
def test_what_does_not_pass_is_told_after_many_tries(
    aws: Cloud, code: str, kind: type[CloudError]
) -> None:
    patient = Patient()
    aws.fault("answer", action="DescribeVpcs *", status=503, code=code, times=100)
    with pytest.raises(kind, match="DescribeVpcs in us-east-1: a fault that a test asked for"):
        ec2_of(aws, patient.timing).ask("us-east-1", "DescribeVpcs")
    assert patient.slept[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert len(aws.calls()) == patient.timing.calls.tries


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InvalidParameterValue", "AuthFailure"])
def test_what_will_not_pass_is_told_at_once(aws: Cloud, code: str) -> None:
    aws.fault("answer", action="DescribeVpcs *", status=400, code=code)
    with pytest.raises(CloudError) as caught:
        ec2_of(aws).ask("us-east-1", "DescribeVpcs")
    assert caught.value.code == code
    assert len(aws.calls()) == 1


def test_an_endpoint_where_nobody_listens_is_told_without_a_traceback(aws: Cloud) -> None:
    config: ClusterConfig = aws.config(endpoints=Endpoints(compute="http://127.0.0.1:9"))
    with pytest.raises(TransientError, match=r"DescribeRegions in us-east-1: .*refused"):
        Ec2Client(config, FAST).ask("us-east-1", "DescribeRegions")


def test_threads_do_not_share_a_connection_and_use_it_again_later(aws: Cloud) -> None:
    ec2 = ec2_of(aws)
    aws.fault("delay", action="DescribeVpcs *", seconds=0.2, times=4)
    threads = [
        threading.Thread(target=ec2.ask, args=("us-east-1", "DescribeVpcs")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ec2._http.idle[aws.url]) == 4
    for _ in range(3):
        ec2.ask("us-east-1", "DescribeVpcs")
    assert len(ec2._http.idle[aws.url]) == 4


def test_user_data_is_in_no_url_and_in_no_error(aws: Cloud) -> None:
    secret = "-----BEGIN OPENSSH PRIVATE KEY-----"
    asked = {
        "UserData": requests.user_data(secret),
        "ImageId": "ami-no",
        "InstanceType": "m5.large",
    }
    with pytest.raises(CloudError) as caught:
        ec2_of(aws).once("us-east-1", "RunInstances", {**asked, "MinCount": 1, "MaxCount": 1})
    assert asked["UserData"] not in f"{caught.value!r} {caught.value} {caught.value.hint}"
    assert not any("UserData" in str(call) for call in aws.calls())
