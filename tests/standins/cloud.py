"""A stand-in that runs: its address, what a user would set for it, a test's hand on it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloudtrain.core.model import ClusterConfig, Endpoints, Network, NodeGroup
from tests.standins import serve
from tests.standins.faults import Fault, Faults, Kind

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Description:
    """How one cloud's stand-in is found and reached."""

    at: str
    """`module:class`, loaded only when it starts."""
    placement: tuple[str, ...]
    machine: str
    store: str
    """The scheme of its own object store: see stores.KINDS."""
    tls: bool = False
    project: str | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    """Attributes with which it has less to be listed: for tests that list it a thousand times."""


DESCRIPTIONS = {
    "aws": Description(
        at="tests.standins.aws:AwsStandIn",
        placement=("us-east-1a", "us-west-2"),
        machine="g4dn.xlarge",
        store="s3",
        small={"regions": ["us-east-1"]},
    ),
    "gcp": Description(
        at="tests.standins.gcp:GcpStandIn",
        placement=("us-east4-c", "us-central1"),
        machine="n1-standard-8",
        store="gs",
        project="test-project",
    ),
    "azure": Description(
        at="tests.standins.azure:AzureStandIn",
        placement=("eastus", "westeurope"),
        machine="Standard_NC4as_T4_v3",
        store="az",
        tls=True,  # azure-identity speaks to no authority without it
        project="00000000-0000-4000-8000-000000000001",
    ),
}


class Cloud:
    """`environment` is what a user exports before `cloudtrain up`."""

    def __init__(self, name: str, told: dict[str, Any], faults: Faults | None = None) -> None:
        self.name = name
        self.url: str = told["url"]
        self.environment: dict[str, str] = told["environment"]
        self.endpoints: dict[str, str] = told["endpoints"]
        self.placement = DESCRIPTIONS[name].placement
        self.silences = False
        """Whether a call may get no answer: a client waits in vain then."""
        self._faults = faults

    @property
    def app(self) -> Any:
        """The stand-in itself, where it runs in this process."""
        assert self._faults, f"{self.name} runs in another process"
        return self._faults.app

    def config(self, **changes: Any) -> ClusterConfig:
        """A chief and two workers, asked for in this cloud's first placement."""
        described = DESCRIPTIONS[self.name]
        node = NodeGroup(machine=described.machine, disk_gb=100)
        made = ClusterConfig(
            name="mnist",
            provider=self.name,
            project=described.project,
            strategy="multi_worker_mirrored",
            nodes={"chief": node, "worker": replace(node, count=2)},
            placement=described.placement,
            network=Network(ssh_from="203.0.113.7/32"),
            source="/nowhere/mnist.yaml",
        )
        return replace(made, **changes)

    def told_endpoints(self) -> Endpoints:
        """For a config, instead of the environment's variables."""
        return Endpoints(**self.endpoints)

    def holdings(self) -> list[str]:
        return self._ask("GET", "holdings")

    def calls(self) -> list[dict[str, Any]]:
        return self._ask("GET", "calls")

    def forget_calls(self) -> None:
        """The next call is number 1."""
        self._ask("DELETE", "calls")

    def fault(self, kind: Kind, **details: Any) -> None:
        """Arms one: see faults.Fault."""
        Fault(kind=kind, **details)
        self.silences |= kind == "silence"
        self._ask("POST", "faults", {"kind": kind, **details})

    def no_more_faults(self) -> None:
        self.silences = False
        self._ask("DELETE", "faults")

    def advance(self, seconds: float) -> None:
        """The cloud's time goes on."""
        self._ask("POST", "clock", {"seconds": seconds})

    def set(self, **attributes: Any) -> None:
        """The stand-in's own: `lag=2.0`."""
        self._ask("PUT", "set", attributes)

    def tell(self, do: str, **given: Any) -> Any:
        """A method of the stand-in: `tell("interrupt", name="mnist-worker0")`."""
        return self._ask("POST", "tell", {"do": do, "with": given})

    def renew(self) -> None:
        """An empty account, no faults, no calls."""
        self.silences = False
        self._ask("DELETE", "world")

    def quiet(self) -> None:
        """Returns when no call is being worked on: those of a killed client go on for a while."""
        while any(call["ended"] is None for call in self.calls()):
            time.sleep(0.002)

    def _ask(self, method: str, path: str, given: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/_standin/{path}",
            method=method,
            data=None if given is None else json.dumps(given).encode(),
            headers={"Content-Type": "application/json"},
        )
        with _opener(self.environment.get("REQUESTS_CA_BUNDLE")).open(request) as answer:
            return json.load(answer)


