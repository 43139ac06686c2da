"""What every provider must do, held for each module in providers/ that has a stand-in here."""

from __future__ import annotations

import importlib
import os
import pkgutil
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

import cloudtrain.providers
from cloudtrain import catalog
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CapacityError, CloudConfigError, CloudtrainError
from cloudtrain.core.events import Event, NodeDeletionBegun, NodeRequested
from cloudtrain.core.model import Identity, Plan
from cloudtrain.core.moments import MOMENTS
from cloudtrain.core.protocols import Provider
from cloudtrain.core.shell import Secret
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins import cloud as standins
from tests.support.fake_account import PLACES, FakeAccount, cloud_plan
from tests.support.fakes import FakeProvider, make_identity, make_plan, no_journal
from tests.support.lent import hosts_config, lent_home
from tests.support.sshd import sshd_nodes

MODULES = sorted(
    module.name
    for module in pkgutil.iter_modules(cloudtrain.providers.__path__)
    if module.name != "base"
)


@dataclass(kw_only=True)
class Cloud:
    """One provider on something that costs nothing, and a way to make one node impossible."""

    provider: Provider
    folder: Path
    again: Callable[[], Provider]
    """A provider made later, on the same cloud."""
    spoil: Callable[[Identity, str], Identity]
    dress: Callable[[Plan], Plan] = lambda plan: plan
    """The plan as this provider's config would have it."""
    made_up: bool = False
    """Has no clock but the one it is given."""

    def plan(self, cluster: str = "mnist", **counts: int) -> Plan:
        return self.dress(make_plan(cluster, **counts))

    def identity(self, plan: Plan) -> Identity:
        return make_identity(self.folder, plan)


def fake(folder: Path, stack: ExitStack) -> Cloud:
    provider = FakeProvider()

    def spoil(identity: Identity, node: str) -> Identity:
        provider.create_fails = {node: CapacityError(f"no machine for {node}")}
        return identity

    return Cloud(
        provider=provider,
        folder=folder,
        again=lambda: FakeProvider(cloud=provider.cloud),
        spoil=spoil,
    )


def account(folder: Path, stack: ExitStack) -> Cloud:
    """What is the same for all clouds, on an account in memory."""
    account = FakeAccount()

    def provider() -> Provider:
        timing = account.clock.timing()
        return CloudProvider(account, caller=lambda: "198.51.100.7/32", timing=timing)

    def spoil(identity: Identity, node: str) -> Identity:
        refusal = CapacityError(f"no machine for {node}", scope="zone")
        account.refuses = {(str(place), node): refusal for place in PLACES}
        return identity

    return Cloud(
        provider=provider(),
        folder=folder,
        again=provider,
        spoil=spoil,
        dress=cloud_plan,
        made_up=True,
    )


def local(folder: Path, stack: ExitStack) -> Cloud:
    from cloudtrain.providers.local import provider as module

    def spoil(identity: Identity, node: str) -> Identity:
        broken = replace(identity.host_keys[node], private=Secret("not a key"))
        return replace(identity, host_keys={**identity.host_keys, node: broken})

    def provider() -> Provider:
        return module.provider(make_plan().config)

    return Cloud(provider=provider(), folder=folder, again=provider, spoil=spoil)


_RUNNING = ExitStack()


@cache
def running(name: str) -> standins.Cloud:
    """One for all tests of this process; each test leaves it empty."""
    return _RUNNING.enter_context(standins.start(name, delay=0.01))


pytestmark = pytest.mark.sweep(4, over="cloud")


@pytest.fixture(scope="module", autouse=True)
def _stand_ins_end() -> Iterator[None]:
    yield
    running.cache_clear()
    _RUNNING.close()


def check_empty(cloud: standins.Cloud) -> None:
    assert cloud.holdings() == []


