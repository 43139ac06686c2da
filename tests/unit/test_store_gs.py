"""gs://: token conditions, regions and missing credentials, as values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.errors import CredentialsError
from cloudtrain.stores import open_store
from cloudtrain.stores.gs import region
from cloudtrain.stores.presign.gs_tokens import within

# ── The right that a node gets ───────────────────────────────────────────────


@pytest.mark.parametrize("folder", ['a"b/', "a'b/", "a\\b/", "ü🙂/"])
def test_a_condition_quotes_names(folder: str) -> None:
    start = json.loads(within("bucket", folder).removeprefix("resource.name.startsWith(")[:-1])
    assert start == f"projects/_/buckets/bucket/objects/{folder}"


# ── What this machine does itself ────────────────────────────────────────────


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("us-east4-c", "us-east4"),
        ("europe-west12", "europe-west12"),
        ("EU", "EU"),
        ("nam4", "nam4"),
    ],
)
def test_a_bucket_is_in_the_region_of_a_zone(location: str, where: str) -> None:
    assert region(location) == where


def test_who_has_no_credentials_is_told_how_to_get_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(CredentialsError, match=r"none\.json") as raised:
        open_store("gs://bucket/x")
    assert "gcloud auth" in str(raised.value.hint)
