"""What `up` and `run` refuse, from what `check` finds."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.checks import check
from cloudtrain.checks.findings import spot_finding
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import Handle
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core import errors
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import SPOT, ClusterConfig, NodeGroup
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.provider import CloudProvider
from tests.support.fake_account import FakeAccount

CONFIG = ClusterConfig(name="m", provider="local", strategy="custom", nodes={})


def kinds(kind: type[CloudtrainError] = CloudtrainError) -> list[type[CloudtrainError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in kinds(below))]


def refused(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> CloudtrainError:
    monkeypatch.setattr(check, "findings", lambda handle, **kwargs: findings)
    with pytest.raises(CloudtrainError) as caught:
        check.refuse(Handle(CONFIG), LoggingConsole())
    return caught.value


@pytest.mark.parametrize("kind", [k for k in kinds() if k.__module__ == errors.__name__])
def test_a_finding_of_any_kind_ends_in_an_error_with_its_words_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, kind: type[CloudtrainError]
) -> None:
    finding = Finding(what="host a", ok=False, text="no answer", hint="wait", error=kind)
    error = refused(monkeypatch, finding)
    assert (str(error), error.hint, error.exit_code) == (
        "host a: no answer",
        "wait",
        kind.exit_code,
    )
    assert issubclass(kind, type(error))


def test_of_several_findings_the_worst_one_gives_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = Finding(what="host a", ok=False, text="no answer", error=errors.NodeUnreachable)
    full = Finding(what="store", ok=False, text="it is full", hint="room", error=errors.StoreError)
    well = Finding(what="code", ok=True, text="none")
    error = refused(monkeypatch, silent, well, full)
    assert isinstance(error, errors.StoreError)
    assert error.exit_code == 5
    assert error.message == "host a: no answer\nstore: it is full"
    assert error.hint == "room"


SPOT_WORKERS = replace(
    CONFIG,
    provider="gcp",
    placement=("east",),
    nodes={"worker": NodeGroup(machine="n1-standard-4", provisioning=SPOT)},
)


def spot_found(told: dict[str, float] | errors.CloudError, *others: Finding) -> list[str]:
    account = FakeAccount(spot=told)
    provider = CloudProvider(account, caller=lambda: "", timing=account.clock.timing())
    handle = Handle(SPOT_WORKERS)
    handle._provider = provider
    return [f"{each.told} {each.text}" for each in spot_finding(handle, others)]


def test_check_shows_where_spot_machines_are_likely_to_be_had() -> None:
    assert spot_found({"east-a": 3.0, "east-b": 9.0, "west-a": 9.0}) == [
        "True east-b 9/10, west-a 9/10, east-a 3/10 (score); `up` tries the zones of a region in "
        "this order"
    ]


def test_evidence_that_cannot_be_had_stops_nothing() -> None:
    assert spot_found(errors.PermissionsError("may not ask")) == ["False not known: may not ask"]
    assert spot_found({}) == []


def test_evidence_is_not_asked_for_what_is_refused_already() -> None:
    assert spot_found({"east-a": 3.0}, Finding(what="quota", ok=False, text="0 of 0")) == []


def test_each_finding_of_one_candidate_is_also_made_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stands_for(name: str) -> Any:
        return lambda *_, **__: (Finding(what=name, ok=True, text=""),)

    functions = {name: each for name, each in vars(check).items() if inspect.isfunction(each)}
    for name, each in functions.items():
        makes_findings = "tuple[Finding" in str(each.__annotations__.get("return"))
        if makes_findings and name not in ("check", "findings", "_found", "ignored"):
            monkeypatch.setattr(check, name, stands_for(name))
    monkeypatch.setattr(check, "open_provider", lambda config: None)

    def made(candidates: int) -> set[str]:
        monkeypatch.setattr(check, "each_candidate", lambda config: (config,) * candidates)
        return {finding.what for finding in check.check(make_plan(SPOT_WORKERS))}

    assert "findings_of_place" in made(1)
    assert made(1) - made(2) == set(), (
        "in checks/check.py: make it in findings_of_place, findings_of_all or further_findings"
    )
