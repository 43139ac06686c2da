"""What `status` tells of clusters, nodes and runs, and what it needs for that."""

from __future__ import annotations

import json
import sys
import time
import types
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cloudtrain.cluster.lease
import cloudtrain.runs.idle  # which import what `use` replaces
from cloudtrain.cli.app import cli
from cloudtrain.cli.status import report_json, report_text
from cloudtrain.commands.status import ClusterStatus, StatusReport, status
from cloudtrain.config import from_json, to_json
from cloudtrain.core.errors import CredentialsError, RateError, TransientError
from cloudtrain.core.events import MovesAgain, NodeRequested, NothingMoves
from cloudtrain.core.model import SPOT, Accelerator, ClusterConfig, Node, NodeGroup
from cloudtrain.core.run_record import Cause, Doubt, Run, RunAttempt
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider

BEGUN = time.mktime((2026, 11, 21, 6, 41, 7, 0, 0, -1))

NODES = {
    f"mnist-{role}{index}": Node(
        name=f"mnist-{role}{index}",
        role=role,
        index=index,
        state="running",
        address="127.0.0.1",
        internal="127.0.0.2",
        ssh_port=port,
    )
    for role, index, port in [("worker", 1, 2203), ("chief", 0, 2201), ("worker", 0, 2202)]
}
FAILED = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    state="failed",
    created=BEGUN,
    ended=BEGUN + 75,
    attempts=(
        RunAttempt(
            number=2,
            started=BEGUN,
            cause=Cause(
                task="worker0",
                node="mnist-worker0",
                kind="signal",
                text="killed by signal 9",
                hint="was it out of memory?",
            ),
        ),
    ),
    store="file:///store/20261121-062404-k3f9",
)
RUNNING = replace(
    FAILED,
    id="20261121-070000-aaaa",
    state="running",
    ended=None,
    attempts=(RunAttempt(number=1, started=BEGUN),),
    store=None,
)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    fake = FakeProvider(cloud={"mnist": dict(NODES)})
    use(fake, monkeypatch)
    return fake


