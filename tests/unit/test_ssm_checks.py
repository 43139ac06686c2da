"""Whether AWS nodes can register at Session Manager, as far as that can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import CredentialsError, PermissionsError
from cloudtrain.core.model import ClusterConfig, Network, NodeGroup, Plan, SshProxy
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import checks
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.ssh_service import NODE_ACTIONS
from cloudtrain.providers.base.timing import TIMING

ROLE = {
    "RoleName": "trainer",
    "Arn": "arn:aws:iam::1:role/trainer",
    "AssumeRolePolicyDocument": {"Statement": [{"Principal": {"Service": "ec2.amazonaws.com"}}]},
}


class Iam:
    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed

    def get_instance_profile(self, **_: str) -> Mapping[str, Any]:
        return {"InstanceProfile": {"InstanceProfileName": "trainer", "Roles": [ROLE]}}

    def simulate_principal_policy(self, **asked: Any) -> Mapping[str, Any]:
        assert asked["PolicySourceArn"] == ROLE["Arn"]
        words = {True: "allowed", False: "implicitDeny"}
        return {
            "EvaluationResults": [
                {"EvalActionName": name, "EvalDecision": words[name in self._allowed]}
                for name in asked["ActionNames"]
            ]
        }


class Ssm:
    def __init__(self, value: str) -> None:
        self._value = value

    def get_service_setting(self, **asked: str) -> Mapping[str, Any]:
        assert asked["SettingId"] == checks.SETTING
        if self._value == "refused":
            raise CredentialsError("not allowed")
        return {"ServiceSetting": {"SettingId": asked["SettingId"], "SettingValue": self._value}}


def found(
    monkeypatch: pytest.MonkeyPatch, identity: str | None, iam: Iam | None, ssm: Ssm | None
) -> Finding:
    services = {"iam": iam, "ssm": ssm}
    monkeypatch.setattr(Ec2Client, "service", lambda ec2, name, region: services[name])
    asked = plan(identity)
    (finding,) = checks.session_manager(Ec2Client(asked.config, TIMING), "us-east-1", asked)
    return finding


def plan(identity: str | None = None, *, ssm: bool = True) -> Plan:
    network = Network(ssh_proxy=SshProxy(ssm=True)) if ssm else Network()
    nodes = {"chief": NodeGroup(machine="m6i.xlarge")}
    return make_plan(
        ClusterConfig(
            name="mnist",
            provider="aws",
            strategy="mirrored",
            nodes=nodes,
            network=network,
            identity=identity,
        )
    )


def test_without_ssm_nothing_is_asked() -> None:
    assert list(checks.session_manager(None, "us-east-1", plan(ssm=False))) == []  # type: ignore[arg-type]


def test_nodes_without_an_identity_need_the_default_of_the_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = found(monkeypatch, None, None, Ssm("$None"))
    assert (refused.ok, refused.error) == (False, PermissionsError)
    assert refused.text == "no `identity:`; us-east-1 has no default host management"
    assert "AmazonSSMManagedInstanceCore" in str(refused.hint)
    allowed = found(monkeypatch, None, None, Ssm("service-role/Default"))
    assert (allowed.ok, allowed.told) == (True, True)


def test_an_identity_is_asked_for_what_the_agent_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, "trainer", Iam(NODE_ACTIONS), Ssm("$None")).ok
    refused = found(monkeypatch, "trainer", Iam(NODE_ACTIONS[1:]), Ssm("$None"))
    assert not refused.ok
    assert "trainer lacks ssm:UpdateInstanceInformation" in refused.text


def test_what_cannot_be_asked_refuses_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = found(monkeypatch, "trainer", None, Ssm("refused"))
    assert (unknown.ok, unknown.told) == (True, False)
