"""Labels are read in one place: what this program never writes is named, and is never ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.model import Owner, Plan
from cloudtrain.core.owner import label, machine_id
from cloudtrain.core.task_id import TaskId
from cloudtrain.providers.aws.listing import listed_vm as aws_vm
from cloudtrain.providers.azure.listing import Lists, to_vms
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Vm
from cloudtrain.providers.base.seen import new_generation
from cloudtrain.providers.gcp.listing import listed_vm as gcp_vm
from cloudtrain.providers.gcp.tpu_hosts import listed_hosts
from tests.support.fake_account import cloud_plan
from tests.support.fakes import make_plan as plan_of

OURS = {labels.CLUSTER: "mnist", labels.ROLE: "worker", labels.INDEX: "3"}


def test_everything_that_this_program_writes_is_read_as_its_own(tmp_path: Path) -> None:
    """Also with the longest names, and of earlier versions, whose owner is a login name."""
    plan = cloud_plan(plan_of("a" * 30))
    plan = plan_with(plan, Owner(id="0123456789ab", name="x" * 63, machine=machine_id(tmp_path)))
    for task in (*plan.nodes, TaskId(role="x" * 15, index=99_999)):
        told = labels.read(labels.on_node(plan, task, 2e9), of="a" * 30)
        assert isinstance(told, labels.Labels), told
        assert (told.cluster, told.rank, told.expires) == ("a" * 30, task.rank, 2e9)
        assert (told.owner, told.generation) == (plan.owner, plan.generation)
    old = {**OURS, labels.OWNER: label("Ann.Bee@example.com")}
    assert isinstance(labels.read(old), labels.Labels)


def plan_with(plan: Plan, owner: Owner) -> Plan:
    return replace(plan, owner=owner, generation=new_generation(), creating_until=2e9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({labels.CLUSTER: "Mnist"}, "cloudtrain-cluster: Mnist"),
        ({labels.CLUSTER: ""}, "cloudtrain-cluster: (empty)"),
        ({labels.CLUSTER: "mnist\n"}, "cloudtrain-cluster: mnist"),
        ({labels.ROLE: "-oProxyCommand=x"}, "cloudtrain-role: -oProxyCommand=x"),
        ({labels.INDEX: "1" + "0" * 30}, "cloudtrain-index: 1000000000000000000000000000000"),
        ({labels.INDEX: "\u0663"}, "cloudtrain-index: \u0663"),
        ({labels.EXPIRES: "9" * 30}, f"cloudtrain-expires: {'9' * 30}"),
        ({labels.EXPIRES: "nan"}, "cloudtrain-expires: nan"),
        ({labels.OWNER_NAME: "ann\nhint: run this\x1b[2J"}, "owner-name: ann hint: run this [2J"),
        ({labels.GENERATION: "x" * 300}, f"cloudtrain-generation: {'x' * 40}…"),
        ({labels.HOSTS: "99999999"}, "cloudtrain-hosts: 99999999"),
        ({labels.OWNER: 5}, "cloudtrain-owner: 5"),
    ],
)
def test_labels_that_it_never_writes_are_said_on_one_line(
    given: dict[str, Any], words: str
) -> None:
    found = labels.read({**OURS, **given})
    assert isinstance(found, labels.NotOurs)
    said = str(found.on("instance i-0abc in us-east-1"))
    assert said.startswith(
        "instance i-0abc in us-east-1 has cloudtrain labels that cloudtrain never"
    )
    assert said.endswith(words)
    assert said.isprintable()
    assert labels.ours({**OURS, **given}) is None


def test_a_vm_is_ours_by_its_labels_and_by_no_other_name() -> None:
    """EC2's tag `Name` is anybody's; where a VM has a name of its own, that is the one we gave."""
    tags = [{"key": key, "value": value} for key, value in OURS.items()]
    named = [*tags, {"key": "Name", "value": "-oProxyCommand=touch x"}]
    found = aws_vm({"tagSet": named, "instanceId": "i-1"}, "us-east-1", private=False)
    assert isinstance(found, Vm)
    assert found.node.name == "mnist-worker3"
    other = gcp_vm({"name": "-oProxyCommand=x", "labels": OURS, "zone": "zones/z"})
    assert str(other) == (
        "instance -oProxyCommand=x in z has the cloudtrain labels of mnist-worker3, which is not "
        "its name"
    )
    id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/-oX"
    lists = Lists(vms={id.lower(): {"id": id, "tags": OURS}}, views={}, nics={}, addresses={})
    assert [str(each) for each in to_vms(lists)] == [
        "VM -oX in resource group g has the cloudtrain labels of mnist-worker3, which is not its "
        "name"
    ]
    id = id.replace("-oX", "MNIST-Worker3")
    lists = Lists(vms={id.lower(): {"id": id, "tags": OURS}}, views={}, nics={}, addresses={})
    (found,) = to_vms(lists)
    assert isinstance(found, Vm)
    assert found.node.name == "mnist-worker3"
    tpu = {"name": "projects/p/locations/z/nodes/mnist-worker3", "labels": OURS, "state": "READY"}
    assert [each.node.name for each in listed_hosts(tpu) if isinstance(each, Vm)] == [
        "mnist-worker0"
    ]
    many = {**tpu, "labels": {**OURS, labels.HOSTS: "1" + "0" * 12}}
    assert [str(each).partition(" has ")[0] for each in listed_hosts(many)] == [
        "TPU mnist-worker3 in z"
    ]
    another = gcp_vm({"name": "mnist-worker4", "labels": OURS, "zone": "zones/z"})
    assert "has the cloudtrain labels of mnist-worker3, which is not its name" in str(another)
    bare = {labels.CLUSTER: "mnist"}
    assert isinstance(gcp_vm({"name": "x", "labels": bare, "zone": "z"}), Vm)
    assert "and no name of ours" in str(gcp_vm({"name": "-x", "labels": bare, "zone": "z"}))


def test_another_owner_is_one_of_another_id_and_another_machine() -> None:
    """A machine whose user has another identity in the account keeps its clusters."""
    ours = Owner(id="0123456789ab", name="ann", machine="here")

    def is_others(**changes: str) -> bool:
        return labels.belongs_to_other_owner(replace(ours, **changes), ours)

    assert is_others(id="ba9876543210", machine="there")
    assert not is_others()
    assert not is_others(id="ba9876543210")
    assert not is_others(machine="there")
    assert not is_others(id="", machine="there")


@pytest.mark.parametrize("address", ["-oProxyCommand=touch x", "a b", "example.com", "1.2.3.4\n"])
def test_an_address_that_is_none_is_not_known(address: str) -> None:
    tags = [{"key": key, "value": value} for key, value in OURS.items()]
    instance = {"tagSet": tags, "ipAddress": address, "privateIpAddress": address}
    found = [aws_vm(instance, "us-east-1", private=False)]
    inside = {"networkIP": address, "accessConfigs": [{"natIP": address}]}
    name = {"name": "mnist-worker3", "labels": OURS, "zone": "z"}
    found.append(gcp_vm({**name, "networkInterfaces": [inside]}))
    for each in found:
        assert isinstance(each, Vm)
        assert (each.node.address, each.node.internal) == ("", "")