def stand_in(name: str) -> Callable[[Path, ExitStack], Cloud]:
    """A cloud's own driver, on a server that answers in the cloud's place."""

    def make(folder: Path, stack: ExitStack) -> Cloud:
        cloud = running(name)
        stack.enter_context(patch.dict(os.environ, cloud.environment))
        stack.callback(lambda: check_empty(cloud))
        module = importlib.import_module(f"cloudtrain.providers.{name}.provider")

        def dress(plan: Plan) -> Plan:
            config = cloud.config(name=plan.config.name)
            group = config.nodes["chief"]
            has = catalog.machine_type(name, group.machine or "")
            facts = {
                "machine": group.machine,
                "accelerator": has.accelerator if has else None,
                "disk_gb": group.disk_gb,
            }
            nodes = [replace(node, **facts) for node in plan.nodes]
            return Plan(config=config, nodes=tuple(nodes))

        def provider() -> Provider:
            made: Provider = module.provider(cloud.config())
            return made

        def spoil(identity: Identity, node: str) -> Identity:
            """More first-boot data than any cloud takes."""
            much = replace(identity.host_keys[node], private=Secret(os.urandom(300_000).hex()))
            return replace(identity, host_keys={**identity.host_keys, node: much})

        return Cloud(provider=provider(), folder=folder, again=provider, spoil=spoil, dress=dress)

    return make


def hosts(folder: Path, stack: ExitStack) -> Cloud:
    """Real OpenSSH servers, as machines that somebody has."""
    from cloudtrain.providers.hosts import provider as module

    roles = ["chief", "worker", "worker", "worker", "ps"]
    names = [f"m{number}" for number in range(len(roles))]
    machines = stack.enter_context(sshd_nodes(folder / "machines", names))
    home = lent_home(folder / "home", machines)
    stack.enter_context(patch.dict(os.environ, HOME=str(home)))
    config = hosts_config(machines, roles)

    def spoil(identity: Identity, node: str) -> Identity:
        """What is in the way of our folder there."""
        place = {"mnist-worker1": machines[2], "mnist-worker2": machines[3]}[node]
        (place.home / ".cloudtrain").write_text("a file of the user's")
        return identity

    def provider() -> Provider:
        return module.provider(config)

    def dress(plan: Plan) -> Plan:
        return replace(plan, config=replace(config, name=plan.config.name))

    return Cloud(provider=provider(), folder=folder, again=provider, spoil=spoil, dress=dress)


STAND_INS: dict[str, Callable[[Path, ExitStack], Cloud]] = {
    "fake": fake,
    "account": account,
    "local": local,
    "hosts": hosts,
    **{name: stand_in(name) for name in standins.DESCRIPTIONS},
}
"""A cloud's provider joins with something that answers in the cloud's place: never a real one."""


@pytest.fixture(params=["fake", "account", *MODULES])
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    if request.param not in STAND_INS:
        pytest.skip(f"no stand-in for provider {request.param} here: see STAND_INS")
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    with ExitStack() as stack:
        cloud = STAND_INS[request.param](tmp_path, stack)
        yield cloud
        for name in held(cloud):
            cloud.provider.destroy(name, no_journal)


def held(cloud: Cloud) -> list[str]:
    """Names of the clusters of which the cloud still has anything."""
    return [holding.cluster for holding in cloud.provider.sweep()]


@pytest.mark.parametrize("name", MODULES)
def test_a_provider_module_has_the_door(name: str) -> None:
    module = importlib.import_module(f"cloudtrain.providers.{name}.provider")
    made = typing.get_type_hints(module.provider)["return"]
    made = typing.get_origin(made) or made
    for verb in ("check", "create", "nodes", "remove", "destroy", "sweep"):
        assert callable(getattr(made, verb))


def test_create_makes_exactly_the_nodes_of_the_plan_in_its_order(cloud: Cloud) -> None:
    plan = cloud.plan(workers=2, ps=1)
    made = cloud.provider.create(plan, cloud.identity(plan), no_journal)
    assert [(n.name, n.role, n.index) for n in made] == [
        ("mnist-chief0", "chief", 0),
        ("mnist-worker0", "worker", 0),
        ("mnist-worker1", "worker", 1),
        ("mnist-ps0", "ps", 0),
    ]
    assert {n.state for n in made} == {"running"}
    assert len({(n.address, n.ssh_port) for n in made}) == len(made)
    assert cloud.provider.nodes("mnist") == made