@contextmanager
def start(name: str, *, thread: bool = False, **settings: Any) -> Iterator[Cloud]:
    """In a process of its own, so that a test may kill and fork as it likes; or in a thread.

    `settings` are attributes of the stand-in: `delay=0.0`.
    """
    with _in_a_thread(name) if thread else _in_a_process(name) as cloud:
        if settings:
            cloud.set(**settings)
        yield cloud


@contextmanager
def running(name: str, port: int = 0, nodes: Any = None) -> Iterator[Cloud]:
    """Here, in a thread."""
    described = DESCRIPTIONS[name]
    module, _, kind = described.at.partition(":")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=f"{name}-stand-in-")))
        tls = serve.certificate(folder) if described.tls else None
        app = getattr(importlib.import_module(module), kind)()
        app.nodes = nodes
        if nodes is not None:
            nodes.on_shutdown = app.shut_down
        faults = Faults(app)
        url = stack.enter_context(serve.serving(faults, port, tls))
        told = {
            "url": url,
            "environment": ENVIRONMENTS[name](url, folder, app),
            "endpoints": endpoints(name, url),
        }
        yield Cloud(name, told, faults)


def _in_a_thread(name: str) -> Any:
    return running(name)


@contextmanager
def _in_a_process(name: str) -> Iterator[Cloud]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standins", name, "--json"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:  # It ends with its stdin.
        assert process.stdout
        yield Cloud(name, json.loads(process.stdout.readline()))


# ── What a user would set ────────────────────────────────────────────────────


def endpoints(name: str, url: str) -> dict[str, str]:
    if name == "gcp":
        return {"compute": f"{url}/compute/v1/", "auth": f"{url}/token"}
    return {"compute": url, "auth": url}


def _aws(url: str, folder: Path, app: Any) -> dict[str, str]:
    (folder / "empty").touch()
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIASTANDIN000000000",
        "AWS_SECRET_ACCESS_KEY": "the-stand-in-knows-this-secret",
        "AWS_CONFIG_FILE": str(folder / "empty"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "empty"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _gcp(url: str, folder: Path, app: Any) -> dict[str, str]:
    """A key that this stand-in made itself: it checks the signature."""
    return {
        "GOOGLE_APPLICATION_CREDENTIALS": str(app.service_account(folder, url)),
        "GOOGLE_CLOUD_PROJECT": app.project,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}/compute/v1/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM": f"{url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{url}/storage/v1/",
    }


def _azure(url: str, folder: Path, app: Any) -> dict[str, str]:
    from tests.standins import azure_auth

    return {
        "ARM_ENDPOINT": url,
        "AZURE_AUTHORITY_HOST": url,
        "AZURE_TENANT_ID": azure_auth.TENANT,
        "AZURE_CLIENT_ID": azure_auth.CLIENT,
        "AZURE_CLIENT_SECRET": azure_auth.SECRET,
        "AZURE_SUBSCRIPTION_ID": str(DESCRIPTIONS["azure"].project),
        "REQUESTS_CA_BUNDLE": str(folder / "standin.crt"),
    }


ENVIRONMENTS = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _opener(authority: str | None) -> urllib.request.OpenerDirector:
    import ssl

    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if authority:
        context = ssl.create_default_context(cafile=authority)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)
