"""`artifacts.create` on a cloud's stand-in, as a user types it."""

from __future__ import annotations

import json
from typing import Any

from tests.standins import stores
from tests.support.project import Project


def events(project: Project) -> list[dict[str, Any]]:
    (journal,) = project.home.glob("clusters/*/events*")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_a_run_makes_its_bucket_before_its_nodes_and_leaves_nothing_else(project: Project) -> None:
    with stores.s3() as place:
        project.environment |= place.environment
        config = project.config(artifacts={"store": "s3://made-here/mnist", "create": True})
        checked = project.cloudtrain("check", config)
        assert checked.returncode == 0, checked.stderr
        assert "s3://made-here/mnist: does not exist yet: `up` creates it" in checked.stdout
        assert "made-here" not in buckets(place)

        done = project.cloudtrain("run", config)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("created the store s3://made-here/mnist") == 1
        assert "through this machine" not in done.stderr
        told = [event["event"] for event in events(project)]
        assert told.index("make") < told.index("create")
        assert "made-here" in buckets(place)
        keys = [
            each["Key"] for each in client(place).list_objects_v2(Bucket="made-here")["Contents"]
        ]
        assert any(key.endswith("/chief0/output/chief0.txt") for key in keys)
        assert project.processes() == {}

        again = project.cloudtrain("up", config)
        assert again.returncode == 0, again.stderr
        assert "created the store" not in again.stderr


def client(place: stores.Store) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=place.environment["AWS_ENDPOINT_URL_S3"],
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="test",
    )


def buckets(place: stores.Store) -> list[str]:
    return [each["Name"] for each in client(place).list_buckets()["Buckets"]]
