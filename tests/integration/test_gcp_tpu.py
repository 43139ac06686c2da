"""TPUs through the GCP driver, on the Cloud TPU API's stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import CapacityError, CloudConfigError, NameTakenError, QuotaError
from cloudtrain.core.model import ON_DEMAND, SPOT, Identity, NodeGroup, Plan
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.gcp import permissions
from tests.support.fakes import make_identity
from tests.support.gcp_parts import CALLER, Gcp, standing_in

PLACES = ("us-central1-a", "us-west4-a")


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with standing_in() as gcp:
        yield gcp


def tpu(machine: str = "v5litepod-16", hosts: int = 4, **changes: Any) -> dict[str, Any]:
    bought = SPOT if changes.pop("spot", False) else ON_DEMAND
    group = NodeGroup(machine=machine, count=hosts, provisioning=bought)
    return {"strategy": "tpu", "nodes": {"worker": group}, "placement": PLACES, **changes}


def plan_of(gcp: Gcp, **changes: Any) -> Plan:
    return gcp.plan(**tpu(**changes))


def provider(gcp: Gcp, **changes: Any) -> CloudProvider[Any]:
    account = gcp.account(**tpu(**changes))
    return CloudProvider(account, caller=lambda: CALLER, timing=gcp.timing())


def stranger(gcp: Gcp) -> CloudProvider[Any]:
    """A later command that knows nothing but the account."""
    account = gcp.account(strategy="custom", nodes={})
    return CloudProvider(account, caller=lambda: CALLER, timing=gcp.timing())


@pytest.fixture
def keys(gcp: Gcp, tmp_path: Path) -> Identity:
    return make_identity(tmp_path, plan_of(gcp))


def body(gcp: Gcp, name: str = "mnist-worker0") -> dict[str, Any]:
    found: dict[str, Any] = next(t.body for t in gcp.app.under("nodes") if t.name == name)
    return found


def test_a_slice_is_one_request_and_each_host_a_node(gcp: Gcp, keys: Identity) -> None:
    made = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert [node.name for node in made] == [f"mnist-worker{index}" for index in range(4)]
    assert {node.state for node in made} == {"running"}
    assert len({node.address for node in made} | {node.internal for node in made}) == 8
    assert [node.internal for node in made] == [
        each["ipAddress"] for each in body(gcp)["networkEndpoints"]
    ]
    assert {node.machine for node in made} == {"v5litepod-16"}
    assert gcp.actions.count("tpu.nodes.create") == 1
    assert "instances.insert" not in gcp.actions


def test_the_request_has_labels_network_and_no_more_rights_than_to_write_logs(
    gcp: Gcp, keys: Identity
) -> None:
    plan = plan_of(gcp, spot=True)
    provider(gcp, spot=True).create(plan, keys, gcp.journal)
    told = body(gcp)
    parsed = labels.read(told["labels"])
    assert parsed is not None
    assert (parsed.cluster, parsed.role, parsed.index) == ("mnist", "worker", 0)
    assert parsed.expires == pytest.approx(gcp.app.now() + 12 * 3600, abs=60)
    assert told["tags"] == ["cloudtrain-mnist"]
    assert told["networkConfig"]["enableExternalIps"] is True
    assert told["serviceAccount"] == {"scope": ["https://www.googleapis.com/auth/logging.write"]}
    assert told["schedulingConfig"] == {"spot": True}
    assert told["runtimeVersion"] == "v2-alpha-tpuv5-lite"
    assert told["metadata"]["block-project-ssh-keys"] == "TRUE"


def test_image_names_the_software_version(gcp: Gcp, keys: Identity) -> None:
    version = "tpu-vm-tf-2.18.0-pod-pjrt"
    provider(gcp, image=version).create(plan_of(gcp, image=version), keys, gcp.journal)
    assert body(gcp)["runtimeVersion"] == version


def test_another_up_creates_nothing(gcp: Gcp, keys: Identity) -> None:
    first = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    gcp.cloud.forget_calls()
    assert provider(gcp).create(plan_of(gcp), keys, gcp.journal) == first
    assert not [a for a in gcp.actions if a.endswith((".create", ".insert"))]


def test_a_lost_answer_adopts_the_tpu(gcp: Gcp, keys: Identity) -> None:
    gcp.cloud.fault("reset", action="tpu.nodes.create", after=True)
    made = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert {node.state for node in made} == {"running"}
    assert [t.name for t in gcp.app.under("nodes")] == ["mnist-worker0"]


def test_a_zone_without_capacity_is_left_for_the_next(gcp: Gcp, keys: Identity) -> None:
    gcp.cloud.set(capacity={"us-central1-a/v5litepod-16": 0})
    made = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert {node.placement for node in made} == {"us-west4-a"}
    assert "us-central1" not in " ".join(gcp.app.holdings())


def test_no_capacity_anywhere_leaves_nothing(gcp: Gcp, keys: Identity) -> None:
    gcp.cloud.set(capacity={"*": 0})
    with pytest.raises(CapacityError, match="There is no more capacity in the zone") as caught:
        provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    zones = len(plan_of(gcp).config.placement)
    assert caught.value.message.count("There is no more capacity") == zones, "not once per host"
    assert gcp.app.holdings() == []


def test_a_quota_that_is_exceeded_skips_its_region(gcp: Gcp, keys: Identity) -> None:
    gcp.cloud.set(quotas={"us-central1/v5litepod": 0, "us-west4/v5litepod": 0})
    with pytest.raises(QuotaError, match="Quota limit 'TPU"):
        provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert gcp.app.holdings() == []


@pytest.mark.parametrize("code", ["13", "14", "10", "8"])
def test_a_creation_that_fails_late_leaves_nothing(gcp: Gcp, keys: Identity, code: str) -> None:
    told = {"code": code, "message": "An internal error occurred", "status": 500, "times": 9}
    gcp.app.fail("tpu.nodes.create", **told)
    with pytest.raises(Exception, match="An internal error occurred"):
        provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert gcp.app.holdings() == []


def test_a_tpu_of_that_name_that_is_not_ours_is_left_alone(gcp: Gcp, keys: Identity) -> None:
    provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    body(gcp)["labels"] = {"team": "vision"}
    with pytest.raises(NameTakenError) as caught:
        provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert caught.value.message.count("already exists") == 1, "not once per host"
    assert "TPU mnist-worker0 us-central1-a" in gcp.app.holdings()


def test_one_that_google_took_back_is_deleted_and_created_again(gcp: Gcp, keys: Identity) -> None:
    first = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    gcp.app.preempt_tpu("mnist-worker0")
    assert {node.state for node in provider(gcp).nodes("mnist")} == {"stopped"}
    second = provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    assert {node.state for node in second} == {"running"}
    assert {n.internal for n in first}.isdisjoint({n.internal for n in second}) or first != second
    assert gcp.actions.count("tpu.nodes.delete") == 1
    assert gcp.actions.count("tpu.nodes.create") == 2


def test_a_stopped_one_is_started_again(gcp: Gcp, tmp_path: Path) -> None:
    small = {"machine": "v5litepod-8", "hosts": 1}
    plan = plan_of(gcp, **small)
    identity = make_identity(tmp_path, plan)
    provider(gcp, **small).create(plan, identity, gcp.journal)
    body(gcp)["state"] = "STOPPED"
    (node,) = provider(gcp, **small).create(plan, identity, gcp.journal)
    assert (node.state, gcp.actions.count("tpu.nodes.start")) == ("running", 1)


def test_down_deletes_the_slice_once_and_its_network_after_it(gcp: Gcp, keys: Identity) -> None:
    provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    provider(gcp).destroy("mnist", gcp.journal)
    assert gcp.app.holdings() == []
    assert gcp.actions.count("tpu.nodes.delete") == 1


def test_it_is_found_and_deleted_by_its_labels_alone(gcp: Gcp, keys: Identity) -> None:
    provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    (held,) = stranger(gcp).sweep()
    assert [node.name for node in held.nodes] == [f"mnist-worker{index}" for index in range(4)]
    stranger(gcp).destroy("mnist", gcp.journal)
    assert gcp.app.holdings() == []


def test_a_project_without_the_api_has_no_tpus_and_a_tpu_cluster_says_so(gcp: Gcp) -> None:
    gcp.app.tpu_enabled = False
    assert stranger(gcp).sweep() == ()
    found = {each.what: each for each in provider(gcp).check(plan_of(gcp))}
    assert not found["Cloud TPU API"].ok
    assert "tpu.googleapis.com" in str(found["Cloud TPU API"].hint)


def test_a_zone_that_does_not_answer_is_named(gcp: Gcp, keys: Identity) -> None:
    provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    gcp.cloud.set(unreachable=["us-west4-a"])
    swept = stranger(gcp).sweep()
    assert [held.cluster for held in swept] == ["mnist"]
    assert {each.place for each in swept.not_asked} == {"us-west4-a"}


def test_check_says_what_is_there_and_what_google_does_not_report(gcp: Gcp) -> None:
    found = {each.what: each for each in provider(gcp).check(plan_of(gcp))}
    assert found["machines"].text == "1 × v5litepod-16 with 4 hosts in us-central1-a, us-west4-a"
    assert found["image"].text == "TPU software version v2-alpha-tpuv5-lite"
    assert (found["quota"].ok, found["quota"].told) == (True, False)


def test_a_zone_of_a_region_that_has_no_tpus_is_passed_over(gcp: Gcp) -> None:
    """It answers 403 or 404 for the whole location."""
    changes = {"placement": ("us-central1", "us-west4")}
    found = {each.what: each for each in provider(gcp, **changes).check(plan_of(gcp, **changes))}
    assert found["machines"].text.endswith("in us-central1-a, us-west4-a")


def test_a_zone_without_the_type_is_refused(gcp: Gcp) -> None:
    changes = {"placement": ("us-east4-a",)}
    with pytest.raises(CloudConfigError, match="us-east4-a has no TPU v5litepod-16"):
        provider(gcp, **changes).create(
            plan_of(gcp, **changes), Identity.__new__(Identity), gcp.journal
        )


def test_an_unknown_software_version_is_refused_by_check(gcp: Gcp) -> None:
    image = {"image": "tpu-vm-tf-9.9"}
    found = {each.what: each for each in provider(gcp, **image).check(plan_of(gcp, **image))}
    assert found["image"].text.startswith("no TPU software version tpu-vm-tf-9.9 in us-central1-a")


def test_the_permissions_of_the_page_are_enough_and_each_is_needed(
    gcp: Gcp, keys: Identity
) -> None:
    gcp.app.granted = [*permissions.NEEDED, *permissions.TPU_MORE]
    plan = plan_of(gcp)
    assert [f.text for f in provider(gcp).check(plan) if not f.ok] == []
    provider(gcp).create(plan, keys, gcp.journal)
    body(gcp)["state"] = "STOPPED"
    provider(gcp).create(plan, keys, gcp.journal)
    provider(gcp).destroy("mnist", gcp.journal)
    assert gcp.app.denied == []
    called = {a for a in gcp.actions if a.startswith("tpu.")}
    assert called == {method for method in permissions.CALLS if method.startswith("tpu.")}


def test_the_first_boot_data_of_each_host_is_its_own(gcp: Gcp, keys: Identity) -> None:
    provider(gcp).create(plan_of(gcp), keys, gcp.journal)
    script = body(gcp)["metadata"]["startup-script"]
    for index in range(4):
        key = keys.host_keys[f"mnist-worker{index}"].public
        part = script.partition(f"\n{index})\n")[2].partition("\n;;\n")[0]
        assert key in part
        assert script.count(key) == 1
    assert "command -v cloud-init" not in script


def test_a_node_of_a_private_network_is_reached_by_its_inner_address(
    gcp: Gcp, keys: Identity
) -> None:
    plan = plan_of(gcp)
    plan = replace(
        plan, config=replace(plan.config, network=replace(plan.config.network, private=True))
    )
    made = provider(gcp).create(plan, keys, gcp.journal)
    assert [node.address for node in made] == [node.internal for node in made]
