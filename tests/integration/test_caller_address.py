"""From where SSH is allowed: this machine's own address, or what the config says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Network
from cloudtrain.providers.base.ssh_access import caller_cidr
from tests.support.fakes import make_plan


def config(**network: object) -> ClusterConfig:
    return dataclasses.replace(make_plan().config, network=Network(**network))  # type: ignore[arg-type]


@contextmanager
def service(text: str, status: int = 200) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def test_what_the_config_says_is_taken_as_it_is() -> None:
    assert caller_cidr(config(ssh_from="10.1.0.0/16"), None, services=()) == "10.1.0.0/16"


def test_an_endpoint_of_ones_own_sees_the_address_of_our_connection_to_it() -> None:
    assert caller_cidr(config(), "http://127.0.0.1:4566", services=()) == "127.0.0.1/32"
    assert caller_cidr(config(), "localhost:4566", services=()).startswith(("127.", "::1"))
    assert caller_cidr(config(private=True), "https://127.9.9.9", services=()).endswith("/32")


def test_elsewhere_the_public_address_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with service("8.8.4.4\n") as first:
        assert caller_cidr(config(), None, services=(first,)) == "8.8.4.4/32"


def test_an_ipv6_address_is_one_address_too() -> None:
    with service("2001:4860:4860::8888") as first:
        assert caller_cidr(config(), None, services=(first,)) == "2001:4860:4860::8888/128"


@pytest.mark.parametrize(
    "answer", ["<html>please log in", "", "0.0.0.0", "10.0.0.7", "8.8.8.8/0", "x" * 10_000]
)
def test_the_second_service_is_asked_where_the_first_tells_no_address(answer: str) -> None:
    with service(answer) as first, service("8.8.4.4") as second:
        assert caller_cidr(config(), None, services=(first, second)) == "8.8.4.4/32"


def test_where_nobody_tells_it_the_user_is_asked_and_nothing_is_opened() -> None:
    with service("8.8.4.4", 500) as first, pytest.raises(UsageError) as caught:
        caller_cidr(config(), None, services=(first, "http://127.0.0.1:9/"))
    assert "network.ssh_from" in (caught.value.hint or "")


def test_private_nodes_see_an_address_that_only_the_user_knows() -> None:
    with service("8.8.4.4") as first, pytest.raises(UsageError) as caught:
        caller_cidr(config(private=True), None, services=(first,))
    assert "network.ssh_from" in (caught.value.hint or "")


def test_an_endpoint_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(UsageError, match=r"no route to the endpoint http://nowhere\.invalid"):
        caller_cidr(config(), "http://nowhere.invalid", services=())
