"""Two machines and one name: what is deleted is what was seen, whoever comes in between."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import fence, moments
from cloudtrain.core.errors import (
    CapacityError,
    CloudtrainError,
    CreatedAnewError,
    LeasedError,
    NameTakenError,
)
from cloudtrain.core.events import CreationBegun, Event
from cloudtrain.core.model import Identity, Owner, Plan
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Location, Resource, Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.seen import new_generation
from cloudtrain.providers.gcp import requests
from tests.support.fake_account import FakeAccount, cloud_plan
from tests.support.fakes import make_identity, make_plan


@dataclass
class Frozen(FakeAccount):
    """An account as one machine sees it: at its n-th call it stands still, and `meanwhile` happens.

    `slept`: it notices, as after a closed lid; else it was a few seconds.
    """

    at: int = 0
    after: bool = False
    slept: bool = True
    by_name: bool = False
    meanwhile: Callable[[], None] = lambda: None
    calls: int = 0

    def counted(self, work: Callable[[], Any]) -> Any:
        self.calls += 1
        frozen = self.calls == self.at
        if frozen and not self.after:
            self.stand_still()
        found = work()
        if frozen and self.after:
            self.stand_still()
        return found

    def stand_still(self) -> None:
        self.meanwhile()
        if self.slept:
            GAPS.append(self.calls)

    def machines(self, *given: Any, **named: Any) -> Any:
        return self.counted(lambda: super(Frozen, self).machines(*given, **named))

    def resources(self, *given: Any, **named: Any) -> Any:
        return self.counted(lambda: super(Frozen, self).resources(*given, **named))

    def create_network(self, *given: Any, **named: Any) -> Any:
        return self.counted(lambda: super(Frozen, self).create_network(*given, **named))

    def launch(self, order: LaunchRequest[str]) -> Vm:
        def work() -> Vm:
            if any(m.node.name == order.node.name for m in self.machines_.values()):
                raise NameTakenError(f"{order.node.name} exists")
            return super(Frozen, self).launch(order)

        launched: Vm = self.counted(work)
        named = [m for m in self.machines_.values() if m.node.name == order.node.name]
        return next(iter(named), launched)  # as Google is asked once the operation is done

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """By ids, as drivers see to it that no other VM of that name is meant; or by names, as what
        has no id is deleted, if it is noticed that time has passed.
        """

        def work() -> None:
            fence.refuse_stale()
            names = {machine.node.name for machine in machines}
            there = [m for m in self.machines_.values() if m.node.name in names]
            super(Frozen, self).delete(there if self.by_name else machines, resources)

        self.counted(work)


GAPS: list[int] = []


@dataclass
class Machine:
    """One of two machines with the same account: what its commands are made of."""

    account: FakeAccount
    identity: Identity
    plan: Plan = field(default_factory=lambda: cloud_plan(make_plan(workers=1)))
    events: list[Event] = field(default_factory=list)

    def provider(self) -> CloudProvider[str]:
        made = CloudProvider(self.account, caller=lambda: "", timing=self.account.clock.timing())
        known = tuple(e.id for e in reversed(self.events) if isinstance(e, CreationBegun))
        made.whereabouts = Whereabouts(cluster="mnist", generations=known)
        return made

    def up(self) -> None:
        self.provider().create(self.plan, self.identity, self.events.append)

    def down(self) -> None:
        provider = self.provider()
        provider.find("mnist")
        provider.destroy("mnist", self.events.append)
        self.events.clear()

    def gc(self) -> None:
        """As if everything that is not being created had expired."""
        provider, now = self.provider(), self.account.clock.now()
        for held in provider.sweep():
            if (held.creating_until or 0.0) <= now:
                provider.destroy(held.cluster, self.events.append)


@dataclass
class Two:
    a: Machine
    b: Machine
    frozen: Frozen

    def ids(self) -> set[tuple[str, str]]:
        """With the generation of each."""
        there = self.frozen.machines_.values()
        return {(m.id, m.generation) for m in there if m.node.state != "gone"}

    def anew(self) -> set[tuple[str, str]]:
        """B's nodes of the same name, instead of those there were before, if it gets to that."""
        before = self.ids()
        with contextlib.suppress(CloudtrainError):
            self.b.down()
            self.b.up()
        begun = {e.id for e in self.b.events if isinstance(e, CreationBegun)}
        return {(id, made) for id, made in self.ids() - before if made in begun}

    def age(self) -> None:
        """The creation is over, by its labels."""
        self.frozen.clock.time += 24 * 3600.0


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    GAPS.clear()
    monkeypatch.setattr(moments, "gaps", lambda: len(GAPS))
    frozen = Frozen()
    identity = make_identity(tmp_path, cloud_plan(make_plan(workers=1)))
    plain = FakeAccount(clock=frozen.clock)
    for name in ("machines_", "listed_from", "resources_", "orders", "lock"):
        setattr(plain, name, getattr(frozen, name))
    return Two(Machine(frozen, identity), Machine(plain, identity), frozen)


