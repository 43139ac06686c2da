"""The AWS stand-in reads parameters as EC2's model names them."""

from __future__ import annotations

import pytest

from tests.standins import aws_query
from tests.standins.aws_query import Refused


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"Action": "DescribeInstancez"}, "InvalidAction"),
        ({"Action": "DescribeInstances", "Instance.1": "i-1"}, "UnknownParameter"),
        ({"Action": "DescribeInstances", "Filters.1.Name": "x"}, "UnknownParameter"),
        ({"Action": "DescribeInstances", "Filter.1.Values.1": "x"}, "UnknownParameter"),
        ({"Action": "DescribeInstances", "MaxResults": "many"}, "InvalidParameterValue"),
        ({"Action": "DescribeInstances", "DryRun": "perhaps"}, "InvalidParameterValue"),
        ({"Action": "TerminateInstances"}, "MissingParameter"),
        (
            {"Action": "RunInstances", "TagSpecification.1.ResourceType": "node"},
            "InvalidParameterValue",
        ),
    ],
)
def test_a_parameter_that_ec2_does_not_know_is_refused(params: dict[str, str], code: str) -> None:
    with pytest.raises(Refused) as caught:
        aws_query.parse(params)
    assert caught.value.code == code


def test_parameters_are_read_as_the_model_names_them() -> None:
    params = {
        "Action": "RunInstances",
        "Version": "2016-11-15",
        "MinCount": "1",
        "MaxCount": "2",
        "InstanceType": "g99.tiny",
        "SecurityGroupId.1": "sg-1",
        "TagSpecification.2.ResourceType": "volume",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.1.Tag.1.Key": "Name",
    }
    assert aws_query.parse(params) == {
        "MinCount": 1,
        "MaxCount": 2,
        "InstanceType": "g99.tiny",
        "SecurityGroupIds": ["sg-1"],
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "Name"}]},
            {"ResourceType": "volume"},
        ],
    }
