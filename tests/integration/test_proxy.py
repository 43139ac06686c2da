"""An office whose only way out is an HTTP proxy with an authority of its own: every client of this
machine uses it, on real sockets."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from werkzeug.wrappers import Response

from cloudtrain.catalog.refresh import refresh
from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.events import Event
from cloudtrain.core.model import Code, Network, NodeGroup
from cloudtrain.node import web
from cloudtrain.playbooks import git
from cloudtrain.ssh import node_proxy
from cloudtrain.stores import open_store
from cloudtrain.stores.data import HttpsData
from tests.standins import serve, stores
from tests.standins.cloud import DESCRIPTIONS, ENVIRONMENTS, Cloud, endpoints
from tests.standins.faults import Faults
from tests.standins.nodes import unavailable
from tests.support.cloud_client import provider
from tests.support.company_parts import CLOUDS, FAST, OURS
from tests.support.connect_proxy import ConnectProxy, connect_proxy
from tests.support.fakes import make_identity
from tests.support.fakes import make_plan as faked_plan
from tests.support.one_machine import Machine

HOST = "cloud.office.test"
"""A name that only the proxy can resolve."""
MACHINES = {"azure": "Standard_D4s_v5", "aws": "m6i.xlarge", "gcp": "n1-standard-2"}


AUTHORITIES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "GIT_SSL_CAINFO")


def behind(
    patch: pytest.MonkeyPatch,
    proxy: ConnectProxy,
    authority: Path,
    variable: str = "REQUESTS_CA_BUNDLE",
) -> None:
    """What docs/companies.md has a user set; each client is told the authority by its own variable
    alone, whatever the machine of the test has."""
    for name in list(os.environ):
        if name.startswith(OURS) or name.lower().endswith("_proxy") or name in AUTHORITIES:
            patch.delenv(name)
    patch.setattr("urllib.request._opener", None)  # urlopen keeps the first one, with its proxies
    patch.setenv("HTTPS_PROXY", proxy.url)
    patch.setenv("HTTP_PROXY", proxy.url)
    patch.setenv(variable, str(authority))


@contextmanager
def office(name: str, folder: Path) -> Iterator[tuple[Cloud, ConnectProxy]]:
    """The stand-in of a cloud on https, which only the proxy can reach by its name."""
    module, _, kind = DESCRIPTIONS[name].at.partition(":")
    app = getattr(importlib.import_module(module), kind)()
    app.delay = 0.0
    tls = serve.certificate(folder, HOST)
    with (
        serve.serving(Faults(app), 0, tls) as url,
        connect_proxy({f"{HOST}:443": ("127.0.0.1", urlsplit(url).port or 0)}) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        behind(patch, proxy, tls[0])
        named = f"https://{HOST}"
        for variable, value in ENVIRONMENTS[name](named, folder, app).items():
            patch.setenv(variable, value)
        told = {"url": named, "environment": {}, "endpoints": endpoints(name, named)}
        yield Cloud(name, told, Faults(app)), proxy


@pytest.mark.parametrize("name", CLOUDS)
def test_a_cluster_goes_up_and_down_through_the_proxy_alone(name: str, tmp_path: Path) -> None:
    with office(name, tmp_path) as (cloud, proxy):
        group = NodeGroup(machine=MACHINES[name], disk_gb=64)
        plan = make_plan(cloud.config(nodes={"chief": group}))
        events: list[Event] = []
        clouds = provider(name, plan.config, FAST)
        assert [each for each in clouds.check(plan) if not each.ok] == []
        (node,) = clouds.create(plan, make_identity(tmp_path, plan), events.append)
        assert node.state == "running"
        assert clouds.principal() is not None or name == "gcp"
        clouds.destroy("mnist", events.append)
        assert cloud.app.holdings() == []
        assert set(proxy.calls) == {f"CONNECT {HOST}:443"}


@pytest.mark.parametrize("name", CLOUDS)
def test_no_proxy_names_what_is_reached_without_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with office(name, tmp_path) as (cloud, proxy):
        monkeypatch.setenv("NO_PROXY", HOST)
        plan = make_plan(cloud.config())
        clouds = provider(name, plan.config, FAST)
        assert not clouds.check(plan)[0].ok, "nothing else resolves that name"
        assert proxy.calls == []


def test_s3_is_reached_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stores.s3() as there, connect_proxy(open=True) as proxy:
        behind(monkeypatch, proxy, serve.certificate(tmp_path)[0])
        for variable, value in there.environment.items():
            monkeypatch.setenv(variable, value)
        open_store(there.uri).check()
        assert {call.partition(" ")[2].partition(":")[0] for call in proxy.calls} == {"127.0.0.1"}


def test_blob_storage_is_reached_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = serve.certificate(tmp_path)
    with stores.az(tls) as there, connect_proxy(open=True) as proxy:
        behind(monkeypatch, proxy, tls[0])
        for variable, value in there.environment.items():
            monkeypatch.setenv(variable, value)
        open_store(there.uri).check()
        assert {call.partition(":")[0] for call in proxy.calls} == {"CONNECT 127.0.0.1"}


def test_cloud_storage_is_reached_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores.gs() as there:
        upstream = urlsplit(there.environment["STORAGE_EMULATOR_HOST"])
        names = {"storage.office.test:80": ("127.0.0.1", upstream.port or 0)}
        with connect_proxy(names) as proxy:
            behind(monkeypatch, proxy, serve.certificate(tmp_path)[0])
            for variable, value in there.environment.items():
                monkeypatch.setenv(variable, value)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://storage.office.test")
            open_store(there.uri).check()
            assert {call.partition(" ")[2] for call in proxy.calls} == {"storage.office.test:80"}


def test_a_dataset_on_the_web_is_reached_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = serve.certificate(tmp_path, HOST)
    with serve.serving(Response("0123", headers={"ETag": '"1"'}), 0, tls) as url:
        names = {f"{HOST}:443": ("127.0.0.1", urlsplit(url).port or 0)}
        with connect_proxy(names) as proxy:
            behind(monkeypatch, proxy, tls[0], "SSL_CERT_FILE")
            data = HttpsData(f"https://{HOST}/digits.npz")
            found = data.stat()
            assert found is not None
            assert found.size == 4
            assert b"".join(data.read(found.key, found.version)) == b"0123"
            assert set(proxy.calls) == {f"CONNECT {HOST}:443"}


def test_git_and_prices_ask_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses both here: what counts is that nobody went another way."""
    with connect_proxy() as proxy:
        behind(monkeypatch, proxy, serve.certificate(tmp_path)[0])
        code = Code(git=f"https://{HOST}/team/model.git")
        config = replace(faked_plan().config, code=code)
        with pytest.raises(CloudtrainError, match="403"):
            git.find(config, config.code.git or "")
        assert f"CONNECT {HOST}:443" in proxy.calls
        proxy.calls.clear()
        with pytest.raises(UsageError):
            refresh(date(2026, 11, 24))
        assert proxy.calls
        assert all(call.startswith("CONNECT ") for call in proxy.calls)


