"""On each cloud's stand-in: a node that is created again gets its old internal address, if it is
free."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import AddressTakenError, CloudConfigError
from cloudtrain.core.model import Identity, Node, Plan
from cloudtrain.core.protocols import Provider
from tests.standins import cloud as standins
from tests.support.cloud_rig import CLOUDS
from tests.support.fakes import make_identity, no_journal

LOST = "mnist-worker0"


@dataclass
class Account:
    """A cluster of a chief and two workers, one of which was deleted."""

    provider: Provider
    plan: Plan
    identity: Identity
    before: dict[str, Node]

    def recreate(self, address: str) -> dict[str, Node]:
        nodes = (
            replace(node, internal=address) if node.name == LOST else node
            for node in self.plan.nodes
        )
        plan = replace(self.plan, nodes=tuple(nodes))
        made = self.provider.create(plan, self.identity, no_journal)
        return {node.name: node for node in made}

    def there(self) -> dict[str, str]:
        return {node.name: node.internal for node in self.provider.nodes("mnist")}


@pytest.fixture(params=CLOUDS)
def account(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    with standins.start(request.param, delay=0.01) as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        config = cloud.config()
        config = replace(config, placement=config.placement[:1])
        module = importlib.import_module(f"cloudtrain.providers.{request.param}.provider")
        provider: Provider = module.provider(config)
        plan = make_plan(config)
        identity = make_identity(tmp_path, plan)
        made = provider.create(plan, identity, no_journal)
        provider.remove("mnist", [LOST], no_journal)
        (tmp_path / "other").mkdir()
        other = make_identity(tmp_path / "other", plan)  # as a recreated node has a new host key
        yield Account(provider, plan, other, {node.name: node for node in made})
        provider.destroy("mnist", no_journal)
        assert cloud.holdings() == []


@pytest.mark.sweep(1)
def test_a_node_that_is_created_again_has_its_old_address_and_the_others_keep_theirs(
    account: Account,
) -> None:
    made = account.recreate(account.before[LOST].internal)
    assert {name: node.internal for name, node in made.items()} == {
        name: node.internal for name, node in account.before.items()
    }
    assert made[LOST].placement == account.before[LOST].placement


@pytest.mark.sweep(1)
def test_an_address_that_another_node_has_is_refused_and_nothing_is_left_of_the_node(
    account: Account,
) -> None:
    with pytest.raises(AddressTakenError, match=LOST):
        account.recreate(account.before["mnist-worker1"].internal)
    kept = {name: node.internal for name, node in account.before.items() if name != LOST}
    assert account.there() == kept


@pytest.mark.sweep(2)
@pytest.mark.parametrize("address", ["192.0.2.9", "10.99.0.77"])
def test_an_address_outside_of_the_subnet_is_refused(account: Account, address: str) -> None:
    with pytest.raises(CloudConfigError, match=address):
        account.recreate(address)
    assert LOST not in account.there()