def test_create_again_makes_nothing_new(cloud: Cloud) -> None:
    plan = cloud.plan()
    identity = cloud.identity(plan)
    made = cloud.provider.create(plan, identity, no_journal)
    entries: list[str] = []
    again = cloud.provider.create(plan, identity, lambda event: entries.append(event.word))
    assert again == made
    assert [entry for entry in entries if entry != "image"] == []  # That is said, not made.


def test_a_larger_plan_adds_only_what_is_missing(cloud: Cloud) -> None:
    plan, larger = cloud.plan(workers=1), cloud.plan(workers=3)
    identity = cloud.identity(larger)
    made = cloud.provider.create(plan, identity, no_journal)
    entries: list[str] = []

    def journal(event: Event, /) -> None:
        if isinstance(event, NodeRequested):
            entries.append(event.node)

    grown = cloud.provider.create(larger, identity, journal)
    assert sorted(entries) == ["mnist-worker1", "mnist-worker2"]
    assert grown[:2] == made
    assert cloud.provider.nodes("mnist") == grown


def test_no_node_ends_later_than_the_plan_allows(cloud: Cloud) -> None:
    """`Plan.latest_end`: until when `limits.budget` pays."""
    plan, larger = cloud.plan(workers=1), cloud.plan(workers=2)
    if cloud_of(plan.config.provider) is None or isinstance(cloud.provider, FakeProvider):
        return
    identity = cloud.identity(larger)
    clock = cloud.provider._timing.clock  # type: ignore[attr-defined]
    latest = clock.now() + 2 * 3600.0
    for wanted in (plan, larger):
        made = cloud.provider.create(replace(wanted, latest_end=latest), identity, no_journal)
        assert [node.expires for node in made] == [pytest.approx(latest, abs=60.0)] * len(made)
    ends = [node.expires or 0.0 for node in cloud.provider.nodes("mnist")]
    assert max(ends) - min(ends) < 5.0
    cloud.provider.destroy("mnist", no_journal)
    soon = replace(plan, latest_end=clock.now() + 30.0)
    with pytest.raises(CloudConfigError, match=r"limits\.budget: its rest pays for 0 min"):
        cloud.provider.create(soon, identity, no_journal)
    assert cloud.provider.nodes("mnist") == ()


