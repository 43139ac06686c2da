"""What `up` and `down` do around a provider's create and destroy."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.cluster.plan import tasks
from cloudtrain.cluster.provision import (
    create_nodes,
    ensure_nodes,
    identity_for,
    serial_logs_shown,
    shown_journal,
)
from cloudtrain.cluster.session import Handle, Session, adopt_identity
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.core.errors import (
    CapacityError,
    NodesError,
    NodeUnreachable,
    NotAskedError,
    NotLanded,
    QuotaError,
    StepFailed,
    TransientError,
)
from cloudtrain.core.events import (
    AttemptBegun,
    DownBegun,
    Event,
    NodeRequested,
    PlacementRefused,
    ResourceRequested,
    UpBegun,
    UpCompleted,
    being_destroyed,
    not_given_back,
    pending_nodes,
    was_ready,
)
from cloudtrain.core.model import Node, Plan
from cloudtrain.core.partial_list import NotAsked, Whereabouts
from cloudtrain.ssh import keys
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard


def event(name: str, time: float = 0.0, **facts: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **facts}


def test_a_node_is_awaited_from_its_last_request_until_it_was_seen() -> None:
    assert pending_nodes([]) == {}
    asked = [event("up"), event("create", 1.0, node="a"), event("create", 2.0, node="b")]
    assert pending_nodes(asked) == {"a": 1.0, "b": 2.0}
    assert pending_nodes([*asked, event("destroy", 3.0, node="a")]) == {"b": 2.0}
    again = event("create", 4.0, node="a")
    assert pending_nodes([*asked, event("destroy", 3.0, node="a"), again]) == {"a": 4.0, "b": 2.0}


def test_a_down_that_was_cut_off_does_not_make_the_next_one_forget() -> None:
    assert pending_nodes([event("create", 1.0, node="a"), event("down")]) == {"a": 1.0}


def test_what_a_refused_placement_was_asked_for_was_given_back() -> None:
    events = [event("create", 1.0, node="a"), event("refused", placement="east-a")]
    assert pending_nodes(events) == {}
    assert pending_nodes([events[0], event("left over", text="503"), events[1]]) == {"a": 1.0}


@pytest.mark.parametrize(
    ("events", "ready"),
    [
        ([], False),
        (["up"], False),
        (["up", "ready"], True),
        (["up", "start"], True),
        (["up", "ready", "down"], False),
        (["up", "ready", "down", "up"], False),
        (["up", "ready", "up"], True),
    ],
)
def test_nodes_may_hold_work_once_an_up_or_a_start_came_through(
    events: list[str], ready: bool
) -> None:
    assert was_ready([event(name) for name in events]) == ready


@dataclasses.dataclass
class Trusting:
    """A transport that is only told whom to trust."""

    told: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        self.told[node] = host_keys


@dataclasses.dataclass
class Full(FakeProvider):
    """Has no room for further nodes beside those that exist, as a zone may."""

    error: Exception = dataclasses.field(default_factory=lambda: CapacityError("east-a is full"))

    def create(self, plan: Plan, *rest: Any) -> tuple[Node, ...]:
        if self.nodes(plan.config.name):
            raise self.error
        return super().create(plan, *rest)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    plan = make_plan(workers=1)
    records = Records(plan.config.name)
    records.create()
    return Session(
        plan=plan,
        records=records,
        provider=Full(),
        store=None,  # type: ignore[arg-type]
        console=Heard(),
        identity=adopt_identity(records, plan, ()),
        transport=None,  # type: ignore[arg-type]
        host_keys=Trusting(),
        nodes=(),
    )


def half_made(session: Session) -> None:
    """By an `up` that was killed after its first node."""
    one = dataclasses.replace(session.plan, nodes=session.plan.nodes[:1])
    session.provider.create(one, session.identity, session.records.journal)


def test_nodes_of_an_up_that_was_cut_off_are_given_up_where_they_are_in_the_way(
    session: Session,
) -> None:
    half_made(session)
    assert len(ensure_nodes(session).nodes) == 2
    assert [deed for deed, _ in session.provider.deeds] == [  # type: ignore[attr-defined]
        "create",
        "destroy",
        "create",
        "create",
    ]


@pytest.mark.parametrize("milestone", [UpCompleted(), AttemptBegun()])
def test_nodes_that_may_hold_work_are_kept(session: Session, milestone: Event) -> None:
    half_made(session)
    session.records.journal(milestone)
    with pytest.raises(CapacityError):
        ensure_nodes(session)
    assert len(session.provider.nodes("mnist")) == 1


def test_a_quota_is_no_reason_to_try_a_third_time(session: Session) -> None:
    half_made(session)
    session.provider.create_fails = {"mnist-worker0": QuotaError("0 left")}  # type: ignore[attr-defined]
    with pytest.raises(QuotaError):
        ensure_nodes(session)
    assert [deed for deed, _ in session.provider.deeds].count("destroy") == 2  # type: ignore[attr-defined]


def test_without_leftovers_a_refusal_stays_one(session: Session) -> None:
    session.provider.create_fails = {"mnist-chief0": QuotaError("0 left")}  # type: ignore[attr-defined]
    with pytest.raises(QuotaError):
        ensure_nodes(session)
    assert session.provider.deeds == []  # type: ignore[attr-defined]


def test_only_a_node_that_is_gone_gets_a_new_first_host_key(session: Session) -> None:
    half_made(session)
    folder = session.records.folder
    before = session.identity.host_keys
    for name in before:
        keys.accept_host_key(folder, name, (keys.new_host_key().public,))
    after = identity_for(session).host_keys
    assert after["mnist-chief0"].public == before["mnist-chief0"].public
    assert after["mnist-chief0"].rotated
    assert after["mnist-worker0"].public != before["mnist-worker0"].public
    assert after["mnist-worker0"].pins == (after["mnist-worker0"].public,)
    assert session.host_keys.told == {  # type: ignore[attr-defined]
        "mnist-worker0": after["mnist-worker0"].pins
    }


def test_a_first_host_key_that_was_never_changed_is_kept_for_asking_again(session: Session) -> None:
    before = {name: key.pins for name, key in session.identity.host_keys.items()}
    assert {name: key.pins for name, key in identity_for(session).host_keys.items()} == before


class Behind(FakeProvider):
    """The list of the whole account knows nothing yet of what was made a moment ago."""

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        return ()


def test_the_nodes_of_up_are_those_that_were_made_whatever_a_list_says(session: Session) -> None:
    session = ensure_nodes(dataclasses.replace(session, provider=Behind()))
    assert [node.name for node in session.nodes] == ["mnist-chief0", "mnist-worker0"]
    assert all(node.address for node in session.nodes)
    ssh_config = (session.records.folder / "ssh_config").read_text()
    assert "mnist-chief0" in ssh_config
    assert "mnist-worker0" in ssh_config


def test_nodes_that_were_there_before_stay_beside_those_that_are_made(session: Session) -> None:
    half_made(session)
    session = session.refreshed()
    there = session.nodes[0]
    late = Behind(cloud=session.provider.cloud)  # type: ignore[attr-defined]
    rest = dataclasses.replace(session.plan, nodes=session.plan.nodes[1:])
    session = create_nodes(dataclasses.replace(session, provider=late), rest)
    assert session.nodes[0] == there
    assert [node.name for node in session.nodes] == ["mnist-chief0", "mnist-worker0"]


def test_an_up_that_gets_fewer_nodes_than_planned_never_says_that_it_is_up(
    session: Session,
) -> None:
    class Short(FakeProvider):
        def create(self, *given: Any, **named: Any) -> tuple[Node, ...]:
            return super().create(*given, **named)[:1]

    with pytest.raises(TransientError, match=r"created 1 of 2 nodes, .* mnist-worker0"):
        ensure_nodes(dataclasses.replace(session, provider=Short()))


def test_refusals_are_told_as_they_happen(session: Session) -> None:
    class Refusing(FakeProvider):
        def create(
            self, plan: Plan, identity: Any, journal: Any, expected: Any = None
        ) -> tuple[Node, ...]:
            journal(ResourceRequested(what="firewall", name="cloudtrain-mnist"))
            journal(PlacementRefused(placement="east-a", error="CapacityError", text="no T4 today"))
            return super().create(plan, identity, journal)

    session = dataclasses.replace(session, provider=Refusing())
    ensure_nodes(session)
    assert session.console.warned == ["east-a: no T4 today"]  # type: ignore[attr-defined]


def test_the_row_of_a_resource_is_that_of_a_node_that_is_requested_after_it(
    session: Session,
) -> None:
    class Rows(dict[str, str]):
        node = dict.__setitem__

        def done(self, name: str, text: str = "") -> None: ...

    rows = Rows()
    journal = shown_journal(session, rows)
    journal(ResourceRequested(what="resource group", name="cloudtrain-mnist-eastus"))
    assert rows == {"mnist-chief0": "creating the resource group cloudtrain-mnist-eastus"}
    for node in session.plan.nodes:
        journal(NodeRequested(node=node.name))
    assert rows == {"mnist-chief0": "requested", "mnist-worker0": "requested"}
    journal = shown_journal(session, rows, dataclasses.replace(session.plan, nodes=()))
    journal(ResourceRequested(what="firewall", name="cloudtrain-mnist"))
    assert rows["cloudtrain-mnist"] == "creating the firewall cloudtrain-mnist"


def test_down_waits_for_what_may_be_listed_yet(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Late(FakeProvider):
        def destroy(
            self, cluster: str, journal: Any, expected: Any = None, **named: Any
        ) -> tuple[NotAsked, ...]:
            told.append(expected)
            return super().destroy(cluster, journal, expected, **named)

    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: Late())
    session.records.journal(NodeRequested(node="mnist-worker0"))
    (asked,) = session.records.events()
    destroy_cluster(Handle(session.config), discard=False, console=session.console)
    assert told == [{"mnist-worker0": asked["time"]}]


def test_a_node_that_is_taken_while_down_lands_keeps_no_other_one(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a spot market: everything had landed, and the others stayed, billed."""
    session = ensure_nodes(session)
    session.records.journal(UpCompleted())
    provider: Any = session.provider
    landings: list[int] = []

    def land(opened: Session) -> None:
        landings.append(len(opened.nodes))
        if len(landings) == 1:
            del provider.cloud["mnist"]["mnist-worker0"]
            raise NodeUnreachable("mnist-worker0", "the connection was closed")

    monkeypatch.setattr("cloudtrain.commands.down.next_step", lambda *given: "land")
    monkeypatch.setattr("cloudtrain.commands.down.land_everything", land)
    brought_down(session, provider, monkeypatch)
    assert landings == [2, 1]
    assert provider.nodes("mnist") == ()


