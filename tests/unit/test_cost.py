"""`cloudtrain cost`: prices agreed at `up`, times the hours on record."""

from __future__ import annotations

import json
from calendar import timegm
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.commands.cost import CostReport, cost
from cloudtrain.core.events import (
    ClusterGone,
    DownBegun,
    EndMoved,
    Event,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    PlacementRefused,
    UpBegun,
    to_line,
)
from cloudtrain.core.run_record import Run
from cloudtrain.money.node_hours import CostSoFar, node_hours
from cloudtrain.state import Records

HOUR = 3600.0
START = float(timegm((2026, 10, 31, 22, 0, 0)))
CHIEF, WORKER = "mnist-chief0", "mnist-worker0"


def lines(*events: tuple[float, Event]) -> list[Mapping[str, Any]]:
    """Events by their hour."""
    return [to_line(event, time=START + hour * HOUR, pid=1) for hour, event in events]


def asked(node: str, lifetime: float | None = None) -> NodeRequested:
    return NodeRequested(node=node, made={"lifetime": lifetime})


def placed(prices: Mapping[str, float | None], ceiling: float | None = None) -> NodesPlaced:
    return NodesPlaced(
        places=dict.fromkeys(prices, "us-east1-b"),
        prices=prices,
        ceilings={name: ceiling if price is None else price for name, price in prices.items()},
    )


def record(name: str, *events: tuple[float, Event], runs: tuple[Run, ...] = ()) -> Records:
    records = Records(name)
    records.folder.mkdir(parents=True)
    records.save_config({"name": name, "provider": "gcp"})
    text = "".join(f"{json.dumps(line)}\n" for line in lines(*events))
    (records.folder / "events.jsonl").write_text(text)
    for run in runs:
        records.save_run(run)
    return records


def at(name: str | None, hour: float) -> CostReport:
    return cost(name, now=START + hour * HOUR)


def run(id: str, begin: float, end: float | None) -> Run:
    return Run(
        id=id,
        cluster="mnist",
        command="python train.py",
        tasks=(),
        state="running" if end is None else "succeeded",
        created=START + begin * HOUR,
        ended=None if end is None else START + end * HOUR,
    )


def exactly(amount: float) -> CostSoFar:
    return CostSoFar(least=pytest.approx(amount), most=pytest.approx(amount))


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


TWO = (
    (0.0, ClusterGone()),
    (0.0, UpBegun(nodes=(CHIEF, WORKER))),
    (0.0, asked(CHIEF)),
    (0.0, asked(WORKER)),
    (0.0, placed({CHIEF: 2.0, WORKER: 1.0})),
)


def test_a_cluster_costs_its_prices_times_its_hours_by_role_month_and_run() -> None:
    down = (5.0, DownBegun(nodes=(CHIEF, WORKER)))
    record("mnist", *TWO, down, runs=(run("a", 1, 3), run("b", 3, 4))).close()
    [found] = at("mnist", 100).clusters
    assert found.cost == exactly(15)
    assert found.node_hours == pytest.approx(10)
    assert found.roles == {"chief": exactly(10), "worker": exactly(5)}
    assert found.months == {"2026-10": exactly(6), "2026-11": exactly(9)}
    assert [(each.run, each.cost) for each in found.runs] == [("a", exactly(6)), ("b", exactly(3))]


def test_what_exists_costs_until_now() -> None:
    record("mnist", *TWO, runs=(run("a", 1, None),))
    [found] = at("mnist", 2).clusters
    assert found.cost == exactly(6)
    assert found.runs[0].cost == exactly(3)


def test_a_node_costs_from_its_creation_to_its_deletion_and_a_later_one_of_its_name_again() -> None:
    record(
        "mnist",
        (0, asked(WORKER)),
        (1, NodeCreated(node=WORKER, id="i-1", placement="us-east1-b")),
        (1, placed({WORKER: 1.0})),
        (3, NodeDeletionBegun(node=WORKER)),
        (4, asked(WORKER)),
        (4, placed({WORKER: 10.0})),
    )
    assert at("mnist", 5).clusters[0].cost == exactly(12)


def test_a_node_costs_nothing_after_its_armed_end_or_before_it_was_placed() -> None:
    record("mnist", (0, asked(WORKER, 2 * HOUR)), (1, placed({WORKER: 1.0})))
    assert at("mnist", 100).clusters[0].cost == exactly(2)
    moved = EndMoved(lifetime=5 * HOUR, expires=START + 5 * HOUR)
    record(
        "longer",
        (0, asked("longer-worker0", 2 * HOUR)),
        (1, placed({"longer-worker0": 1.0})),
        (1, moved),
    )
    assert at("longer", 100).clusters[0].cost == exactly(5)
    record("none", (0, asked("none-worker0")), (1, PlacementRefused(placement="us-east1-b")))
    assert at("none", 100).clusters[0].cost == exactly(0)
    record("early", (0, asked("early-worker0")))
    assert at("early", 100).clusters[0].cost == exactly(0)


def test_a_refused_placement_keeps_the_nodes_that_were_there_before() -> None:
    record("mnist", *TWO, (1, asked("mnist-worker1")), (2, PlacementRefused(placement="b")))
    assert at("mnist", 2).clusters[0].cost == exactly(6)


