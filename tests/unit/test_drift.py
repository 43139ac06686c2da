"""A changed config is applied or refused field by field, on a cloud in memory."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster import session
from cloudtrain.cluster.drift import Drift, compared, creation_facts_of, drift, serves
from cloudtrain.cluster.plan import make_plan
from cloudtrain.config import load
from cloudtrain.config.section import rows
from cloudtrain.config.sections import ConfigFile
from cloudtrain.core.events import ImageChosen, NodeDeletionBegun, NodeRequested, nodes_leaving
from cloudtrain.core.model import Node, Plan
from cloudtrain.core.protocols import Completed
from cloudtrain.state import Records
from tests.support.drift_parts import FIRST, User, cloudtrain, user, worker

__all__ = ["user"]

KEY = "projects/k/locations/{region}/keyRings/r/cryptoKeys/k"
ACCOUNT = "trainer@p.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("changes", "at", "there", "wanted"),
    [
        (worker(machine="n1-standard-4"), "machine:", "n1-standard-2", "n1-standard-4"),
        (worker(spot=True), "spot:", "on demand", "spot"),
        (worker(provisioning="spot"), "provisioning:", "on demand", "spot"),
        (worker(disk_gb=200), "disk_gb:", "disk_gb 60", "disk_gb 200"),
        (worker(accelerator="T4:1"), "accelerator:", "no accelerator", "T4:1"),
        ({"image": "ubuntu-24.04"}, "image:", "image ubuntu-22.04", "image ubuntu-24.04"),
        ({"placement": ["us-west1"]}, "placement:", "in us-east4-c", "us-west1"),
        (
            {"network": {"subnet": "inner"}},
            "subnet:",
            "cloudtrain's own choice of subnet",
            "subnet inner",
        ),
        (
            {"network": {"private": True}},
            "private:",
            "public address",
            "no public address",
        ),
        ({"network": {"vpc": "corp"}}, "vpc:", "cloudtrain's own choice of network", "vpc corp"),
        ({"disk_key": KEY}, "disk_key:", "no disk_key", f"disk_key {KEY}"),
        ({"network": {"http_proxy": "http://p:1"}}, "http_proxy:", "no proxy", "proxy http://p:1"),
        ({"tags": {"team": "vision"}}, "tags:", "no tags", "tags team=vision"),
        ({"identity": ACCOUNT}, "identity:", "no identity", f"identity {ACCOUNT}"),
    ],
)
def test_a_change_that_nodes_cannot_follow_is_refused_with_its_line(
    user: User, changes: dict[str, Any], at: str, there: str, wanted: str
) -> None:
    before = dict(user.cloud.cloud["deep"])
    user.write(**changes)
    line = f"deep.yaml:{user.line(at)} says {wanted}"
    done = user.up("--trust")  # an identity needs it
    assert done.exit_code == 2
    assert f"deep-worker0, deep-worker1: {there}, {line}" in done.stderr
    assert "`cloudtrain up --replace`" in done.stderr
    assert "`cloudtrain down deep` first" in done.stderr
    assert user.cloud.cloud["deep"] == before
    for command in ("train", "run"):
        done = cloudtrain(command, "deep.yaml", "--trust")
        assert (done.exit_code, line in done.stderr) == (2, True)
    assert user.cloud.cloud["deep"] == before
    assert line in cloudtrain("plan", "deep.yaml").stdout
    (told,) = json.loads(cloudtrain("plan", "deep.yaml", "--json").stdout)["differs"]
    assert line in told
    checked = cloudtrain("check", "deep.yaml", "--trust")
    assert line in checked.stdout + checked.stderr
    assert checked.exit_code == 2


def test_what_was_refused_is_not_what_a_later_command_reads(user: User) -> None:
    user.write(**worker(machine="n1-standard-4"))
    assert user.up().exit_code == 2
    recorded = session.recorded_config(Records("deep"))
    assert recorded.nodes["worker"].machine == "n1-standard-2"


def test_replace_exchanges_exactly_the_nodes_that_differ(user: User) -> None:
    both = {"ps": {"count": 1, "machine": "n1-standard-2"}, **FIRST["nodes"]}
    user.write(nodes=both)
    assert user.up().exit_code == 0
    user.cloud.deeds.clear()
    user.write(nodes={**both, "ps": {"count": 1, "machine": "n1-standard-8"}})
    assert user.up("--shrink").exit_code == 2
    assert user.cloud.deeds == []
    done = user.up("--replace")
    assert done.exit_code == 0, done.stderr
    assert user.cloud.deeds == [("destroy", "deep-ps0"), ("create", "deep-ps0")]
    assert user.cloud.cloud["deep"]["deep-ps0"].machine == "n1-standard-8"
    assert user.up().exit_code == 0


def test_shrink_deletes_exactly_the_nodes_that_the_file_does_not_name(user: User) -> None:
    user.write(**worker(count=1))
    refused = user.up()
    place = f"deep.yaml:{user.line('count:')}"
    assert refused.exit_code == 2
    assert f"deep-worker1 exists, {place} says 1 of worker" in refused.stderr
    assert "`cloudtrain up --shrink`" in refused.stderr
    assert user.up("--replace").exit_code == 2
    assert user.names() == ["deep-worker0", "deep-worker1"]
    user.cloud.deeds.clear()
    assert user.up("--shrink").exit_code == 0
    assert user.cloud.deeds == [("destroy", "deep-worker1")]
    user.write(**worker(count=3))
    assert user.up().exit_code == 0
    assert len(user.names()) == 3


def test_where_every_node_differs_all_that_they_stood_on_goes_too(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed: list[str] = []
    whole = user.cloud.destroy

    def destroy(cluster: str, *rest: Any) -> None:
        destroyed.append(cluster)
        whole(cluster, *rest)

    monkeypatch.setattr(user.cloud, "destroy", destroy)
    user.write(network={"subnet": "inner"})
    assert user.up("--replace").exit_code == 0
    assert destroyed == ["deep"]
    assert user.up().exit_code == 0


@dataclass
class Hearing:
    """A transport to nodes that do as they are told."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)

    def __call__(self, identity: Any) -> Hearing:
        return self

    def __enter__(self) -> Hearing:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        pass

    def ask(self, node: Any, line: str) -> Completed:
        self.lines.append((node.name, line))
        return Completed(exit_code=int(node.name in self.fails), stdout=b"", stderr=b"no")


