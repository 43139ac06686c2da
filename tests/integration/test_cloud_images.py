"""A node that is made again weeks later is made of the image that its cluster was made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import open_provider
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.events import Event, images
from tests.standins.cloud import Cloud, start
from tests.support.cloud_rig import CLOUDS, config
from tests.support.fakes import line_of, make_identity


@pytest.fixture(scope="module", params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with start(request.param, delay=0.01) as cloud, patch.dict(os.environ, cloud.environment):
        yield cloud


@pytest.mark.sweep(1)
def test_the_image_of_a_cluster_is_recorded_kept_and_missed(cloud: Cloud, tmp_path: Path) -> None:
    plan = make_plan(config(cloud, image="ubuntu-22.04"))
    provider, identity = open_provider(plan.config), make_identity(tmp_path, plan)
    events: list[dict[str, Any]] = []

    def journal(event: Event, /) -> None:
        events.append(line_of(event))

    provider.create(replace(plan, nodes=plan.nodes[:1]), identity, journal)
    kinds = [event["event"] for event in events]
    assert kinds.index("image") < kinds.index("create"), "before anything is made of it"
    pinned = images(events)
    (image,) = set(pinned.values())
    assert not image.endswith((":latest", "family/ubuntu-2204-lts"))

    events.clear()
    provider.create(replace(plan, images=pinned), identity, journal)
    assert [e["node"] for e in events if e["event"] == "create"] == [plan.nodes[1].name]
    assert images(events) == {}, "nothing is chosen anew"

    gone = {key: f"{id}9" for key, id in pinned.items()}
    with pytest.raises(
        CloudConfigError, match=f"{image}9, the image of mnist, no longer exists"
    ) as told:
        provider.create(replace(plan, images=gone), identity, journal)
    assert "`cloudtrain down mnist`" in str(told.value.hint)
    assert len(provider.nodes("mnist")) == 2
    provider.destroy("mnist", journal)
    assert cloud.holdings() == []


def test_what_was_chosen_counts_until_the_cluster_is_gone() -> None:
    image = {"event": "image", "key": "east/auto", "id": "ami-1"}
    assert images([image]) == {"east/auto": "ami-1"}
    assert images([image, {"event": "down"}]) == {}
    assert images([image, {"event": "exchange", "nodes": ["a"], "whole": True}]) == {}
    assert images([image, {"event": "exchange", "nodes": ["a"], "whole": False}]) != {}