# ── Nodes ────────────────────────────────────────────────────────────────────


def test_a_booted_node_asks_the_proxy_in_logins_as_root_and_in_apt(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    machine = Machine(tmp_path)
    with (
        serve.serving(Response("a package")) as url,
        machine.nodes,
    ):
        where = ("127.0.0.1", urlsplit(url).port or 0)
        with connect_proxy({"deb.office.test:80": where, "pypi.office.test:80": where}) as proxy:
            network = Network(http_proxy=proxy.url, no_proxy=(".office.example",))
            machine.start(network=network)
            machine.enter()
            for sudo in ("", "sudo -n "):
                told = dict(
                    line.partition("=")[::2]
                    for line in machine.ask(f"{sudo}printenv").splitlines()
                    if "proxy" in line.lower()
                )
                assert told == dict(node_proxy.variables(network))
            fetch = (
                "import urllib.request as u; print(u.urlopen('http://pypi.office.test/x').read())"
            )
            assert machine.ask(f'python3 -c "{fetch}"') == "b'a package'\n"
            machine.ask(
                "echo deb [trusted=yes] http://deb.office.test/ x main >list; "
                "sudo -n apt-get update -o Dir::Etc::sourcelist=$PWD/list "
                "-o Dir::Etc::sourceparts=- -o Acquire::Retries=0 >/dev/null 2>&1 || true"
            )
            assert {call.partition(" ")[2] for call in proxy.calls} == {
                "pypi.office.test:80",
                "deb.office.test:80",
            }
            booted = machine.ask("cat /etc/environment")
            assert booted.count("https_proxy=") == 1
        assert node_proxy.boot_commands(Network()) == ()


def test_uploads_of_nodes_go_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = serve.certificate(tmp_path, HOST)
    with serve.serving(Response("stored"), 0, tls) as url:
        names = {f"{HOST}:443": ("127.0.0.1", urlsplit(url).port or 0)}
        with connect_proxy(names) as proxy:
            behind(monkeypatch, proxy, tls[0], "SSL_CERT_FILE")
            for name, value in node_proxy.variables(Network(http_proxy=proxy.url)).items():
                monkeypatch.setenv(name, value)
            request = {"method": "PUT", "url": f"https://{HOST}/x", "headers": {}}
            request |= {"before": "", "after": ""}
            (tmp_path / "file").write_bytes(b"0123")
            with (tmp_path / "file").open("rb") as file:
                answer = web.Web().send(web.Part(request, file.fileno(), 0, 4))
            assert answer.status == 200
            assert proxy.calls == [f"CONNECT {HOST}:443"]


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        ("storage.googleapis.com", False),
        ("bucket.s3.amazonaws.com", False),
        ("10.1.2.3", True),
        ("169.254.169.254", True),
        ("localhost", True),
        ("models.office.example", True),
        ("office.example.org", False),
        ("8.8.8.8", False),
    ],
)
def test_what_a_node_reaches_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch, host: str, direct: bool
) -> None:
    network = Network(http_proxy="http://proxy.office:3128", no_proxy=(".office.example",))
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert web.proxy_for(host) is None
    for name, value in node_proxy.variables(network).items():
        monkeypatch.setenv(name, value)
    assert web.proxy_for(host) == (None if direct else ("proxy.office", 3128))
