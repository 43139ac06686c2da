"""URLs that are signed without boto3's way to them are the same, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.stores.presign.s3 import QuickUrls, encryption_arguments

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
    client("path", "https://s3.example:443"),
    client("virtual", "http://s3.example:80", token=""),
]


ARGUMENTS = ETAGS.map(lambda etag: ("get_object", {"IfMatch": etag})) | st.sampled_from(
    [("put_object", encryption_arguments(wish)) for wish in ("", "AES256", "aws:kms:a/key")]
)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=30)
@given(key=KEYS, wanted=ARGUMENTS, seconds=st.integers(1, 604800))
def test_a_url_is_what_boto3_signs_in_the_same_second(
    place: tuple[Any, Any], key: str, wanted: tuple[str, Mapping[str, str]], seconds: int
) -> None:
    signing, credentials = place
    action, arguments = wanted
    urls = QuickUrls("my-bucket", signing, credentials)
    urls.url(action, "a/first key", 60, arguments)
    assert urls._starts[action], "boto3 signs all of them"
    params = {"Bucket": "my-bucket", "Key": key, **arguments}
    for _ in range(5):
        theirs = signing.generate_presigned_url(action, Params=params, ExpiresIn=seconds)
        if urls.url(action, key, seconds, arguments) == theirs:
            return
    assert urls.url(action, key, seconds, arguments) == theirs


def test_what_cannot_be_learned_from_boto3_is_signed_by_it() -> None:
    signing, credentials = client("virtual")

    class Other:
        meta = signing.meta

        def generate_presigned_url(self, *_: object, **__: object) -> str:
            return "https://elsewhere.example/of-another-form?X=1"

    urls = QuickUrls("my-bucket", Other(), credentials)
    wanted = {"IfMatch": '"x"'}
    assert (
        urls.url("get_object", "key", 60, wanted) == "https://elsewhere.example/of-another-form?X=1"
    )
    assert urls._starts == {"get_object": ""}


def test_other_keys_and_another_day_have_another_signing_key() -> None:
    urls = QuickUrls("my-bucket", *client("virtual"))
    given = [("one", "20261127/r/s3/aws4_request"), ("two", "20261127/r/s3/aws4_request")]
    given += [("one", "20261128/r/s3/aws4_request"), given[0]]
    keys = [urls._signing_key(*each) for each in given]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
