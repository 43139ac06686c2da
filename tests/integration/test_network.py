"""A machine without a network says so at once, whatever would have been asked first."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checks.setup import missing_release
from cloudtrain.core import network
from cloudtrain.core.errors import CloudError, NoNetworkError, StoreError
from cloudtrain.core.network import no_network
from cloudtrain.core.retry import Clock
from cloudtrain.playbooks import installer
from cloudtrain.providers.base.timing import Timing, require_network
from cloudtrain.stores import open_store

URL = "https://compute.example.com/v1"


class Names:
    """The resolver: each look fails with the next error, or finds this machine."""

    def __init__(self, *errors: OSError | None) -> None:
        self.errors = list(errors)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


NO_DNS = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_reached", set())
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    monkeypatch.setattr(network, "TRIES", network.TRIES.__class__(pause=0.0, tries=2))


def names(monkeypatch: pytest.MonkeyPatch, *errors: OSError | None) -> Names:
    found = Names(*errors)
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


def test_a_name_that_does_not_resolve_is_no_network_after_two_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = names(monkeypatch, NO_DNS)
    assert no_network(URL) == "no network: cannot resolve compute.example.com"
    assert asked.asked == ["compute.example.com"] * 2
    names(monkeypatch, NO_DNS, None)
    assert no_network(URL) is None, "the second try found it"
    names(monkeypatch, NO_DNS)
    assert no_network(URL) is None, "it was there: what follows is an interruption"


def test_a_name_that_nobody_has_may_be_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, UNKNOWN)
    assert no_network(URL) == "no network, or no such name: cannot resolve compute.example.com"
    assert no_network(URL, made_up=True) is None


def test_an_address_without_a_route_is_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRoute(socket.socket):
        def connect(self, address: Any) -> None:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    names(monkeypatch, None)
    monkeypatch.setattr(socket, "socket", NoRoute)
    assert no_network(URL) == "no network: compute.example.com: Network is unreachable"


def test_a_proxy_is_asked_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    asked = names(monkeypatch, None)
    assert no_network(URL) is None
    assert asked.asked == ["proxy.example.com"]
    monkeypatch.setenv("no_proxy", "example.com")
    no_network(URL)
    assert asked.asked[1:] == ["compute.example.com"]


def test_no_call_to_a_cloud_is_repeated_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, NO_DNS)
    slept: list[float] = []
    with pytest.raises(NoNetworkError) as caught:
        Timing(clock=Clock(sleep=slept.append)).call(lambda: require_network(URL))
    assert isinstance(caught.value, CloudError)
    assert slept == []


@pytest.mark.parametrize("uri", ["gs://bucket/a", "s3://bucket/a", "az://account/bucket/a"])
def test_a_store_says_so(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    if uri.startswith("gs"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://storage.example.com")
    names(monkeypatch, NO_DNS)
    with pytest.raises(StoreError, match=r"a: no network: cannot resolve \S+$"):
        next(open_store(uri).list())


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(Failed to establish "
            "a new connection: [Errno -2] Name or service not known)'",
            "hint: the node cannot reach the package index",
        ),
        ("ERROR: No matching distribution found for six==99", "hint: check the pin"),
    ],
)
def test_what_pip_says_decides_the_hint(tmp_path: Path, said: str, hint: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat >&2 <<"END"\n{said}\nEND\nexit 1\n')
    python.chmod(0o755)
    line = f"set -eu; cache=\n{installer.PIP}pip_install {python} 'check the pin' six"
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stdout.strip() == said
    assert done.stderr.startswith(hint)


# ── a release that the index lacks ───────────────────────────────────────────


@pytest.mark.parametrize(
    ("answers", "version", "missing"),
    [
        ("Available versions: 2.21.0, 2.20.0", "2.99", "whose newest tensorflow-cpu is 2.21.0"),
        ("Available versions: 2.99.1, 2.21.0", "2.99", ""),
        ("nothing", "2.99", ""),
        ("Available versions: 2.20.0", "2.21", ""),
    ],
)
def test_check_asks_for_a_release_that_the_tables_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str, version: str, missing: str
) -> None:
    pip = tmp_path / "python"
    pip.write_text(f"#!/bin/sh\necho '{answers}'\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    found = missing_release(version) or ""
    assert missing in found
    assert bool(missing) == bool(found)
