"""What the tests of the Azure driver begin with: a scripted server, the stand-in, orders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.events import Event
from cloudtrain.core.model import SPOT, Network, NodeGroup, NodePlan, Plan
from cloudtrain.providers.azure.network import ClusterNetwork
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Location
from cloudtrain.providers.base.timing import CALLS, POLLS, Timing
from tests.standins import cloud, serve

SUBSCRIPTION = "00000000-0000-4000-8000-000000000001"
TENANT = "00000000-0000-4000-8000-00000000000a"

Answers = Callable[[Request], Response]


def told(body: Any, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(json.dumps(body), status, named, content_type="application/json")


def refused(status: int, code: str, words: str = "no", **headers: str) -> Response:
    return told({"error": {"code": code, "message": words}}, status, **headers)


@dataclass
class Script:
    """Gives tokens, and each call its next answer: a function of it, or one that stays."""

    answers: dict[str, list[Response | Answers]] = field(default_factory=dict)
    """`GET /path` → what it says, in turn; the last stays."""
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tokens: int = 0
    token_answers: list[Response] = field(default_factory=list)
    """Instead of a token, in turn."""

    def on(self, call: str, *answers: Response | Answers) -> None:
        self.answers[call] = list(answers)

    def __call__(self, environ: Any, start_response: Any) -> Any:
        request = Request(environ)
        return self._answer(request)(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.path.endswith("/token"):
            if self.token_answers:
                return self.token_answers.pop(0)
            self.tokens += 1
            token = {"token_type": "Bearer", "expires_in": 3600, "access_token": f"t{self.tokens}"}
            return told(token)
        if request.path.endswith("openid-configuration"):
            base = request.host_url.rstrip("/").replace("http:", "https:") + f"/{TENANT}"
            return told(
                {
                    "issuer": f"{base}/v2.0",
                    "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                    "token_endpoint": f"{base}/oauth2/v2.0/token",
                }
            )
        call = f"{request.method} {request.path}"
        self.asked.append(call)
        self.headers.append({key.lower(): value for key, value in request.headers})
        self.bodies.append(request.get_json(silent=True))
        waiting = self.answers.get(call)
        if not waiting:
            return refused(404, "ResourceNotFound", f"{call} is not there")
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return answer(request) if callable(answer) and not isinstance(answer, Response) else answer


@contextmanager
def scripted() -> Iterator[tuple[Script, str]]:
    """Served without TLS, with a service principal of the environment."""
    script = Script()
    with serve.serving(script) as url, pytest.MonkeyPatch.context() as patch:
        credentials(patch, url)
        yield script, url


def credentials(patch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("AZURE_SUBSCRIPTION_ID", "ARM_ENDPOINT", "REQUESTS_CA_BUNDLE"):
        patch.delenv(name, raising=False)
    patch.setenv("AZURE_TENANT_ID", TENANT)
    patch.setenv("AZURE_CLIENT_ID", "00000000-0000-4000-8000-00000000000b")
    patch.setenv("AZURE_CLIENT_SECRET", "a-secret-of-tests")
    patch.setenv("AZURE_AUTHORITY_HOST", url)


def statuses(*names: str) -> Sequence[Response]:
    """An operation's, one after the other."""
    return [told({"status": name}) for name in names]


# ── On the stand-in ──────────────────────────────────────────────────────────

FAST = Timing(
    calls=replace(CALLS, pause=0.005, longest=0.02),
    polls=replace(POLLS, pause=0.005, longest=0.02),
    boot=20.0,
    listing=1.0,
)
"""The stand-in's own delays are 30 ms at most."""
CALLER = "203.0.113.7/32"
HERE = Location(region="eastus", zone="eastus-1")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Rk0C4S3YkNn3nCeS5oH1c9mYt4yqRj1sQxk7q1mXz t@example"
LIFETIME = 12 * 3600.0


@contextmanager
def stand_in(**settings: Any) -> Iterator[cloud.Cloud]:
    """In a thread; the environment is as its user would have set it."""
    with (
        cloud.start("azure", thread=True, **{"delay": 0.0, **settings}) as azure,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in list(os.environ):
            if name.startswith(("AZURE_", "ARM_")) or name.lower().endswith("_proxy"):
                patch.delenv(name)
        for name, value in azure.environment.items():
            patch.setenv(name, value)
        yield azure


def plan_of(azure: cloud.Cloud, **changes: Any) -> Plan:
    """With a placement group wherever there can be one, unless the changes say otherwise."""
    config = azure.config(**changes)
    if "network" not in changes:
        config = replace(config, network=replace(config.network, close="on"))
    return make_plan(config)


def plain(azure: cloud.Cloud, **changes: Any) -> Plan:
    group = NodeGroup(machine="Standard_D4s_v5", disk_gb=64)
    nodes = {"chief": group, "worker": replace(group, count=2)}
    return plan_of(azure, **{"nodes": nodes, "network": Network(), **changes})


def account_of(plan: Plan, timing: Timing = FAST) -> AzureDriver:
    return AzureDriver(plan.config, timing=timing)


def silent(event: Event, /) -> None:
    """A journal that nobody reads."""


def ground_of(account: AzureDriver, plan: Plan, place: Location = HERE) -> ClusterNetwork:
    return account.create_network(plan, place, CALLER, silent)


def order_of(
    plan: Plan,
    node: NodePlan,
    ground: ClusterNetwork,
    *,
    place: Location = HERE,
    lifetime: float | None = LIFETIME,
) -> LaunchRequest[ClusterNetwork]:
    expires = None if lifetime is None else FAST.clock.now() + lifetime
    return LaunchRequest(
        plan=plan,
        node=node,
        place=place,
        network=ground,
        user_data=f"#cloud-config\n# of {node.name}\n",
        public_key=KEY,
        token="0" * 32,
        expires=expires,
        labels=labels.of_node(plan.config.name, node, expires),
    )


def with_spot(plan: Plan) -> Plan:
    return replace(plan, nodes=tuple(replace(node, provisioning=SPOT) for node in plan.nodes))