def interleaved(
    two: Two, begin: Callable[[], None], command: Callable[[], None], *, makes: bool = False
) -> int:
    """B deletes and creates the cluster while A is frozen at each of the calls of its command; what
    B has made is never deleted. Returns how many calls there were.
    """
    number = 1
    while True:
        reached = [
            frozen_at(two, begin, command, number, after=after, slept=slept, makes=makes)
            for after, slept in ((False, True), (True, True), (False, False))
            if slept or not two.frozen.named  # nothing tells it but the time
        ]
        if not any(reached):
            return number - 1
        number += 1


def frozen_at(
    two: Two,
    begin: Callable[[], None],
    command: Callable[[], None],
    number: int,
    *,
    after: bool,
    slept: bool,
    makes: bool,
) -> bool:
    two.frozen.at = 0
    for machine in (two.a, two.b):
        machine.events.clear()
    for kept in (two.frozen.machines_, two.frozen.resources_):
        kept.clear()  # type: ignore[attr-defined]
    begin()
    made: set[tuple[str, str]] = set()
    two.frozen.calls, two.frozen.at, two.frozen.after, two.frozen.slept = 0, number, after, slept
    two.frozen.by_name = slept and not makes
    reached = []

    def meanwhile() -> None:
        reached.append(number)
        made.update(two.anew())

    two.frozen.meanwhile = meanwhile
    with contextlib.suppress(CloudtrainError):
        command()
    two.frozen.at = 0
    first_look = number == 1 and not after
    if made and not first_look:
        assert made <= two.ids(), f"frozen at call {number}, after={after}, slept={slept}"
    return bool(reached)


def test_a_frozen_down_never_deletes_what_was_created_anew(two: Two) -> None:
    assert interleaved(two, two.a.up, two.a.down) >= 4


def test_a_frozen_gc_never_deletes_what_was_created_anew(two: Two) -> None:
    def begin() -> None:
        two.a.up()
        two.age()

    assert interleaved(two, begin, two.a.gc) >= 4


@pytest.mark.parametrize("named", [False, True])
def test_a_frozen_creation_that_fails_rolls_back_its_own_nodes_alone(two: Two, named: bool) -> None:
    two.frozen.named = two.b.account.named = named
    two.frozen.refuses["east-a", "mnist-worker0"] = CapacityError("none", scope="account")

    def refused() -> None:
        two.a.up()

    assert interleaved(two, lambda: None, refused, makes=True) >= 4


@pytest.mark.parametrize("named", [False, True])
def test_a_frozen_up_takes_no_node_that_another_machine_has_created_for_its_own(
    two: Two, named: bool
) -> None:
    two.frozen.named = two.b.account.named = named
    assert interleaved(two, lambda: None, two.a.up, makes=True) >= 4


def test_what_is_being_created_has_no_nodes_yet_and_is_no_leftover(two: Two) -> None:
    """`gc` on another machine finds the network alone."""
    place = Location(region="east", zone="east-a")
    plan = replace(two.b.plan, generation="0123456789ab", creating_until=two.frozen.clock.now())
    two.frozen.create_network(plan, place, "", two.b.events.append)
    held = two.a.provider().sweep()
    assert held[0].creating_until is not None
    assert held[0].creating_until > two.frozen.clock.now()
    seen_nothing = two.a.provider()
    assert seen_nothing.find("mnist") == ()
    with pytest.raises(CreatedAnewError, match=r"is being created, until .* UTC at the latest"):
        seen_nothing.destroy("mnist", two.a.events.append)
    assert len(two.frozen.resources_) == 2
    with pytest.raises(CreatedAnewError):
        two.a.provider().destroy("mnist", two.a.events.append, claimed=["ba9876543210"])
    two.a.provider().destroy("mnist", two.a.events.append, claimed=held[0].generations)
    assert two.frozen.resources_ == {}
    two.frozen.create_network(plan, place, "", two.b.events.append)
    two.frozen.clock.time += 24 * 3600.0
    two.a.down()
    assert two.frozen.resources_ == {}