def test_an_end_is_a_moment_by_the_clouds_clock(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although this machine's clock is 20 h ahead."""
    plan = cloud.plan(workers=0)
    if plan.config.provider not in standins.DESCRIPTIONS or cloud.made_up:
        return
    lifetime = plan.config.limits.max_lifetime
    assert lifetime is not None
    monkeypatch.setattr(MOMENTS, "began", MOMENTS.began + 20 * 3600.0)
    monkeypatch.setattr(MOMENTS, "offset", 0.0)
    monkeypatch.setattr(MOMENTS, "heard", 0.0)
    with MOMENTS.said_to((said := []).append):
        (made,) = cloud.again().create(plan, cloud.identity(plan), no_journal)
    assert made.expires == pytest.approx(time.time() + lifetime, abs=300.0)
    assert ["the clock of this machine is 20 h ahead" in text for text in said] == [True]


def test_each_creation_and_destruction_is_announced_before_it_is_done(cloud: Cloud) -> None:
    plan = cloud.plan()
    entries: list[tuple[str, str]] = []

    def journal(event: Event, /) -> None:
        if isinstance(event, NodeRequested | NodeDeletionBegun):
            exists = event.node in {n.name for n in cloud.provider.nodes("mnist")}
            assert exists == isinstance(event, NodeDeletionBegun)
            entries.append((event.word, event.node))

    cloud.provider.create(plan, cloud.identity(plan), journal)
    cloud.provider.destroy("mnist", journal)
    assert sorted(entries) == [
        ("create", "mnist-chief0"),
        ("create", "mnist-worker0"),
        ("destroy", "mnist-chief0"),
        ("destroy", "mnist-worker0"),
    ]


def test_a_failed_create_leaves_no_node(cloud: Cloud) -> None:
    plan = cloud.plan(workers=3)
    identity = cloud.spoil(cloud.identity(plan), "mnist-worker1")
    with pytest.raises(CloudtrainError, match="mnist-worker1"):
        cloud.provider.create(plan, identity, no_journal)
    assert cloud.provider.nodes("mnist") == ()
    assert held(cloud) == []


def test_a_failed_create_keeps_what_was_there_before(cloud: Cloud) -> None:
    plan, larger = cloud.plan(workers=1), cloud.plan(workers=3)
    identity = cloud.identity(larger)
    made = cloud.provider.create(plan, identity, no_journal)
    with pytest.raises(CloudtrainError, match="mnist-worker2"):
        cloud.provider.create(larger, cloud.spoil(identity, "mnist-worker2"), no_journal)
    assert cloud.provider.nodes("mnist") == made


def test_an_error_of_the_journal_makes_no_node(cloud: Cloud) -> None:
    plan = cloud.plan()

    def full_disk(event: Event, /) -> None:
        if event == NodeRequested(node="mnist-worker0"):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cloud.provider.create(plan, cloud.identity(plan), full_disk)
    assert cloud.provider.nodes("mnist") == ()


def test_destroy_leaves_nothing_and_may_be_called_again(cloud: Cloud) -> None:
    plan = cloud.plan()
    cloud.provider.create(plan, cloud.identity(plan), no_journal)
    cloud.provider.destroy("mnist", no_journal)
    assert cloud.provider.nodes("mnist") == ()
    assert held(cloud) == []
    cloud.provider.destroy("mnist", no_journal)


def test_removing_a_node_leaves_the_others_as_they_are(cloud: Cloud) -> None:
    plan = cloud.plan()
    made = cloud.provider.create(plan, cloud.identity(plan), no_journal)
    kept = [node.name for node in made[:-1]]
    for _ in range(2):
        cloud.provider.remove("mnist", [made[-1].name], no_journal)
        assert [node.name for node in cloud.provider.nodes("mnist")] == kept


def test_destroying_an_unknown_cluster_is_fine(cloud: Cloud) -> None:
    entries: list[str] = []
    cloud.provider.destroy("never-made", lambda event: entries.append(event.word))
    assert entries == []
    assert cloud.provider.nodes("never-made") == ()


def test_another_cluster_is_left_alone(cloud: Cloud) -> None:
    """Also one whose name only goes on where the first one's ends."""
    plan, other = cloud.plan("mnist"), cloud.plan("mnist-worker0")
    cloud.provider.create(plan, cloud.identity(plan), no_journal)
    (cloud.folder / "id_ed25519").unlink()
    kept = cloud.provider.create(other, cloud.identity(other), no_journal)
    assert held(cloud) == ["mnist", "mnist-worker0"]
    cloud.provider.destroy("mnist", no_journal)
    assert held(cloud) == ["mnist-worker0"]
    assert cloud.provider.nodes("mnist-worker0") == kept


def test_what_exists_is_seen_by_a_provider_made_later(cloud: Cloud) -> None:
    plan = cloud.plan()
    made = cloud.provider.create(plan, cloud.identity(plan), no_journal)
    assert cloud.again().nodes("mnist") == made


def test_check_changes_nothing(cloud: Cloud) -> None:
    before = sorted(cloud.folder.rglob("*"))
    findings = cloud.provider.check(cloud.plan(workers=3))
    assert all(finding.ok for finding in findings), findings
    assert sorted(cloud.folder.rglob("*")) == before
    assert held(cloud) == []
