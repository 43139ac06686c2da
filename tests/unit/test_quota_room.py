"""How many more machines an account's quotas leave room for, on any cloud."""

from __future__ import annotations

import math

import pytest

from cloudtrain.cli.gpus import VIEWS
from cloudtrain.cli.gpus import quota_cells as cells
from cloudtrain.cli.gpus import quota_remarks as remarks
from cloudtrain.commands.accounts import AccountQuota, AccountRef, account_of
from cloudtrain.core.codec import encode
from cloudtrain.core.errors import CredentialsError
from cloudtrain.core.model import Accelerator, MachineType
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.protocols import Allowance
from cloudtrain.providers.base.quota import Quotas, allowance

T4 = Accelerator(kind="T4", count=2)
MACHINE = MachineType(provider="gcp", name="n1-standard-8", vcpus=8, memory_gib=30, accelerator=T4)
NEEDS = {"GPUS": 2, "CPUS": 8}


@pytest.mark.parametrize(
    ("quotas", "machines", "quota"),
    [
        ({"GPUS": (5, 1), "CPUS": (80, 0)}, 2, "GPUS: 1 of 5 in use"),
        ({"GPUS": (50, 1), "CPUS": (80, 72)}, 1, "CPUS: 72 of 80 in use"),
        ({"GPUS": (50, 1), "CPUS": (80, 73)}, 0, "CPUS: 73 of 80 in use"),
        ({"GPUS": (2, 4), "CPUS": (80, 0)}, 0, "GPUS: 4 of 2 in use"),
        ({"GPUS": (math.inf, 4), "CPUS": (80, 0)}, 10, "CPUS: 0 of 80 in use"),
        ({"GPUS": (math.inf, 4), "CPUS": (math.inf, 0)}, None, "no limit"),
        ({"CPUS": (80, 0)}, None, "GPUS: not reported"),
        ({"CPUS": (0, 0)}, 0, "CPUS: 0 of 0 in use"),
        ({}, None, "GPUS, CPUS: not reported"),
    ],
)
def test_the_scarcest_quota_decides(quotas: Quotas, machines: int | None, quota: str) -> None:
    found = allowance(MACHINE, "us-east4", NEEDS, quotas, spot=False)
    assert (found.machines, found.quota) == (machines, quota)


def test_a_machine_that_counts_against_no_known_quota_is_not_known() -> None:
    found = allowance(MACHINE, "us-east4", {}, {}, spot=True)
    assert (found.machines, found.quota) == (None, "no quota is known of n1-standard-8 as spot")


# ── what is shown ────────────────────────────────────────────────────────────


def account(provider: str, project: str | None = None) -> AccountRef:
    return AccountRef(config=account_of("any", provider, project), named=False)


def room(region: str, machines: int | None, *, spot: bool = False) -> Allowance:
    return Allowance(
        machine="m", accelerator=T4, region=region, spot=spot, machines=machines, quota="Q: x"
    )


def test_regions_that_allow_the_same_are_one_line_and_those_that_allow_none_are_last() -> None:
    found = (room("none", 0), room("a", 3), room("b", 3), room("c", 5), room("odd", None))
    answer = AccountQuota(account=account("gcp", "p"), allowances=found)
    assert list(cells([answer], every=False)) == [
        ("gcp", "m", "2", "3", "-", "a +1"),
        ("gcp", "m", "2", "5", "-", "c"),
        ("gcp", "m", "2", "?", "-", "odd"),
        ("gcp", "m", "2", "0", "-", "none"),
    ]
    assert [row[-1] for row in cells([answer], every=True)] == ["a", "b", "c", "odd", "none"]


def test_two_accounts_of_one_cloud_are_told_apart() -> None:
    both = [
        AccountQuota(account=account("gcp", project), allowances=(room("a", 1),))
        for project in ("p", "q")
    ]
    assert [row[0] for row in cells(both, every=False)] == ["gcp p", "gcp q"]


def test_what_could_not_be_asked_is_named() -> None:
    silent = NotAsked(place="us-east-1", why="no answer")
    denied = NotAsked(place="eu-west-1", why="a policy", denied=True)
    partial = AccountQuota(
        account=account("aws"),
        allowances=(room("a", 0), room("b", None)),
        not_asked=(silent, denied),
    )
    failed = AccountQuota(account=account("azure"), error=CredentialsError("no\ntoken"))
    assert list(remarks([partial, failed])) == [
        "aws: used up or 0: Q",
        "aws: Q: x",
        "aws: not checked: us-east-1 (no answer)",
        "aws: not checked, access denied: eu-west-1",
        "azure: not checked: no token",
    ]
    assert (partial.exit_code, failed.exit_code) == (6, 0)
    error = encode([failed], VIEWS)[0]["error"]
    assert error == {"message": "no\ntoken", "hint": None, "exit_code": 0}
