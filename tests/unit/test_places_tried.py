"""Where a cluster may be by its record: which places must answer a listing, and which need not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.session import whereabouts
from cloudtrain.config import to_json
from cloudtrain.core.events import PlacementTried, UpBegun, places_tried
from cloudtrain.core.model import ClusterConfig, NodeGroup
from cloudtrain.core.partial_list import NotAsked, PartialList, Whereabouts
from cloudtrain.state import Records


@pytest.mark.parametrize(
    ("place", "counts"),
    [
        ("us-east1-b", True),
        ("us-east1", True),
        ("us-east1-c", False),
        ("us-east10-b", False),
        ("us-west-2", True),
        ("us-west-2b", True),
        ("us-west-2-lax-1a", True),
        ("us-west-1", False),
        ("eastus", True),
        ("eastus-1", True),
        ("eastus2", False),
        ("brazilsoutheast", False),
    ],
)
def test_a_zone_counts_for_its_region_and_a_region_for_its_zones(place: str, counts: bool) -> None:
    where = Whereabouts(cluster="c", places=("us-east1-b", "us-west-2", "eastus", "brazilsouth"))
    assert where.has(place) == counts


def events(*lines: str) -> list[dict[str, Any]]:
    """`place us-east1-b` as an event."""
    pairs = [line.split() for line in lines]
    return [
        {"event": kind, "placement": rest[0] if rest else "", "node": "a"} for kind, *rest in pairs
    ]


@pytest.mark.parametrize(
    ("lines", "places", "complete"),
    [
        ([], (), False),
        (["up"], (), True),
        (["up", "place a", "create", "refused a", "place b", "create"], ("b", "a"), True),
        (["up", "place a", "create", "down", "up", "place b"], ("b", "a"), True),
        (["up", "place a", "create", "down", "gone", "up", "place b"], ("b",), True),
        # By a version that did not write places down:
        (["up", "create", "refused a", "create", "ready"], ("a",), False),
        (["up", "create", "ready", "up", "place a"], ("a",), False),
        (["up", "create", "down", "gone", "up", "place a", "create"], ("a",), True),
    ],
)
def test_the_record_tells_where_a_cluster_was_asked_for(
    lines: list[str], places: tuple[str, ...], complete: bool
) -> None:
    assert places_tried(events(*lines)) == (places, complete)


def config(place: str, project: str = "p", provider: Any = "gcp") -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider=provider,
        project=project,
        strategy="custom",
        nodes={"worker": NodeGroup()},
        placement=(place,),
    )


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    records = Records("mnist")
    records.create()
    records.save_config(to_json(config("us-east1")))
    records.journal(UpBegun())
    records.journal(PlacementTried(placement="us-east1-b", region="us-east1"))
    return records


def test_a_changed_placement_counts_beside_the_one_on_record(records: Records) -> None:
    found = whereabouts(config("us-west1"))
    assert found == Whereabouts(
        cluster="mnist",
        places=("us-east1-b", "us-east1", "us-west1"),
        complete=True,
        tried=("us-east1-b",),
    )


def test_a_record_of_another_account_tells_nothing(records: Records) -> None:
    elsewhere = Whereabouts(cluster="mnist", places=("us-west1",))
    assert whereabouts(config("us-west1", project="q")) == elsewhere


def test_what_was_before_the_last_down_counts_no_more(records: Records) -> None:
    records.close()
    assert not whereabouts(config("us-west1")).complete
    records.create()
    records.journal(UpBegun())
    assert whereabouts(config("us-east1")).places == ("us-east1",)
    assert whereabouts(config("us-east1")).complete


def test_a_listing_is_what_was_seen_and_remembers_what_was_not() -> None:
    silent = NotAsked(place="us-east1-b", why="down")
    listing = PartialList([1, 2], [silent, silent])
    assert listing == (1, 2)
    assert listing.not_asked == (silent,)
    assert pickle.loads(pickle.dumps(listing)).not_asked == (silent,)
    assert str(silent) == "us-east1-b (down)"
