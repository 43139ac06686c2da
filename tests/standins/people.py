"""Other people with credentials of their own for an account: what each of them would export."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.standins.cloud import Cloud


def person(cloud: Cloud, name: str, folder: Path) -> dict[str, str]:
    """Of a stand-in in this process."""
    return _KINDS[cloud.name](cloud, name, folder)


def _gcp(cloud: Cloud, name: str, folder: Path) -> dict[str, str]:
    """A service account; `Authority.person` makes the credentials of a human being."""
    authority, project = cloud.app.authority, cloud.app.project
    file = authority.service_account(folder, cloud.url, project, name)
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}


def _aws(cloud: Cloud, name: str, folder: Path) -> dict[str, str]:
    """A user of IAM, of whom moto's STS then tells the ARN:
    https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html"""
    import boto3

    iam = boto3.client(
        "iam",
        endpoint_url=cloud.url,
        region_name="us-east-1",
        aws_access_key_id=cloud.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=cloud.environment["AWS_SECRET_ACCESS_KEY"],
    )
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    cloud.app.secrets[key["AccessKeyId"]] = key["SecretAccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


def _azure(cloud: Cloud, name: str, folder: Path) -> dict[str, str]:
    """Another service principal of the directory."""
    client = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    cloud.app.people[client] = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}, the object"))
    return {"AZURE_CLIENT_ID": client}


_KINDS = {"gcp": _gcp, "aws": _aws, "azure": _azure}