@pytest.fixture
def azure(user: User, monkeypatch: pytest.MonkeyPatch) -> Hearing:
    """The same user on a cloud that moves ends, with nodes that end in an hour."""
    hearing = Hearing()
    monkeypatch.setattr("cloudtrain.ssh.transport.SshTransport", hearing)
    assert cloudtrain("down", "deep", "--yes").exit_code == 0
    kind = {"machine": "Standard_D2s_v5", "count": 2}
    user.cloud.place = "eastus-1"
    user.write(
        provider="azure",
        placement=["eastus"],
        nodes={"worker": kind},
        limits={"max_lifetime": "2h"},
    )
    done = user.up()
    assert done.exit_code == 0, done.stderr
    end_at(user, time.time() + 3600)
    return hearing


def end_at(user: User, moment: float, *names: str) -> None:
    there = user.cloud.cloud["deep"]
    for name in names or tuple(there):
        there[name] = replace(there[name], expires=moment)


def ends(user: User) -> set[float | None]:
    return {node.expires for node in user.cloud.nodes("deep")}


def test_another_lifetime_moves_the_end_of_every_node(user: User, azure: Hearing) -> None:
    (before,) = ends(user)
    assert before is not None
    user.write(limits={"max_lifetime": "6h"})
    told = cloudtrain("plan", "deep.yaml").stdout
    assert f"deep was created with max_lifetime 2h, deep.yaml:{user.line('6h')} says 6h" in told
    done = user.up()
    assert done.exit_code == 0, done.stderr
    assert "deep now ends at " in done.stderr
    assert ends(user) == {before + 4 * 3600}
    azure.lines.clear()
    assert user.up().exit_code == 0
    assert azure.lines == []
    user.write(limits={"max_lifetime": "off"})
    assert user.up().exit_code == 0
    assert ends(user) == {None}
    user.write(limits={"max_lifetime": "3h"})
    assert user.up().exit_code == 0
    (again,) = ends(user)
    assert again == pytest.approx(time.time() + 3 * 3600, abs=60)


def test_another_lifetime_of_a_cluster_of_an_earlier_version_is_refused_with_the_reason(
    user: User, azure: Hearing
) -> None:
    """It recorded neither the lifetime nor when it began."""
    events = Records("deep").folder / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        for name in ("lifetime", "budget"):
            line.get("made", line).pop(name, None)
    events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = ends(user)
    assert user.up().exit_code == 0, "the same file"
    user.write(limits={"max_lifetime": "6h"})
    done = user.up()
    assert done.exit_code == 2
    words = "created with max_lifetime 2h by an earlier version of cloudtrain, which did not record"
    assert words in done.stderr
    assert words in cloudtrain("check", "deep.yaml").stdout
    assert ends(user) == before
    assert user.up("--replace").exit_code == 0


