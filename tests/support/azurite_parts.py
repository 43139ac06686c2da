"""What tests of az:// share: accounts as their users have them, and proofs by other hands."""

from __future__ import annotations

import base64
import json
import time
from typing import NamedTuple

from azure.storage.blob import BlobServiceClient

from tests.standins.stores import ACCOUNT, az_connection

TENANT = "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/"

HOUR = 3600.0


def with_signature(endpoint: str, signature: str) -> str:
    return f"BlobEndpoint={endpoint};AccountName={ACCOUNT};SharedAccessSignature={signature}"


def service(endpoint: str) -> BlobServiceClient:
    """The SDK with the account's key."""
    return BlobServiceClient.from_connection_string(az_connection(endpoint))


class Token(NamedTuple):
    token: str
    expires_on: int


class Identity:
    """Hands out tokens as azure-identity does; Azurite's `--oauth basic` reads their claims."""

    def __init__(self, **_: object) -> None:
        """Take what azure-identity's would."""

    def get_token(self, *scopes: str, **_: object) -> Token:
        now = int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": TENANT,
            "iat": now - 10,
            "nbf": now - 10,
            "exp": now + 3600,
            "oid": "11059fcc-5514-4800-b5f8-49808b9cfab6",
            "tid": "ab1f708d-50f6-404c-a006-d71b2ac7a606",
        }
        parts = [{"alg": "none", "typ": "JWT"}, claims]
        text = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
        return Token(b".".join([*text, b"c2lnbmVk"]).replace(b"=", b"").decode(), now + 3600)
