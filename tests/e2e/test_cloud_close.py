"""A placement group that is full costs no zone: the same one is asked once more without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import open_provider
from cloudtrain.core.events import Event
from cloudtrain.core.model import Network, NodeGroup
from tests.standins.cloud import Cloud, start
from tests.support.cloud_rig import CLOUDS, config
from tests.support.fakes import facts_of, make_identity

MACHINE = {"gcp": "n2-standard-2", "aws": "m5.large", "azure": "Standard_D2s_v5"}


@pytest.fixture(scope="module", params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with start(request.param, delay=0.01) as cloud, patch.dict(os.environ, cloud.environment):
        yield cloud


def test_nodes_find_room_apart_where_there_is_none_close_together(
    cloud: Cloud, tmp_path: Path
) -> None:
    wanted = config(cloud, network=Network(close="on"), image="ubuntu-22.04")
    group = NodeGroup(machine=MACHINE[cloud.name])
    wanted = replace(wanted, nodes={"chief": group, "worker": replace(group, count=2)})
    plan = make_plan(wanted)
    provider, events = open_provider(wanted), list[str]()

    def journal(event: Event, /) -> None:
        events.append(f"{event.word} {facts_of(event).get('placement', '')}".strip())

    identity = make_identity(tmp_path, plan)
    nodes = provider.create(plan, identity, journal)
    (place,) = {node.placement for node in nodes}
    provider.destroy("mnist", journal)
    assert not [line for line in events if line.startswith("refused")]

    events.clear()
    cloud.set(no_room_close=[place])
    nodes = provider.create(plan, identity, journal)
    assert {node.placement for node in nodes} == {place}
    assert [line for line in events if line.startswith(("refused", "apart"))] == [
        f"refused {place}",
        f"apart {place}",
    ]
    provider.destroy("mnist", journal)
    assert cloud.holdings() == []