def test_a_lifetime_that_is_over_already_is_refused(user: User, azure: Hearing) -> None:
    (before,) = ends(user)
    user.write(limits={"max_lifetime": "30m"})
    done = user.up()
    assert done.exit_code == 2
    assert "limits.max_lifetime of 30m" in done.stderr
    assert "run `cloudtrain down deep` to destroy it now" in done.stderr
    assert ends(user) == {before}


def test_a_move_that_was_cut_off_is_gone_on_with(user: User, azure: Hearing) -> None:
    (before,) = ends(user)
    assert before is not None
    azure.fails = {"deep-worker1"}
    user.write(limits={"max_lifetime": "6h"})
    assert user.up().exit_code != 0
    assert ends(user) == {before, before + 4 * 3600}
    azure.fails = set()
    azure.lines.clear()
    assert user.up().exit_code == 0
    assert ends(user) == {before + 4 * 3600}
    assert [name for name, _ in azure.lines] == ["deep-worker1"]


def test_train_says_that_the_end_of_the_nodes_stays(user: User, azure: Hearing) -> None:
    user.write(limits={"max_lifetime": "6h"}, train={})
    done = cloudtrain("train", "deep.yaml")
    user.write(limits={"max_lifetime": "6h"}, train={"command": "echo"})
    done = cloudtrain("train", "deep.yaml")
    assert "`cloudtrain up` applies it" in done.stderr


def test_where_the_cloud_keeps_the_end_another_lifetime_is_refused_or_exchanged(
    user: User,
) -> None:
    user.write(limits={"max_lifetime": "3h"})
    done = user.up()
    assert done.exit_code == 2
    assert "deep-worker1: created with max_lifetime 12h" in done.stderr
    assert f"deep.yaml:{user.line('3h')} says 3h" in done.stderr
    assert cloudtrain("check", "deep.yaml").exit_code == 2
    user.cloud.deeds.clear()
    assert user.up("--replace").exit_code == 0
    assert sorted(user.cloud.deeds)[:2] == [("create", "deep-worker0"), ("create", "deep-worker1")]
    assert user.up().exit_code == 0


class Killed(BaseException):
    """As by kill -9: no line after it is run."""


@pytest.mark.parametrize("goes_on", [("up", "--replace"), ("down",)])
@pytest.mark.parametrize("number", [0, 1])
def test_an_exchange_that_was_killed_goes_on(
    user: User, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: tuple[str, ...]
) -> None:
    """One of the two nodes is being deleted by the cloud meanwhile: it cannot be started again."""
    alive, whole = user.cloud.create, user.cloud.destroy

    def killed(cluster: str, journal: Any, *rest: Any) -> None:
        if number:
            journal(NodeDeletionBegun(node="deep-worker0"))
            user.cloud.stop("deep", "deep-worker0")
        raise Killed

    def create(plan: Any, *rest: Any) -> Any:
        there = user.cloud.nodes("deep")
        assert all(node.state == "running" for node in there), "it is being deleted"
        return alive(plan, *rest)

    monkeypatch.setattr(user.cloud, "create", create)
    monkeypatch.setattr(user.cloud, "destroy", killed)
    user.write(**worker(machine="n1-standard-4"))
    assert user.up("--replace").exit_code != 0
    monkeypatch.setattr(user.cloud, "destroy", whole)
    command, *flags = goes_on
    done = cloudtrain(command, "deep.yaml", "--yes", *flags)
    if command == "down":
        # The file says another machine than the nodes are: that is no reason to keep them.
        assert done.exit_code == 0, done.stderr
        assert user.names() == []
    else:
        assert done.exit_code == 0, done.stderr
        assert {node.machine for node in user.cloud.nodes("deep")} == {"n1-standard-4"}


def test_a_record_of_an_earlier_version_is_compared_as_far_as_the_cloud_tells(user: User) -> None:
    events = Records("deep").folder / "events.jsonl"
    entries = [json.loads(line) for line in events.read_text().splitlines()]
    for entry in entries:
        entry.pop("made", None)
    kept = [json.dumps(entry) for entry in entries if entry["event"] != "placed"]
    events.write_text("\n".join(kept) + "\n")
    user.write(image="ubuntu-24.04")
    assert user.up().exit_code == 0
    user.write(**worker(machine="n1-standard-4"))
    assert user.up().exit_code == 2


