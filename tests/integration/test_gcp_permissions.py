"""The role of docs/gcp.md is what the driver's calls need, and enough for all that it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.errors import PermissionsError
from cloudtrain.model import NodeGroup
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.gcp import permissions
from tests.support.fakes import make_identity
from tests.support.gcp_parts import CALLER, Gcp, groups, standing_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with standing_in() as gcp:
        yield gcp


def provider(gcp: Gcp, caller: str = CALLER, **changes: Any) -> CloudProvider[Any]:
    return CloudProvider(gcp.account(**changes), caller=lambda: caller, timing=gcp.timing())


def test_the_role_is_enough_for_check_up_repair_down_and_ls(gcp: Gcp, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gcp.md").read_text(encoding="utf-8")
    pasted = yaml.safe_load(page.partition("```yaml\ntitle: cloudtrain")[2].partition("```")[0])
    gcp.app.granted = pasted["includedPermissions"]
    plan = gcp.plan(nodes=groups(machine="g2-standard-4"), placement=("us-east4-a", "us-east4"))
    identity = make_identity(tmp_path, plan)
    assert [f.text for f in provider(gcp).check(plan) if not f.ok] == []
    provider(gcp).create(plan, identity, gcp.journal)
    gcp.app.shut_down("mnist-worker0")
    provider(gcp, "198.51.100.9/32").create(plan, identity, gcp.journal)
    assert len(provider(gcp).nodes("mnist")) == 3
    assert [holding.cluster for holding in provider(gcp).sweep()] == ["mnist"]
    provider(gcp).destroy("mnist", gcp.journal)
    assert gcp.app.holdings() == []
    assert gcp.app.denied == ["tpu.nodes.list"], "`ls` asks for TPUs, and without it there are none"


def test_a_call_that_the_role_lacks_is_refused_with_its_permission(
    gcp: Gcp, tmp_path: Path
) -> None:
    gcp.app.granted = [p for p in permissions.NEEDED if p != "compute.instances.setLabels"]
    plan = gcp.plan(strategy="one_device", nodes={"chief": NodeGroup(machine="n1-standard-2")})
    with pytest.raises(PermissionsError, match=r"compute\.instances\.setLabels"):
        provider(gcp).create(plan, make_identity(tmp_path, plan), gcp.journal)


def test_every_permission_is_one_of_a_call_by_its_name() -> None:
    """Google names them alike, so that a slip of the pen is seen."""
    verbs = {"insert": "create", "patch": "update", "aggregatedList": "list", "wait": "get"}
    for method, needed in permissions.CALLS.items():
        collection, verb = method.split(".")
        assert f"{collection}.{verbs.get(verb, verb)}" in needed


def test_the_role_of_the_page_is_current() -> None:
    page = (ROOT / "docs" / "gcp.md").read_text(encoding="utf-8")
    assert f"```yaml\n{permissions.role()}```" in page, "run: python tools/generate_docs.py"
