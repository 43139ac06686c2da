"""gs://: token conditions, regions and missing credentials, as values."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import requests
from google.api_core.exceptions import from_http_status

from cloudtrain.core.errors import CredentialsError
from cloudtrain.stores import open_store
from cloudtrain.stores.data import open_data
from cloudtrain.stores.gs import region
from cloudtrain.stores.presign.gs import within

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


@pytest.mark.parametrize(
    ("status", "words", "hint"),
    [
        # Google's words, by general knowledge.
        (403, "Object 'b/x' is subject to bucket's retention policy", "--clear-retention-period"),
        (400, "Bucket is a requester pays bucket but no user project provided.", "requester_pays"),
        (403, "The billing account for the owning project is disabled", "gcloud billing projects"),
        (403, "me does not have storage.objects.create access", "roles/storage.objectUser"),
    ],
)
def test_a_refusal_says_what_stands_against_it(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str, hint: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    bucket = open_store("gs://bucket/x").bucket  # type: ignore[attr-defined]
    error = bucket.explain(from_http_status(status, words))
    assert hint in str(error.hint)


@pytest.mark.parametrize(
    "refusal",
    [
        from_http_status(403, "me does not have storage.buckets.get access"),
        from_http_status(503, "backend error"),
        requests.exceptions.ReadTimeout("no answer"),
        KeyError("location"),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
def test_data_is_read_without_an_answer_to_where_its_bucket_is(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """storage.buckets.get is in none of the roles that read objects."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    data = open_data("gs://bucket/x")

    def refused() -> str:
        raise refusal

    with patch.object(data._bucket, "location", refused):  # type: ignore[attr-defined]
        assert data.location() == ""


def test_who_has_no_credentials_is_told_how_to_get_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(CredentialsError, match=r"none\.json") as raised:
        open_store("gs://bucket/x")
    assert "gcloud auth" in str(raised.value.hint)