def test_a_machine_that_today_would_be_chosen_otherwise_is_no_change(user: User) -> None:
    assert cloudtrain("down", "deep", "--yes").exit_code == 0
    nodes = {"worker": {"count": 1, "accelerator": "T4:1"}}
    user.write(nodes=nodes)
    assert user.up().exit_code == 0
    there = user.cloud.cloud["deep"]
    there["deep-worker0"] = nodes_of_another_day(there["deep-worker0"])
    assert user.up().exit_code == 0
    user.write(nodes={"worker": {"count": 1, "accelerator": "L4:1"}})
    assert user.up().exit_code == 2


def nodes_of_another_day(node: Any) -> Any:
    return replace(node, machine="n1-standard-96")


@pytest.mark.parametrize(
    ("wish", "place", "served"),
    [
        ("us-east4-c", "us-east4-c", True),
        ("us-east4", "us-east4-c", True),
        ("us-east-1", "us-east-1b", True),
        ("eastus", "eastus-2", True),
        ("eastus", "eastus", True),
        ("East US", "eastus-1", True),
        ("eastus", "eastus2-1", False),
        ("us-east1", "us-east4-c", False),
        ("us-east4-a", "us-east4-c", False),
    ],
)
def test_a_node_may_stay_where_the_placement_still_leads(
    wish: str, place: str, served: bool
) -> None:
    assert serves(wish, place) == served


def test_nodes_whose_deletion_was_cut_off_are_known_until_something_starts() -> None:
    exchange = {"event": "exchange", "nodes": ["a"]}
    assert nodes_leaving([{"event": "up"}, exchange]) == {"a"}
    for event in ("up", "start", "down"):
        assert nodes_leaving([exchange, {"event": event}]) == frozenset()


def test_the_fields_that_exchange_nodes_are_those_by_which_they_are_compared() -> None:
    exchanged = {row.name for row in rows(ConfigFile) if row.change.kind == "replace"}
    # placement is the cluster's; `spot` is short for `provisioning`
    assert exchanged == {*compared(), "placement", "nodes.ROLE.spot"}


def test_a_node_that_is_made_again_is_like_its_peers_whatever_is_chosen_today(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of machines and the newest image of the day are other ones by then."""
    assert cloudtrain("down", "deep", "--yes").exit_code == 0
    user.write(nodes={"worker": {"count": 2, "accelerator": "T4:1"}})
    assert user.up().exit_code == 0
    records = Records("deep")
    entries = (records.folder / "events.jsonl").read_text()
    (records.folder / "events.jsonl").write_text(entries.replace("n1-standard-4", "n1-standard-2"))
    records.journal(ImageChosen(key="auto/T4", id="projects/x/global/images/common-cu124-v1"))
    plans: list[Any] = []
    make = user.cloud.create

    def create(plan: Any, *rest: Any) -> Any:
        plans.append(plan)
        return make(plan, *rest)

    monkeypatch.setattr(user.cloud, "create", create)
    del user.cloud.cloud["deep"]["deep-worker1"]
    assert user.up().exit_code == 0
    assert dict(plans[0].images) == {"auto/T4": "projects/x/global/images/common-cu124-v1"}
    assert user.cloud.cloud["deep"]["deep-worker1"].machine == "n1-standard-2"


# ── identity ─────────────────────────────────────────────────────────────────

OTHER = "other@p.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("wanted", "recorded", "listed", "differs"),
    [
        (ACCOUNT, ACCOUNT, None, []),
        (ACCOUNT, ACCOUNT, (ACCOUNT,), []),
        (ACCOUNT, ACCOUNT, (OTHER, ACCOUNT.upper()), []),
        (ACCOUNT, ACCOUNT, (OTHER,), [f"identity {OTHER}"]),
        (ACCOUNT, ACCOUNT, (), ["no identity"]),
        (None, None, (OTHER,), []),
        (None, ACCOUNT, (ACCOUNT,), [f"identity {ACCOUNT}"]),
    ],
)
def test_what_the_cloud_lists_counts_but_not_what_a_policy_attached(
    user: User,
    wanted: str | None,
    recorded: str | None,
    listed: tuple[str, ...] | None,
    differs: list[str],
) -> None:
    plan = make_plan(replace(load(Path("deep.yaml")), identity=wanted))
    facts = {**creation_facts_of(plan.config, plan.nodes[0]), "identity": recorded}
    (node, *_) = user.cloud.nodes("deep")
    found = drift_of(plan, replace(node, identities=listed), facts)
    assert [change.there for change in found.changes] == differs


def drift_of(plan: Plan, node: Node, facts: dict[str, Any]) -> Drift:
    records = Records("other")
    records.create()
    records.journal(NodeRequested(node=node.name, made=facts))
    return drift(plan, [node], records.events())
