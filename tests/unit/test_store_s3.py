"""S3 requests and part sizes, as values."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from cloudtrain.identities.aws import moment
from cloudtrain.stores.presign.s3 import MOST_PARTS, S3Presigner, part_length

# ── Requests ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("region", "bucket", "host"),
    [
        ("us-east-1", "bucket", "bucket.s3.amazonaws.com"),
        ("eu-west-1", "bucket", "bucket.s3.eu-west-1.amazonaws.com"),
        ("eu-west-1", "with.dots", "s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", "bucket", "bucket.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_request_goes_to_the_bucket_s_own_region_and_not_to_the_host_that_redirects(
    region: str, bucket: str, host: str
) -> None:
    import boto3
    from botocore.config import Config
    from botocore.stub import Stubber

    session = boto3.Session("AKIATEST", "test")
    home = "cn-northwest-1" if region.startswith("cn") else "us-west-2"
    client = session.client("s3", region_name=home)

    def make(region: str, **options: Any) -> Any:
        return session.client("s3", region_name=region, config=Config(**options))

    with Stubber(client) as stub:
        headers = {"HTTPHeaders": {"x-amz-bucket-region": region}}
        stub.add_response("head_bucket", {"ResponseMetadata": headers})
        url = (
            S3Presigner(bucket, client, make, session.get_credentials)
            .sign_upload("x", 1, expires_in=60.0)
            .requests[0]
            .url.reveal()
        )
    assert urlsplit(url).netloc == host
    assert f"%2F{region}%2Fs3%2F" in url


@pytest.mark.parametrize("size", [(5 << 20) + 1, 100 << 30, 5 << 40])
def test_any_file_that_s3_takes_is_at_most_ten_thousand_parts(size: int) -> None:
    length = part_length(size)
    assert 5 << 20 <= length <= 5 << 30
    assert -(-size // length) <= MOST_PARTS


@pytest.mark.parametrize(
    "text", ["2026-11-27T10:00:01.250Z", "2026-11-27T10:00:01Z", "Fri, 27 Nov 2026 10:00:01 GMT"]
)
def test_a_moment_is_read_as_botocore_reads_it(text: str) -> None:
    from botocore.utils import parse_timestamp

    assert moment(text) == parse_timestamp(text)