def test_a_price_that_was_not_known_leaves_bounds() -> None:
    spot = placed({CHIEF: 1.0, WORKER: None}, ceiling=3.0)
    record("mnist", (0, asked(CHIEF)), (0, asked(WORKER)), (0, spot))
    assert at("mnist", 1).cost == CostSoFar(least=1.0, most=4.0)
    old = {"event": "placed", "places": {"old-a0": "x"}, "time": START, "pid": 1}
    record("old", (0, asked("old-a0")))
    with (Records("old").folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n")
    assert at("old", 1).cost == CostSoFar(least=0.0, most=None)


def test_all_clusters_are_added_up_by_month() -> None:
    record("mnist", *TWO)
    record("bert", (3, asked("bert-a0")), (3, placed({"bert-a0": 4.0})))
    found = at(None, 4)
    assert found.cost == exactly(16)
    assert found.months == {"2026-10": exactly(6), "2026-11": exactly(10)}


def with_parts(kept: bool = False, expires: float | None = None) -> NodesPlaced:
    """A node of 2 $/hour with a disk of 0.2 and an address of 0.1."""
    return NodesPlaced(
        places={CHIEF: "us-east1-b"},
        prices={CHIEF: 2.0},
        ceilings={CHIEF: 2.0},
        disks={CHIEF: 0.2},
        addresses={CHIEF: 0.1},
        kept=kept,
        expires={CHIEF: None if expires is None else START + expires * HOUR},
    )


def test_disks_and_addresses_cost_as_long_as_the_node_exists() -> None:
    record("mnist", (0, asked(CHIEF)), (0, with_parts()))
    [found] = at("mnist", 10).clusters
    assert found.cost == exactly(23)
    assert found.parts == {
        "machines": exactly(20),
        "disks": exactly(2),
        "addresses": exactly(1),
    }
    shown = command("mnist").output.splitlines()
    assert shown[1].startswith("  machines ")


def test_a_stopped_node_goes_on_costing_its_disk_where_the_cloud_keeps_it() -> None:
    deleted = (30.0, NodeDeletionBegun(node=CHIEF))
    record("mnist", (0, asked(CHIEF)), (0, with_parts(kept=True, expires=10)), deleted)
    assert at("mnist", 100).clusters[0].cost == exactly(2.3 * 10 + 0.3 * 20)
    assert at("mnist", 100).clusters[0].months == {
        "2026-10": exactly(2.3 * 2),
        "2026-11": exactly(2.3 * 8 + 0.3 * 20),
    }
    record("gone", (0, asked(CHIEF)), (0, with_parts(expires=10)), deleted)
    assert at("gone", 100).clusters[0].cost == exactly(23)


def test_a_node_that_is_started_again_after_its_end_costs_again() -> None:
    again = (20.0, with_parts(kept=True, expires=25))
    record("mnist", (0, asked(CHIEF)), (0, with_parts(kept=True, expires=10)), again)
    assert at("mnist", 30).clusters[0].cost == exactly(2.0 * 15 + 0.3 * 30)


def test_a_new_price_counts_from_then_on() -> None:
    dearer = placed({CHIEF: 5.0})
    record("mnist", (0, asked(CHIEF)), (0, placed({CHIEF: 2.0})), (4, dearer))
    assert at("mnist", 6).clusters[0].cost == exactly(4 * 2 + 2 * 5)


def test_damaged_lines_cost_nothing() -> None:
    assert node_hours([{}, {"event": "placed"}, {"event": "create", "node": 3}], is_up=True) == ()


# ── the command ──────────────────────────────────────────────────────────────


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, ["cost", *words])


def test_the_command_says_what_the_figures_are_and_are_not() -> None:
    record("mnist", *TWO, (5, DownBegun()), runs=(run("a", 1, 3),)).close()
    shown = command("mnist").output.splitlines()
    assert shown[0] == "mnist  gcp  15.00 $  10.0 node hours"
    assert shown[1:5] == [
        "  2026-10  6.00 $",
        "  2026-11  9.00 $",
        "  chief  10.00 $",
        "  worker  5.00 $",
    ]
    assert shown[5].startswith("  run a  succeeded  ")
    assert shown[5].endswith("  6.00 $")
    assert shown[-1].endswith(
        "the hours on record here, without traffic and stores: not the cloud's bill"
    )


def test_the_document_has_every_sum() -> None:
    record("mnist", *TWO, (5, DownBegun()), runs=(run("a", 1, 3),)).close()
    found = json.loads(command("--json").output)
    sums = {"cost": 6.0, "cost_at_least": 6.0, "cost_at_most": 6.0}
    assert found["cost"] == 15.0
    assert found["months"]["2026-10"] == sums
    [cluster] = found["clusters"]
    assert cluster["roles"]["worker"]["cost"] == 5.0
    begin = START + HOUR
    assert cluster["runs"] == [
        {"run": "a", "state": "succeeded", "begin": begin, "end": begin + 2 * HOUR, **sums}
    ]


def test_without_clusters_the_command_says_so() -> None:
    assert command().output == "no known clusters\n"