def use(fake: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the session's doors: the provider that any config leads to."""
    import_module("cloudtrain.runs.idle")  # with the real one, whichever test is first
    doors = types.ModuleType("cloudtrain.cluster.session")
    vars(doors).update(
        open_provider=lambda config: fake,
        recorded_config=lambda records: from_json(records.config()),
    )
    monkeypatch.setitem(sys.modules, doors.__name__, doors)


def known(name: str = "mnist") -> Records:
    config = ClusterConfig(
        name=name, provider="local", strategy="custom", nodes={"worker": NodeGroup()}
    )
    records = Records(name)
    records.create()
    records.save_config(to_json(config))
    return records


def cloudtrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_status_shows_nodes_as_the_provider_lists_them_and_runs_as_recorded(
    provider: FakeProvider,
) -> None:
    records = known()
    (records.folder / "events.jsonl").write_text(f'{{"time": {BEGUN}, "event": "up"}}\n')
    records.save_run(FAILED)
    records.save_run(RUNNING)
    provider.stop("mnist", "mnist-worker1")
    assert report_text(status(None, offline=False), BEGUN + 3661).splitlines() == [
        "mnist  local  custom  2 of 3 nodes running, since 2026-11-21 06:41",
        "  chief0   running   127.0.0.1:2201",
        "  worker0  running   127.0.0.1:2202",
        "  worker1  stopped   127.0.0.1:2203",
        "  run  20261121-062404-k3f9  failed  attempt 2  2026-11-21 06:41, 1m"
        "  file:///store/20261121-062404-k3f9",
        "    worker0 on mnist-worker0: killed by signal 9",
        "    hint: was it out of memory?",
        "  run  20261121-070000-aaaa  running  attempt 1  2026-11-21 06:41, 1h 01m",
    ]


def test_status_json_has_all_of_it(provider: FakeProvider) -> None:
    known().save_run(FAILED)
    with Records("mnist").lock("train"):
        (cluster,) = json.loads(cloudtrain("status", "--json").stdout)["clusters"]
    assert [node["state"] for node in cluster["nodes"]] == ["running"] * 3
    assert cluster["runs"][0]["attempts"][0]["cause"]["task"] == "worker0"
    assert cluster["at_work"]["doing"] == "train"
    assert (cluster["open"], cluster["error"], cluster["unreadable"]) == (True, None, [])


def test_status_tells_when_the_active_run_reaches_its_deadline(provider: FakeProvider) -> None:
    records = known()
    records.save_config({**records.config(), "train": {"deadline": 7200}})
    records.save_run(RUNNING)
    report = status(None, offline=False)
    (cluster,) = report_json(report, RUNNING.created)["clusters"]
    assert cluster["deadline"] == RUNNING.created + 7200
    last = report_text(report, RUNNING.created).splitlines()[-1]
    assert last == "    deadline  2026-11-21 08:41, in 2h 00m"


RENTED = replace(
    NODES["mnist-chief0"],
    placement="us-central1-a",
    machine="n1-standard-8",
    created=BEGUN,
    expires=BEGUN + 12 * 3600,
)


def rented(*nodes: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster on GCP whose chief has a T4."""
    chief = NodeGroup(machine="n1-standard-8", accelerator=Accelerator(kind="T4"))
    config = ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="custom",
        nodes={"chief": chief, "worker": NodeGroup(machine="n1-standard-4")},
        placement=("us-central1",),
    )
    records = Records("mnist")
    records.create()
    records.save_config(to_json(config))
    use(FakeProvider(cloud={"mnist": {node.name: node for node in nodes}}), monkeypatch)


def test_status_tells_the_cost_so_far_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = replace(RENTED, name="mnist-worker0", role="worker", machine="n1-standard-4")
    worker = replace(worker, created=BEGUN + 3600, expires=BEGUN + 13 * 3600, provisioning=SPOT)
    rented(RENTED, worker, monkeypatch=monkeypatch)
    report = status(None, offline=False)
    assert report_text(report, BEGUN + 2 * 3600).splitlines() == [
        "mnist  gcp  custom  2 of 2 nodes running",
        "  chief0   running   127.0.0.1:2201  us-central1-a  n1-standard-8",
        "  worker0  running   127.0.0.1:2201  us-central1-a  n1-standard-4  spot",
        "  cost so far  1.56 $",  # 2 h of 0.73, 1 h of 0.05224, and disks and addresses
        "  expires  2026-11-21 18:41, in 10h 00m",
    ]
    (cluster,) = report_json(report, BEGUN + 2 * 3600)["clusters"]
    disk, address = 0.10 / 730, 0.005
    parts = (100 * disk + address, 50 * disk + address)
    assert cluster["cost"] == pytest.approx(2 * 0.73 + 0.05224 + 2 * parts[0] + parts[1])
    assert cluster["ends"] == BEGUN + 12 * 3600
    prices = [node["price_per_hour"] for node in cluster["nodes"]]
    assert prices == [pytest.approx(0.73 + parts[0]), pytest.approx(0.05224 + parts[1])]
    assert cluster["nodes"][0]["machine"] == "n1-standard-8"


@pytest.mark.parametrize("unknown", [{"machine": "z9-brandnew-4"}, {"created": None}])
def test_a_cost_that_is_not_known_is_never_zero(
    unknown: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rented(Node(**{**vars(RENTED), **unknown}), monkeypatch=monkeypatch)
    report = status(None, offline=False)
    assert "  cost so far  not known" in report_text(report, BEGUN + 60).splitlines()
    assert report_json(report, BEGUN + 60)["clusters"][0]["cost"] is None


def test_nodes_that_are_still_without_an_address_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rented(replace(RENTED, address="", state="starting"), monkeypatch=monkeypatch)
    assert "  chief0  starting  no address yet  us-central1-a" in report_text(
        status(None, offline=False), BEGUN
    )


def test_what_runs_here_costs_nothing(provider: FakeProvider) -> None:
    known()
    report = status(None, offline=False)
    assert report_json(report, BEGUN)["clusters"][0]["cost"] == 0.0
    assert "cost" not in report_text(report, BEGUN)


def test_offline_asks_nobody(provider: FakeProvider) -> None:
    known()
    provider.nodes = None  # type: ignore[method-assign,assignment]
    done = cloudtrain("status", "--offline")
    assert (done.exit_code, done.stdout) == (0, "mnist  local  custom  nodes not queried\n")
    (cluster,) = json.loads(cloudtrain("status", "--offline", "--json").stdout)["clusters"]
    assert cluster["nodes"] is None


def test_no_cluster_is_no_error() -> None:
    done = cloudtrain("status")
    assert (done.exit_code, done.stdout) == (
        0,
        "no known clusters: `cloudtrain up FILE` creates one\n",
    )
    assert json.loads(cloudtrain("status", "--json").stdout) == {"clusters": []}


def test_a_cluster_that_was_taken_down_is_asked_for_by_name_only(provider: FakeProvider) -> None:
    known("old").close()
    provider.cloud["old"] = {"mnist-chief0": NODES["mnist-chief0"]}
    assert cloudtrain("status").stdout == "old  local  custom  down\n"
    assert "chief0" in cloudtrain("status", "old").stdout


def test_a_provider_that_does_not_answer_hides_no_other_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known("bad")
    known("mnist")
    fake = FakeProvider(cloud={"mnist": dict(NODES)})

    def nodes(cluster: str) -> tuple[Node, ...]:
        if cluster == "bad":
            raise CredentialsError("the token has expired", hint="log in")
        return tuple(NODES.values())

    monkeypatch.setattr(fake, "nodes", nodes)
    use(fake, monkeypatch)
    done = cloudtrain("status")
    assert done.exit_code == 4
    assert "  nodes unknown: the token has expired\n    hint: log in\n" in done.stdout
    assert "worker1" in done.stdout


def test_damaged_records_are_named_and_the_rest_is_shown(provider: FakeProvider) -> None:
    records = known()
    records.save_run(FAILED)
    broken = records.folder / "runs" / "20261122-000000-bbbb"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    (records.folder / "config.json").write_text("[")
    done = cloudtrain("status", "--offline")
    assert done.exit_code == 0
    assert f"unreadable: {broken / 'run.json'}" in done.stdout
    assert f"unreadable: {records.folder / 'config.json'}" in done.stdout
    assert FAILED.id in done.stdout
    assert cloudtrain("status").exit_code == 2


def test_only_the_latest_runs_are_shown_and_the_others_counted(provider: FakeProvider) -> None:
    records = known()
    for number in range(9):
        records.save_run(replace(FAILED, id=f"20261121-06240{number}-aaaa"))
    for number in (0, 8):
        (records.folder / "runs" / f"20261121-06240{number}-aaaa" / "run.json").write_text("{")
    text = cloudtrain("status", "--offline").stdout
    assert "  3 earlier runs\n" in text
    assert text.count("unreadable") == 1, "earlier ones are not read: they cost no time"
    assert text.count("  run  ") == 5
    [cluster] = json.loads(cloudtrain("status", "--offline", "--json").stdout)["clusters"]
    assert (len(cluster["runs"]), len(cluster["unreadable"])) == (7, 2)


def test_remote_words_in_a_cause_cannot_control_the_terminal(provider: FakeProvider) -> None:
    cause = Cause(task="worker0", node="n", kind="exit", text="\x1b[2J\x1b]0;t\x07bad")
    attempt = RunAttempt(number=1, started=0.0, cause=cause)
    known().save_run(replace(FAILED, attempts=(attempt,)))
    assert "\x1b" not in cloudtrain("status", "--offline").stdout


# ── Against the plan ─────────────────────────────────────────────────────────


def cluster_of(
    provider: FakeProvider, *nodes: Node, cloud: str = "gcp", **groups: NodeGroup
) -> Records:
    """On record with these groups, and with these nodes of it left."""
    groups = groups or {"chief": NodeGroup(), "worker": NodeGroup(count=2)}
    records = known()
    config = ClusterConfig(name="mnist", provider=cloud, strategy="custom", nodes=groups)
    records.save_config(to_json(config))
    for name in ("mnist-chief0", "mnist-worker0", "mnist-worker1"):
        records.journal(NodeRequested(node=name))
    provider.cloud["mnist"] = {node.name: node for node in nodes}
    return records


def a_node(task: str, **facts: Any) -> Node:
    role, index = task[:-1], int(task[-1])
    common = {"state": "running", "address": "192.0.2.1", "internal": "10.0.0.1"}
    return Node(name=f"mnist-{task}", role=role, index=index, **{**common, **facts})


def test_clusters_that_are_down_come_last(provider: FakeProvider) -> None:
    for name in ("a-old", "b-mine", "c-old"):
        provider.cloud[name] = {}
        if name == "b-mine":
            known(name)
        else:
            known(name).close()
    report = StatusReport(clusters=tuple(map(status_of, ("a-old", "b-mine", "c-old"))))
    lines = report_text(report, BEGUN).splitlines()
    assert [line.split()[0] for line in lines if line] == ["b-mine", "a-old", "c-old"]


def status_of(name: str) -> ClusterStatus:
    (found,) = status(name, offline=True).clusters
    return found


def said(now: float | None = None) -> list[str]:
    return report_text(status("mnist", offline=False), now or time.time()).splitlines()


def told() -> dict[str, Any]:
    (cluster,) = json.loads(cloudtrain("status", "mnist", "--json").stdout)["clusters"]
    found: dict[str, Any] = cluster
    return found


def test_nodes_are_counted_against_the_plan(provider: FakeProvider) -> None:
    cluster_of(provider, a_node("chief0"), a_node("worker0"))
    assert "2 of 3 nodes running, gone: worker1" in said()[0]
    assert (told()["planned"], told()["missing"]) == (3, ["mnist-worker1"])
    assert cloudtrain("status", "mnist").exit_code == 1


def test_a_node_that_was_never_made_is_not_gone(provider: FakeProvider) -> None:
    groups = {"chief": NodeGroup(), "ps": NodeGroup(count=1)}
    cluster_of(provider, a_node("chief0"), **groups)
    assert "1 of 2 nodes running, not created: ps0" in said()[0]


def test_that_all_nodes_are_gone_is_said(provider: FakeProvider) -> None:
    cluster_of(provider)
    assert "3 created nodes are gone" in said()[0]
    assert told()["missing"] == ["mnist-chief0", "mnist-worker0", "mnist-worker1"]
    assert cloudtrain("status").exit_code == 1


def test_nothing_is_missing_of_a_cluster_that_was_taken_down(provider: FakeProvider) -> None:
    cluster_of(provider).close()
    assert (told()["missing"], cloudtrain("status", "mnist").exit_code) == ([], 0)


def test_nothing_is_missing_while_up_is_at_work(provider: FakeProvider) -> None:
    with cluster_of(provider, a_node("chief0")).lock("up"):
        assert told()["missing"] == ["mnist-worker0", "mnist-worker1"]
        assert cloudtrain("status", "mnist").exit_code == 0


def test_a_node_that_its_cloud_will_not_end_is_said(provider: FakeProvider) -> None:
    end, why = time.time() + 3600, "Azure has no schedule for it"
    groups = {"chief": NodeGroup(), "worker": NodeGroup()}
    nodes = (a_node("chief0", expires=end, no_end=why), a_node("worker0", expires=end))
    records = cluster_of(provider, *nodes, **groups)
    assert any(line.startswith(f"  mnist-chief0: NO END: {why}; it is billed") for line in said())
    assert [node["no_end"] for node in told()["nodes"]] == [why, ""]
    assert cloudtrain("status", "mnist").exit_code == 6
    with records.lock("up"):
        assert cloudtrain("status", "mnist").exit_code == 0, "up is still arming it"


def test_a_node_that_exists_after_its_end_is_overdue(provider: FakeProvider) -> None:
    end = time.time() - 3600
    groups = {"chief": NodeGroup(), "worker": NodeGroup()}
    cluster_of(provider, a_node("chief0", expires=end), a_node("worker0"), **groups)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(end))
    assert f"  mnist-chief0: OVERDUE since {since}, still billed" in said()
    assert not any("expires" in line for line in said())
    assert told()["overdue"] == ["mnist-chief0"]
    assert [node["overdue"] for node in told()["nodes"]] == [True, False]
    assert cloudtrain("status", "mnist").exit_code == 6


@pytest.mark.parametrize(
    ("cloud", "words"),
    [("gcp", "its disk is"), ("aws", "its disk is"), ("azure", "its disk and address are")],
)
def test_what_has_stopped_and_still_costs_is_said(
    provider: FakeProvider, cloud: str, words: str
) -> None:
    cluster_of(provider, a_node("chief0", state="stopped"), cloud=cloud, chief=NodeGroup())
    assert f"  mnist-chief0: stopped, {words} still billed" in said()


def test_a_cost_of_which_a_part_is_not_known_has_bounds(provider: FakeProvider) -> None:
    facts = {"machine": "n1-standard-8", "placement": "us-east4-c", "created": 1_700_000_000.0}
    groups = {"chief": NodeGroup(), "worker": NodeGroup()}
    nodes = (a_node("chief0", **facts), a_node("worker0", provisioning=SPOT, **facts))
    cluster_of(provider, *nodes, **groups)
    (cluster,) = status("mnist", offline=False).clusters
    price = cluster.prices["mnist-chief0"]
    assert price is not None
    cluster = replace(
        cluster,
        prices={"mnist-chief0": price, "mnist-worker0": None},
        ceilings={"mnist-chief0": price, "mnist-worker0": price},
    )
    cost = cluster.cost(1_700_036_000.0)
    assert str(cost) == f"≥ {10 * price:.2f} $, ≤ {20 * price:.2f} $"
    assert cost is not None
    assert cost.exact is None
    unknown = replace(cluster, ceilings={}).cost(1_700_036_000.0)
    assert str(unknown) == f"≥ {10 * price:.2f} $"
    assert str(replace(cluster, prices={}, ceilings={}).cost(1.7e9 + 36_000)) == "not known"


@pytest.mark.parametrize("error", [TransientError("no answer"), RateError("too many calls")])
def test_a_cloud_that_could_not_be_asked_is_exit_code_6(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    known()

    def silent(cluster: str) -> tuple[Node, ...]:
        raise error

    monkeypatch.setattr(provider, "nodes", silent)
    assert cloudtrain("status", "mnist").exit_code == 6
    assert told()["error"]["exit_code"] == 6


def test_a_success_in_doubt_and_a_run_in_which_nothing_moves_are_shown(
    provider: FakeProvider,
) -> None:
    records = known()
    doubt = Doubt(task="chief0", kind="error", text="chief0 exited with 0 after OSError", hint="h")
    records.save_run(replace(FAILED, state="succeeded", attempts=RUNNING.attempts, doubts=(doubt,)))
    records.save_run(RUNNING)
    records.journal(NothingMoves(run=RUNNING.id, since=BEGUN, text="chief0 waits in fit (t.py:3)"))
    report = status("mnist", offline=True)
    lines = report_text(report, BEGUN + 300).splitlines()
    assert "    warning: chief0 exited with 0 after OSError" in lines
    assert "    hint: h" in lines
    assert "    nothing has moved for 5m: chief0 waits in fit (t.py:3)" in lines
    (cluster,) = report_json(report, BEGUN)["clusters"]
    assert cluster["still"] == {"since": BEGUN, "text": "chief0 waits in fit (t.py:3)"}
    assert list(cluster["runs"][0]["doubts"]) == [
        {"task": "chief0", "kind": "error", "text": doubt.text, "hint": "h"}
    ]
    records.journal(MovesAgain(run=RUNNING.id))
    assert status("mnist", offline=True).clusters[0].still is None