def test_one_creation_has_one_generation_and_the_next_another(two: Two) -> None:
    two.a.up()
    machines, resources = two.frozen.machines_.values(), two.frozen.resources_.values()
    (first,) = {each.generation for each in (*machines, *resources)}
    two.frozen.machines_.pop(next(iter(two.frozen.machines_)))
    two.a.up()
    assert {m.generation for m in two.frozen.machines_.values()} == {first}, "it was repaired"
    two.a.down()
    two.a.up()
    (second,) = {m.generation for m in two.frozen.machines_.values()}
    assert "" != first != second != ""


def test_labels_say_it_on_every_cloud_and_in_descriptions_where_there_are_none() -> None:
    plan = replace(
        cloud_plan(make_plan()),
        owner=Owner(id="0123456789ab", name="me", machine="here"),
        generation=new_generation(),
        creating_until=1_795_000_000.9,
    )
    node = labels.on_node(plan, plan.nodes[0], 1_795_100_000.0)
    assert len(node) == 9, "TagRules.most of each cloud leaves room for so many"
    assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", value) for value in node.values())
    read = labels.read(node)
    assert read is not None
    assert (read.generation, read.creating_until) == (plan.generation, 1_795_000_000.0)
    creation = labels.of_creation(plan)
    told = requests.read_description(requests.description("mnist", plan.owner, None, creation))
    shared = labels.read(labels.on_resources(plan))
    assert told == shared
    assert shared is not None
    assert shared.creating_until == 1_795_000_000.0 + labels.LONGER


def test_a_killed_up_is_known_by_its_record_though_its_nodes_are_listed_late(two: Two) -> None:
    two.frozen.lag = 20.0
    asked = two.frozen.clock.now()
    two.frozen.breaks_after = {"mnist-worker0"}
    provider = two.a.provider()
    plan, place = (
        replace(two.a.plan, generation="0123456789ab"),
        Location(region="e", zone="east-a"),
    )
    two.a.events.append(CreationBegun(id="0123456789ab"))
    two.frozen.create_network(plan, place, "", two.a.events.append)
    provider = two.a.provider()
    two.frozen.breaks_after = set()
    node = plan.nodes[0]
    launched = replace(
        two.frozen.orders[0] if two.frozen.orders else order_of(two, plan, place), node=node
    )
    two.frozen.launch(launched)
    assert provider.find("mnist") == ()
    provider.destroy("mnist", two.a.events.append, {node.name: asked})
    assert two.frozen.holds() == []


def order_of(two: Two, plan: Plan, place: Location) -> Any:
    return LaunchRequest(
        plan=plan,
        node=plan.nodes[0],
        place=place,
        network="ground",
        user_data="",
        token="",
        expires=None,
        labels={},
    )


def test_a_cluster_of_an_earlier_version_is_deleted_by_its_name(two: Two) -> None:
    two.a.up()
    for kept in (two.frozen.machines_, two.frozen.resources_):
        for id, each in list(kept.items()):  # type: ignore[attr-defined]
            old = (
                replace(each, node=replace(each.node, generation=""))
                if isinstance(each, Vm)
                else replace(each, generation="", creating_until=None)
            )
            kept[id] = old  # type: ignore[index]
    two.b.down()
    assert two.frozen.holds() == []


def test_nodes_that_another_machine_created_meanwhile_are_not_adopted(two: Two) -> None:
    """Two `up` that no lease keeps apart."""
    late = two.a.provider()
    assert late.nodes("mnist") == ()
    two.b.up()
    made = two.ids()
    with pytest.raises(CreatedAnewError, match="mnist was created anew since this command looked"):
        late.create(two.a.plan, two.a.identity, two.a.events.append)
    assert two.ids() == made


def test_removing_some_nodes_stops_at_another_generation(two: Two) -> None:
    two.a.up()
    late = two.a.provider()
    late.nodes("mnist")
    two.age()
    made = two.anew()
    with pytest.raises(CreatedAnewError):
        late.remove("mnist", ["mnist-worker0"], two.a.events.append)
    assert two.ids() == made


def test_a_machine_that_deletes_itself_deletes_its_own_generation(two: Two) -> None:
    two.a.up()
    two.age()
    desk = two.a.provider()
    made = two.anew()
    with pytest.raises(CreatedAnewError):
        desk.delete_from_inside("mnist", two.a.events.append)
    assert two.ids() == made


def test_a_lost_lease_stops_a_deletion_before_its_next_round(two: Two) -> None:
    two.a.up()

    def refuse() -> None:
        raise LeasedError("mnist is in use on another machine")

    made = two.ids()
    with fence.confirmed_by(refuse), pytest.raises(LeasedError):
        two.a.down()
    assert two.ids() == made
    two.a.down()
    assert two.frozen.holds() == []
