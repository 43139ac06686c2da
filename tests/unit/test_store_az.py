"""az://: block sizes and signatures, as values."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import azure.identity
import azure.storage.blob
import pytest
from azure.core.exceptions import HttpResponseError

from cloudtrain.core.errors import StoreError
from cloudtrain.core.shell import Secret
from cloudtrain.stores import az, open_store
from cloudtrain.stores.presign import az as presign
from cloudtrain.stores.presign.az import Key, blob_sas
from tests.standins.stores import ACCOUNT, KEY
from tests.support.azurite_parts import HOUR, Identity

# ── The right to store one file ──────────────────────────────────────────────


@pytest.mark.parametrize("size", [(16 << 20) + 1, 1 << 40, 190 << 40])
def test_no_size_has_more_blocks_than_the_service_takes(size: int) -> None:
    parts = list(presign._parts(size))
    assert 1 < len(parts) <= 50_000
    assert [offset for offset, _ in parts[1:]] == [
        offset + (length or 0) for offset, length in parts[:-1]
    ]
    longest = max(parts[0][1] or 0, size - parts[-1][0])
    assert 0 < size - parts[-1][0] <= longest <= 4000 << 20


def test_the_signature_is_the_one_that_the_sdk_makes_for_that_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = azure.storage.blob._shared_access_signature
    monkeypatch.setattr(module, "X_MS_VERSION", presign.VERSION)
    expires = datetime(2027, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    theirs = azure.storage.blob.generate_blob_sas(
        ACCOUNT,
        "box",
        "a b/ü%+",
        account_key=KEY,
        permission="cw",
        expiry=expires,
        protocol="https",
    )
    key = Key(value=Secret(KEY))
    ours = blob_sas(ACCOUNT, "box", "a b/ü%+", key, expires=expires.timestamp(), https=True)
    assert parse_qs(ours) == parse_qs(theirs)


# ── A user's own key ─────────────────────────────────────────────────────────


class Lender:
    """`get_user_delegation_key` of the SDK's service."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []
        self.refusal: Exception | None = None

    def get_user_delegation_key(self, start: datetime, end: datetime) -> Any:
        self.asked.append((start.timestamp(), end.timestamp()))
        if self.refusal is not None:
            raise self.refusal
        said = {name: name for name in ("oid", "tid", "start", "expiry", "service", "version")}
        return SimpleNamespace(value=KEY, **{f"signed_{name}": said[name] for name in said})


def test_a_key_is_asked_for_once_and_is_good_for_as_long_as_what_it_signs() -> None:
    lender, now = Lender(), [1e9]
    keys = presign.DelegationKey(lender, clock=lambda: now[0])
    first = keys.key(HOUR)
    for _ in range(24):
        now[0] += HOUR
        assert keys.key(HOUR) is first
    assert keys.key(7 * 86400) is not first
    now[0] += 900
    assert keys.key(7 * 86400).expires >= now[0] + 7 * 86400 - HOUR
    assert len(lender.asked) == 2
    for start, end in lender.asked:
        assert end - start < 7 * 86400


def test_a_refusal_stands_for_all_files_and_is_asked_about_again_a_minute_later() -> None:
    lender, now = Lender(), [1e9]
    keys = presign.DelegationKey(lender, clock=lambda: now[0])
    lender.refusal = HttpResponseError("no")
    for _ in range(64):
        with pytest.raises(HttpResponseError, match="no"):
            keys.key(HOUR)
    assert len(lender.asked) == 1
    lender.refusal = None
    now[0] += 61
    assert keys.key(HOUR).facts["skoid"] == "oid"


def test_no_right_is_good_for_longer_than_the_key_that_signed_it() -> None:
    key = Key(value=Secret(KEY), facts={"skoid": "x"}, expires=1e9)
    query = parse_qs(blob_sas(ACCOUNT, "box", "x", key, expires=2e9, https=True))
    assert query["se"] == ["2001-09-09T01:46:40Z"]


# ── Through this machine ─────────────────────────────────────────────────────


def test_a_stream_of_any_length_has_few_enough_blocks() -> None:
    sizes = [
        az.PART << number // (presign.MOST_BLOCKS // 5) for number in range(presign.MOST_BLOCKS)
    ]
    assert sum(sizes) > 1 << 40
    assert max(sizes) <= 64 << 20


# ── The container ────────────────────────────────────────────────────────────


def test_a_storage_account_that_is_not_there_is_not_made_and_its_maker_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lookup(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Identity)
    monkeypatch.setattr(az, "RETRIES", {"retry_total": 0})
    monkeypatch.setattr("socket.getaddrinfo", lookup)
    with pytest.raises(StoreError, match=r"az://nobody/box: .*nobody\.blob") as raised:
        open_store("az://nobody/box").create(None)
    assert "az storage account create --name nobody" in str(raised.value.hint)