def test_a_node_that_only_does_not_answer_keeps_all(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ensure_nodes(session)
    session.records.journal(UpCompleted())

    def land(opened: Session) -> None:
        raise NodeUnreachable("mnist-worker0", "the connection was closed")

    monkeypatch.setattr("cloudtrain.commands.down.next_step", lambda *given: "land")
    monkeypatch.setattr("cloudtrain.commands.down.land_everything", land)
    with pytest.raises(NotLanded):
        brought_down(session, session.provider, monkeypatch)  # type: ignore[arg-type]
    assert len(session.provider.nodes("mnist")) == 2


SILENT = NotAsked(place="us-east1-b", why="it does not answer")


def brought_down(session: Session, provider: FakeProvider, monkeypatch: Any) -> list[str]:
    """The events that `down` wrote."""
    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: provider)
    before = len(session.records.events())
    with contextlib.suppress(NotAskedError):
        destroy_cluster(Handle(session.config), discard=False, console=session.console)
    return [event["event"] for event in session.records.events()[before:]]


def test_nodes_that_down_could_not_see_are_landed_by_the_next_one(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay, also where their zone answers again a moment later."""
    spared: list[Any] = []

    class Silent(FakeProvider):
        def destroy(self, *given: Any, **named: Any) -> tuple[NotAsked, ...]:
            spared.append(named["spared"])
            raise NotAskedError("us-east1-b")

    provider = Silent(not_asked=(SILENT,))
    session.records.journal(UpBegun())
    session.records.journal(UpCompleted())
    assert "down" not in brought_down(session, provider, monkeypatch)
    provider.whereabouts = Whereabouts(cluster="mnist", places=("us-east1",), complete=True)
    assert "down" not in brought_down(session, provider, monkeypatch)
    assert spared == [("us-east1-b",)] * 2
    assert session.records.is_open()
    assert not being_destroyed(session.records.events())


def test_nodes_that_another_machine_made_since_the_last_down_are_landed_by_nobody_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `up` here was refused for want of their keys, and had opened the record again."""
    for event in (UpBegun(), UpCompleted(), DownBegun()):
        session.records.journal(event)
    session.records.close()
    session.records.create()
    half_made(session)
    with pytest.raises(NotLanded, match="what the nodes hold cannot be landed from here"):
        brought_down(session, session.provider, monkeypatch)  # type: ignore[arg-type]
    assert len(session.provider.nodes("mnist")) == 1


def test_a_place_where_the_cluster_never_was_keeps_no_node(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Whereabouts(cluster="mnist", places=("us-west1-a",), complete=True)
    provider = FakeProvider(not_asked=(SILENT,), whereabouts=where)
    assert "down" in brought_down(session, provider, monkeypatch)
    assert not session.records.is_open()
    (told,) = [line for line in session.console.warned if "not checked" in line]  # type: ignore[attr-defined]
    assert "us-east1-b (it does not answer); by the record, it was never there" in told


def test_what_was_made_is_known_where_the_cloud_tells_nothing() -> None:
    made = [
        event("made", node="a-chief0", id="i-1", placement="east-a"),
        event("made", node="a-worker0", id="i-2", placement="east-a"),
    ]
    assert not_given_back([*made, event("destroy", node="a-chief0")]) == (
        "a-worker0 (i-2) in east-a",
    )
    assert not_given_back([*made, event("gone")]) == ()


def test_tasks_of_an_emulators_nodes_have_ports_of_their_own() -> None:
    local = make_plan(workers=1)
    nodes = tuple(dataclasses.replace(node, port=8900) for node in local.nodes)
    config = dataclasses.replace(local.config, provider="gcp")
    plan = Plan(config=config, nodes=nodes)
    assert [task.port for task in tasks(plan, at("10.0.0.1", "10.0.0.2"))] == [8900, 8900]
    assert [task.port for task in tasks(plan, at("127.3.0.1", "127.3.0.2"))] == [8900, 8901]
    assert [task.port for task in tasks(plan)] == [8900, 8900]
    assert [t.port for t in tasks(local, at("127.3.0.1", "127.3.0.2"))] == [8900, 8901], (
        "as planned"
    )


def at(*addresses: str) -> list[Node]:
    return [
        Node(name=a, role="worker", index=0, state="running", address=a, internal=a)
        for a in addresses
    ]


# ── Who lets nobody in ───────────────────────────────────────────────────────


class Silent:
    """A provider with a serial log of one node, and a console that keeps what it is told."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def serial_log(self, cluster: str, node: str) -> str:
        if node.endswith("worker1"):
            raise TransientError("no log just now")
        return "Kernel panic\nnot syncing" if node.endswith("worker0") else ""

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_the_serial_log_of_a_node_that_lets_nobody_in_is_shown() -> None:
    silent = Silent()
    config = SimpleNamespace(name="mnist")
    session: Any = SimpleNamespace(provider=silent, console=silent, config=config)
    failures = {
        name: NodeUnreachable(name, "no login within 600 s")
        for name in ("mnist-chief0", "mnist-worker0", "mnist-worker1")
    }
    with pytest.raises(NodesError), serial_logs_shown(session):
        raise NodesError(failures)
    with pytest.raises(StepFailed), serial_logs_shown(session):
        raise StepFailed("mnist-worker0", "setup: exit 1")
    assert silent.warned == [
        "mnist-worker0: the end of its serial log:\n  Kernel panic\n  not syncing"
    ]
