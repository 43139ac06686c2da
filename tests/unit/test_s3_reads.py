"""URLs that are signed without boto3's way to them are the same, byte for byte."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.stores.presign.s3 import ReadUrls

KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
ETAGS = st.from_regex(r'"[0-9a-f]{32}(-[0-9]{1,4})?"', fullmatch=True)


def session(token: str | None = None) -> Any:
    return boto3.Session(
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret/+",
        aws_session_token=token,
        region_name="eu-west-1",
    )


def client(style: str, endpoint: str | None = None, token: str | None = None) -> tuple[Any, Any]:
    made = session(token)
    config = Config(signature_version="s3v4", s3={"addressing_style": style})
    return made.client("s3", endpoint_url=endpoint, config=config), made.get_credentials


PLACES = [
    client("virtual"),
    client("path", "http://127.0.0.1:9000"),
    client("virtual", token="a/temporary+token=="),
]


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=30)
@given(key=KEYS, version=ETAGS, seconds=st.integers(1, 604800))
def test_a_url_is_what_boto3_signs_in_the_same_second(
    place: tuple[Any, Any], key: str, version: str, seconds: int
) -> None:
    signing, credentials = place
    urls = ReadUrls("my-bucket", signing, credentials)
    urls.url("a/first key", '"x"', 60)
    assert urls._start, "boto3 signs all of them"
    params = {"Bucket": "my-bucket", "Key": key, "IfMatch": version}
    for _ in range(5):
        theirs = signing.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
        if urls.url(key, version, seconds) == theirs:
            return
    assert urls.url(key, version, seconds) == theirs


def test_what_cannot_be_learned_from_boto3_is_signed_by_it() -> None:
    signing, credentials = client("virtual")

    class Other:
        meta = signing.meta

        def generate_presigned_url(self, *_: object, **__: object) -> str:
            return "https://elsewhere.example/of-another-form?X=1"

    urls = ReadUrls("my-bucket", Other(), credentials)
    assert urls.url("key", '"x"', 60) == "https://elsewhere.example/of-another-form?X=1"
    assert urls._start == ""
